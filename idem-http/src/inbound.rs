//! Events that come in over HTTP, answered with 2xx once they are committed.
