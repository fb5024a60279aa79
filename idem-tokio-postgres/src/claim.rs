//! The parameters of a claim.

use idem_core::{Uuid, store::UnitOptions};
use idem_sql::ClaimColumns;
use tokio_postgres::types::Type;

use crate::{PostgresSession, link::Parameter};

/// All ten, for many keys.
pub(crate) fn of_many<'p>(
    scopes: &'p Vec<i32>,
    key_ids: &'p Vec<Uuid>,
    columns: &'p ClaimColumns<'_>,
    options: &'p UnitOptions,
    session: &'p PostgresSession,
) -> [Parameter<'p>; 10] {
    let [run, number, lock_timeout, statement_timeout] = of_unit(options, session);
    [
        (scopes, Type::INT4_ARRAY),
        (key_ids, Type::UUID_ARRAY),
        (&columns.keys, Type::TEXT_ARRAY),
        (&columns.hashes, Type::BYTEA_ARRAY),
        (&columns.rules, Type::INT4_ARRAY),
        (&columns.retentions, Type::INT8_ARRAY),
        run,
        number,
        lock_timeout,
        statement_timeout,
    ]
}

/// The last four, which are the same for one key.
pub(crate) fn of_unit<'p>(options: &'p UnitOptions, session: &'p PostgresSession) -> [Parameter<'p>; 4] {
    [
        (&options.run.0, Type::INT4),
        (&options.lane, Type::INT4),
        (&session.lock_timeout, Type::TEXT),
        (&session.statement_timeout, Type::TEXT),
    ]
}
