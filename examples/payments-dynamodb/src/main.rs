//! The payments of `payments-api` on DynamoDB: the debit, the record of the key and the answer are one `TransactWriteItems`.

#[path = "../../payments-api/src/bearer.rs"]
mod bearer;
#[path = "../../payments-api/src/books.rs"]
mod books;
mod dynamodb;
#[path = "../../payments-api/src/problems.rs"]
mod problems;
#[path = "../../payments-api/src/transactions.rs"]
mod transactions;

use std::process::ExitCode;

use idem_dynamodb::DynamoStore;
use idem_service::HttpService;

use self::transactions::Payments;

fn main() -> ExitCode {
    // --migrate makes the one table, in which the books are too.
    let service = async |payments: Payments| Ok(transactions::service(payments, ""));
    HttpService::<DynamoStore>::from_args(service).run()
}
