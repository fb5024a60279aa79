//! The checks: what a server, a schema, an error and a setting mean.

pub(crate) mod errors;
pub(crate) mod server;
pub(crate) mod settings;
pub(crate) mod sqlstate;
pub(crate) mod verify;
