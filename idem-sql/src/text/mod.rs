//! The texts: statements in either dialect, migrations, and the id of a key.

pub(crate) mod bookkeeping;
pub(crate) mod cleanup;
pub(crate) mod dialect;
pub(crate) mod inbox;
pub(crate) mod key_id;
pub(crate) mod migrations;
pub(crate) mod name;
pub(crate) mod outbox;
pub(crate) mod plan;
pub(crate) mod postgres;
pub(crate) mod session_limits;
pub(crate) mod statements;
