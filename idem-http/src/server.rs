//! Protected routes.
