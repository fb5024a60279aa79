//! [`Kind`]: what is known of a store before it is opened, and which one a URL asks for.

use crate::database::Database;

/// The facts of a store before it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub(crate) database: &'static str,
    pub(crate) client: &'static str,
    pub(crate) schemes: &'static [&'static str],
    pub(crate) shares_transaction: bool,
}

impl Kind {
    pub(crate) fn of<D: Database>() -> Self {
        Self {
            database: D::DATABASE,
            client: D::CLIENT,
            schemes: D::SCHEMES,
            shares_transaction: D::SHARES_TRANSACTION,
        }
    }
}

/// The index of the store for URLs of this scheme that is on this client; without one, of that on sqlx, as most are.
///
/// # Errors
/// One line that names the flags and the cure.
pub(crate) fn chosen(kinds: &[Kind], scheme: &str, client: Option<&str>) -> Result<usize, String> {
    let of_url = |kind: &Kind| kind.schemes.contains(&scheme);
    let on = |client: &str| kinds.iter().position(|kind| of_url(kind) && kind.client == client);
    let found = match client {
        Some(client) => on(client),
        None => on("sqlx").or_else(|| kinds.iter().position(of_url)),
    };
    found.ok_or_else(|| match client {
        Some(client) if kinds.iter().any(of_url) => other_client(kinds, client),
        Some(_) | None => other_url(kinds),
    })
}

fn other_client(kinds: &[Kind], client: &str) -> String {
    if let Some(other) = kinds.iter().find(|kind| kind.client == client) {
        return format!("--store {client} needs a --database-url of {}: leave it out", other.database);
    }
    let mut clients: Vec<&str> = kinds.iter().map(|kind| kind.client).collect();
    clients.sort_unstable();
    clients.dedup();
    format!("--store is {client:?}, and must be {}", clients.join(" or "))
}

pub(crate) fn other_url(kinds: &[Kind]) -> String {
    let mut schemes: Vec<String> = Vec::new();
    for scheme in kinds.iter().filter_map(|kind| kind.schemes.first()).map(|scheme| format!("{scheme}://")) {
        if !schemes.contains(&scheme) {
            schemes.push(scheme);
        }
    }
    if schemes.is_empty() {
        return "there is nothing for any database here: give the service handlers or routes for one".to_owned();
    }
    format!("--database-url must begin with {} (its value is not shown)", schemes.join(" or "))
}
