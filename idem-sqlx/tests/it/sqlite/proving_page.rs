use std::path::PathBuf;

use idem_core::{BoxError, Handler, HandlerError, Message, Tx};
use idem_sqlx::{SqliteScratch, SqliteStore};
use idem_testkit::{message, prove};
use sqlx::{Connection as _, Executor as _, SqliteConnection};

struct Ledger;

impl Handler<SqliteStore> for Ledger {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, SqliteStore>) -> Result<(), HandlerError> {
        let cents: i64 = message.json()?;
        sqlx::query("INSERT INTO purchases (cents) VALUES (?)").bind(cents).execute(tx.connection()).await?;
        Ok(())
    }
}

/// Makes the application's tables: here you would run your migrations.
async fn prepare(file: PathBuf) -> Result<(), BoxError> {
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await?;
    connection.execute("CREATE TABLE purchases (cents INTEGER NOT NULL)").await?;
    Ok(connection.close().await?)
}

#[tokio::test]
async fn the_ledger_is_proved() {
    let messages = [message("order-1", "250"), message("order-2", "990"), message("order-3", "5")];
    match prove(SqliteScratch::new(prepare), |_| Ledger).messages(messages).run().await {
        Ok(proven) => println!("{proven}"),
        Err(not_proven) => panic!("{not_proven}"),
    }
}
