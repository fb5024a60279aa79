//! The server's side, on every store.

mod ask;
mod both;
mod coded;
mod errors;
mod gates;
pub(crate) mod grounds;
mod held;
mod layer;
mod outcomes;
mod plain;
mod profiles;
mod proxied;
mod rates;
mod repeats;
mod senders;
mod statuses;
mod stores;
mod support;
mod telemetry;
