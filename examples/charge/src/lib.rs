//! Charges cards over HTTP. The charge is an effect outside of the transaction, so it is attempted at least once; that it
//! happens once takes a provider that honours the key it is handed. `charge.rs` is the application; the rest is the
//! provider and the worker around it.

mod charge;
pub mod provider;
pub mod worker;

pub use charge::{Charge, Order};
