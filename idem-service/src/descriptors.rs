//! The file descriptors that the process may have.

/// The connections of clients that a service takes at most, however many descriptors there are.
#[cfg(feature = "http")]
const CONNECTIONS_MAX: usize = 20_000;

/// Descriptors kept for the admin port, the relay, cleanup, repeats that wait at the database, files and the application.
#[cfg(feature = "http")]
const RESERVE: usize = 128;

/// As many as any process of idem needs.
const ENOUGH: u64 = 1 << 16;

/// Raises the soft limit towards the hard one, and returns it. A soft limit of 1,024 is a default for programs that call `select`.
pub(crate) fn raise() -> u64 {
    // It fails where the limit cannot be read; a process has this many in any case.
    rlimit::increase_nofile_limit(ENOUGH).unwrap_or(256)
}

/// How many connections of clients there is room for, beside `lanes` connections to the database.
#[cfg(feature = "http")]
pub(crate) fn for_clients(limit: u64, lanes: usize) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // With a limit below the reserve every use has to do with less.
    limit.saturating_sub(RESERVE + lanes).max(limit / 4).clamp(1, CONNECTIONS_MAX)
}

#[cfg(all(test, feature = "http"))]
mod tests {
    use super::*;

    /// W173: the reserve is kept free, and a tiny limit is shared.
    #[test]
    fn w173_the_connections_of_clients_leave_a_reserve() {
        for (limit, lanes, connections) in
            [(256, 16, 112), (1_024, 16, 880), (1_024, 1_024, 256), (65_536, 16, 20_000), (u64::MAX, 16, 20_000)]
        {
            assert_eq!(for_clients(limit, lanes), connections, "{limit} {lanes}");
        }
    }
}
