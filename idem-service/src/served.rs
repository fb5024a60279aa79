//! The requests that a service over HTTP has served, as the page shows them.
#![cfg_attr(not(feature = "http"), allow(dead_code, reason = "nothing is served then"))]

use std::time::Duration;

use idem_core::consumer::Pause;

/// The state of a service, and its counts since its start.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// Why no operation begins, and for how long already.
    pub(crate) pause: Option<(Pause, Duration)>,
    pub(crate) routes: Vec<RouteServed>,
    /// Repeats that wait for a request of this process.
    pub(crate) in_memory: u64,
    /// Those that wait for a request of another process.
    pub(crate) at_database: u64,
    pub(crate) at_database_max: usize,
}

/// The counts of one route.
#[derive(Debug, Clone)]
pub(crate) struct RouteServed {
    pub(crate) route: String,
    pub(crate) first: u64,
    pub(crate) replayed: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
}
