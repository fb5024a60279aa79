//! The client: one key an intent, kept over its tries.
