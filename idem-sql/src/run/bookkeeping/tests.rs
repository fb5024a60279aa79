//! How many statements rows that are due cost.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use idem_core::{
    ConsumerName, StoreError,
    dead_letter::{DeadLetterId, DueEnd, DueRoom},
    store::{Bookkeeping as _, RunId},
};

use super::SqlBookkeeping;
use crate::{
    run::{
        driver::{BookkeepingDriver, Parameter},
        row::{Row, Value},
    },
    text::{bookkeeping::BookkeepingStatements, name::SchemaName},
};

/// Notes the statements that it is given, and answers with no row but whether something is due.
struct Noting {
    statements: BookkeepingStatements,
    is_due: bool,
    given: Mutex<Vec<Arc<str>>>,
}

impl BookkeepingDriver for Noting {
    fn bookkeeping_statements(&self) -> &BookkeepingStatements {
        &self.statements
    }

    async fn rows(
        &self,
        _doing: &'static str,
        text: &Arc<str>,
        _parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.given.lock().unwrap().push(Arc::clone(text));
        let is_look = *text == self.statements.any_due;
        let row = || Row::new(["waiting".to_owned()].into(), vec![Value::Bool(self.is_due)]);
        Ok(is_look.then(row).into_iter().collect())
    }

    async fn verify(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn warnings(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ready) => ready,
        Poll::Pending => panic!("nothing here waits"),
    }
}

/// With nothing due a look is one statement, which is no write; a batch is two more than its units, however many rows it has.
#[test]
fn a_look_with_nothing_due_is_one_statement_and_a_batch_is_three() {
    let orders = ConsumerName::new("orders").unwrap();
    for (is_due, statements) in [
        (false, BookkeepingStatements::sqlite(&SchemaName::default())),
        (true, BookkeepingStatements::new(&SchemaName::default())),
    ] {
        let wanted = [&statements.any_due, &statements.take_due, &statements.end_due].map(Arc::clone);
        let books = SqlBookkeeping::new(Noting { statements, is_due, given: Mutex::default() });
        assert!(at_once(books.take_due(&orders, RunId(1), DueRoom::rows(500))).unwrap().is_empty());
        if is_due {
            let ends: Vec<_> = (0..500).map(|id| (DeadLetterId(id), DueEnd::Processed)).collect();
            at_once(books.end_due(RunId(1), &ends)).unwrap();
            at_once(books.end_due(RunId(1), &[])).unwrap();
        }
        let given = books.driver().given.lock().unwrap().clone();
        assert_eq!(given, if is_due { &wanted[..] } else { &wanted[..1] });
        assert!(given[0].trim_start().starts_with("SELECT"), "a look writes nothing: {}", given[0]);
    }
}
