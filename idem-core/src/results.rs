//! The results of operations: kept with the records of their keys, encrypted where the consumer has keys for that, and given to every
//! repeat.

#[cfg(feature = "seal")]
pub(crate) mod aes_gcm;
pub(crate) mod encrypt;
pub(crate) mod result;
pub(crate) mod rows;

#[cfg(feature = "seal")]
pub use self::aes_gcm::{ResultKeys, SEAL_KEY_BYTES, SealKeyProvider};
pub use self::{
    result::{NotKept, REFERENCE_BYTES_MAX, RESULT_BYTES_MAX, StoredResult},
    rows::{Gone, KeptResult, NewResult},
};
