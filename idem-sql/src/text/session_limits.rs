//! How a session begins its units: with the limits that it has already, or with those of this one.

use super::postgres::{UnitLimits, begin_unit, set_limits};

/// The limits of a session. One that a store has for itself gets them once, because each setting in a BEGIN costs the unit some
/// microseconds. Behind a pooler in transaction mode a setting would be the next client's, so each BEGIN has them there.
///
/// A handler may change the session's `statement_timeout` or its idle limit (`SET` without `LOCAL`). The claim answers the values that it
/// ran under, and where they are others, the next BEGIN sets the limits again (B2).
///
/// ```
/// use std::time::Duration;
/// use idem_sql::{SessionLimits, UnitLimits};
///
/// let second = Duration::from_secs(1);
/// let limits = UnitLimits { lock: second, statement: second, idle_in_transaction: 35 * second };
/// let mut session = SessionLimits::new(true);
/// assert!(session.begin(limits, None).starts_with("BEGIN; SET statement_timeout = 1000; "));
/// assert_eq!(session.begin(limits, None), "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE");
/// ```
#[derive(Debug, Clone)]
pub struct SessionLimits {
    is_own: bool,
    set: Option<UnitLimits>,
    /// The limits as the server writes them, once a claim has answered them.
    shown: Option<String>,
}

impl SessionLimits {
    /// `is_own`: whether settings of the session stay with it, and the session is not handed back to another owner.
    #[must_use]
    pub fn new(is_own: bool) -> Self {
        Self { is_own, set: None, shown: None }
    }

    /// The text that begins a unit, in one round trip of the simple protocol; see [`begin_unit`] for `durability`.
    pub fn begin(&mut self, limits: UnitLimits, durability: Option<&str>) -> String {
        if !self.is_own {
            return begin_unit(Some(limits), durability);
        }
        let begin = begin_unit(None, durability);
        if self.set == Some(limits) {
            return begin;
        }
        (self.set, self.shown) = (Some(limits), None);
        // A transaction of their own, or a rollback of the unit would take them back.
        format!("BEGIN{}; COMMIT; {begin}", set_limits("SET", limits))
    }

    /// Notes the limits that a claim ran under.
    pub fn ran_under(&mut self, shown: &str) {
        match &self.shown {
            None => self.shown = Some(shown.to_owned()),
            Some(before) if before == shown => {}
            Some(_) => self.set = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn b2_limits_are_set_once_a_session_and_again_where_they_were_changed() {
        let second = Duration::from_secs(1);
        let limits = UnitLimits { lock: second, statement: second, idle_in_transaction: second };
        let mut session = SessionLimits::new(true);
        let first = session.begin(limits, None);
        assert_eq!(
            first,
            "BEGIN; SET statement_timeout = 1000; SET idle_in_transaction_session_timeout = 1000; COMMIT; \
             BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
        );
        session.ran_under("1s");
        assert!(!session.begin(limits, None).contains("SET"));
        session.ran_under("1s");
        let longer = UnitLimits { statement: 2 * second, ..limits };
        assert!(session.begin(longer, None).contains("SET statement_timeout = 2000"), "other limits");
        session.ran_under("2s");
        session.ran_under("0");
        assert!(session.begin(longer, None).contains("SET statement_timeout = 2000"), "a handler has changed it");
        let mut shared = SessionLimits::new(false);
        for _ in 0..2 {
            assert_eq!(shared.begin(limits, Some("on")), begin_unit(Some(limits), Some("on")));
        }
    }
}
