//! A payment provider on this machine, at its worst: it charges, and then does not answer the first call for an order.

use std::{
    collections::{BTreeMap, HashSet},
    future,
    io::Error,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use tokio::net::TcpListener;

use crate::Order;

/// Whether the provider recognises a key that it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// A call with a known key is answered with the charge that it made.
    Honoured,
    /// Every call charges.
    Ignored,
}

/// The provider. Its charges stay, whatever happens to its callers.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Where it listens.
    pub address: SocketAddr,
    books: Arc<Mutex<Books>>,
}

#[derive(Debug)]
struct Books {
    keys: Keys,
    /// The key and the order of each charge.
    charges: Vec<(String, Order)>,
    /// Orders whose first call got no answer.
    unanswered: HashSet<String>,
}

impl Provider {
    /// Listens on a free port until the process ends.
    ///
    /// # Errors
    /// Where no port can be had.
    ///
    /// # Cancel safety
    /// Cancel safe: then it does not listen.
    pub async fn start(keys: Keys) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let books = Books { keys, charges: Vec::new(), unanswered: HashSet::new() };
        let books = Arc::new(Mutex::new(books));
        let routes = Router::new().route("/charges", post(charge)).with_state(Arc::clone(&books));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { address, books })
    }

    /// How often each order was charged.
    #[must_use]
    pub fn charges(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (_, order) in &lock(&self.books).charges {
            *counts.entry(order.order.clone()).or_default() += 1;
        }
        counts
    }
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn charge(
    State(books): State<Arc<Mutex<Books>>>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> (StatusCode, String) {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    let (answer, is_first) = {
        let mut books = lock(&books);
        (books.charge(key, &order), books.unanswered.insert(order.order))
    };
    if is_first {
        // The charge is made, and the caller gets no answer.
        future::pending().await
    }
    answer
}

impl Books {
    fn charge(&mut self, key: &str, order: &Order) -> (StatusCode, String) {
        if order.cents < 0 {
            return (StatusCode::PAYMENT_REQUIRED, String::new());
        }
        let known = self.charges.iter().position(|(charged, _)| charged == key);
        match known.filter(|_| self.keys == Keys::Honoured) {
            Some(number) if self.charges[number].1 == *order => (StatusCode::OK, format!("charge-{number}")),
            Some(_) => (StatusCode::UNPROCESSABLE_ENTITY, String::new()),
            None => {
                self.charges.push((key.to_owned(), order.clone()));
                (StatusCode::OK, format!("charge-{}", self.charges.len() - 1))
            }
        }
    }
}
