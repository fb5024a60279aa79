//! [`RoleDefault`]: whether sessions are read only by default.

use std::sync::atomic::{AtomicBool, Ordering};

use idem_core::StoreError;

use crate::{
    check::{errors::unreadable, server::is_by_role},
    run::row::Row,
};

/// Whether sessions are read only by a default of their role or database, as far as is known: statements outside of units
/// then say that they write.
#[derive(Debug, Default)]
pub struct RoleDefault(AtomicBool);

impl RoleDefault {
    /// Whether they are.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// How one of idem's statements outside of units begins, where it needs a transaction of its own.
    pub(crate) fn begin(&self) -> &'static str {
        if self.is_read_only() {
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
        } else {
            "BEGIN ISOLATION LEVEL READ COMMITTED"
        }
    }

    /// Notes the answer of [`PostgresStatements::read_only_default`](crate::PostgresStatements::read_only_default): whether
    /// sessions are read only by a default of the role or the database. Answers whether they are by another default.
    pub(crate) fn note(&self, rows: &[Row]) -> Result<bool, StoreError> {
        let row = rows.first().ok_or_else(|| unreadable("the server has no such setting"))?;
        let (is_read_only, is_by_role) = (row.get::<bool>("read_only")?, is_by_role(row.get("source")?));
        self.0.store(is_read_only && is_by_role, Ordering::Relaxed);
        Ok(is_read_only && !is_by_role)
    }
}
