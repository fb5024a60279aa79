//! A handler written with SeaORM. Entities, queries and active models work; their writes are committed with the record of
//! the message's key, or not at all.

mod in_transaction;

use idem_core::{Handler, HandlerError, Message, Tx};
use idem_sqlx::PostgresStore;
use sea_orm::{ActiveValue::Set, ExprTrait as _, entity::prelude::*};
use serde::Deserialize;

pub use self::in_transaction::{InTransaction, handler_error};

/// A purchase, and each customer's total.
pub mod purchase {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "purchases")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub customer: String,
        pub cents: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

/// See [`purchase`].
pub mod customer {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "customers")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub customer: String,
        pub cents: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

/// The tables.
pub const TABLES: &str = "
    CREATE TABLE purchases (id bigserial PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL CHECK (cents >= 0));
    CREATE TABLE customers (customer text PRIMARY KEY, cents bigint NOT NULL);
    INSERT INTO customers VALUES ('1', 0), ('2', 0)";

#[derive(Debug, Deserialize)]
struct Bought {
    customer: String,
    cents: i64,
}

/// The handler.
#[derive(Debug, Clone, Copy)]
pub struct Ledger;

impl Handler<PostgresStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, PostgresStore>) -> Result<(), HandlerError> {
        let Bought { customer, cents } = message.json()?;
        let db = InTransaction::new(tx.connection());
        customer::Entity::update_many()
            .col_expr(customer::Column::Cents, Expr::col(customer::Column::Cents).add(cents))
            .filter(customer::Column::Customer.eq(customer.as_str()))
            .exec(&db)
            .await
            .map_err(handler_error)?;
        let purchase = purchase::ActiveModel { customer: Set(customer), cents: Set(cents), ..Default::default() };
        purchase.insert(&db).await.map_err(handler_error)?;
        Ok(())
    }
}
