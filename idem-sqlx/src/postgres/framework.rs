//! The connections for what is done outside of units of work.

use std::sync::Arc;

use idem_sql::{RoleDefault, StatementLimit};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool, Postgres as Db, Row as _, pool::PoolConnection, postgres::PgConnectOptions,
};

use super::{PostgresOptions, error};

/// Connections with a limit for statements, where a session can have one.
pub(super) struct Framework {
    pub(super) pool: PgPool,
    plain: PgConnectOptions,
    limit: Arc<StatementLimit>,
}

impl Framework {
    pub(super) fn new(options: &PostgresOptions) -> Self {
        let (plain, settings) = (options.connection.clone(), &options.settings);
        let limit = Arc::new(StatementLimit::new(settings.answer_timeout, settings.pooler));
        let limited = plain.clone();
        let limited = if let Some(setting) = limit.setting() { limited.options([setting]) } else { limited };
        let asking = Arc::clone(&limit);
        let pool = options.pool_options(settings.connections).after_connect(move |connection, _| {
            let limit = Arc::clone(&asking);
            Box::pin(async move { look_for(&limit, connection).await })
        });
        Self { pool: pool.connect_lazy_with(limited), plain, limit }
    }

    pub(super) async fn acquire(&self) -> Result<PoolConnection<Db>, sqlx::Error> {
        match self.pool.acquire().await {
            Err(error) if error::refused_setting(&error).is_some() && self.limit.setting().is_some() => {}
            acquired => return acquired,
        }
        // It may have been another setting, and then it is refused again.
        self.pool.set_connect_options(self.plain.clone());
        let acquired = self.pool.acquire().await?;
        self.limit.refused();
        Ok(acquired)
    }

    /// How a statement begins on the connection that was acquired; `None` where it is a transaction by itself.
    pub(super) fn begin(&self, role_default: &RoleDefault) -> Option<String> {
        self.limit.begin(role_default)
    }
}

async fn look_for(limit: &StatementLimit, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    if let Some(question) = limit.question() {
        let answer = sqlx::raw_sql(AssertSqlSafe(question)).fetch_one(connection).await?;
        if !answer.try_get(0)? {
            limit.refused();
        }
    }
    Ok(())
}
