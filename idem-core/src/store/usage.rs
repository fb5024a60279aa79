//! The disk space of a store.

use crate::setters::setters;

/// How much room a store's tables take, all consumers together; each `None` where the database has no cheap answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Usage {
    /// How many records there are, by the database's estimate.
    pub records: Option<u64>,
    /// The bytes that they take, with their indexes. Where all tables share one file, those of the file.
    pub record_bytes: Option<u64>,
    /// How many dead letters there are, by the database's estimate.
    pub dead_letters: Option<u64>,
    /// The bytes that they take, with their indexes. Where all tables share one file, those of the file.
    pub dead_letter_bytes: Option<u64>,
    /// How many records the consumer's largest tenant has, by the database's estimate.
    pub records_of_largest_tenant: Option<u64>,
}

impl Usage {
    setters! {
        /// Sets the number of records.
        records: Option<u64>,
        /// Sets the bytes of records.
        record_bytes: Option<u64>,
        /// Sets the number of dead letters.
        dead_letters: Option<u64>,
        /// Sets the bytes of dead letters.
        dead_letter_bytes: Option<u64>,
        /// Sets the records of the largest tenant.
        records_of_largest_tenant: Option<u64>,
    }
}
