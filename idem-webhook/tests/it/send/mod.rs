//! Webhooks against a real HTTP server on this machine.

mod cloud_events;
mod fairness;
mod posts;
mod receiver;
mod relayed;
