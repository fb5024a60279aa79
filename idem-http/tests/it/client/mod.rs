//! The client against a provider on this machine.

mod ends;
mod provider;
mod window;
