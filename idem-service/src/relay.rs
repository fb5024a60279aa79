//! How the events of a worker's handlers get to their destinations, and how that is shown.

mod alone;
mod file;
pub(crate) mod parts;
pub(crate) mod standing;
#[cfg(feature = "webhooks")]
mod webhook;

use idem_core::{BoxError, outbox::Destination, relay::Route};

pub use self::alone::relay;
use crate::{
    beside::Beside,
    broker::{Events, Own},
    flags::Flags,
};

/// A route for each destination: its own, or one by the broker. None where another process relays.
///
/// # Errors
/// Where nothing brings events there, or the broker's part refuses the destination's name.
pub(crate) fn routes(beside: Beside, events: Option<&Events>, flags: &Flags) -> Result<Vec<Route>, BoxError> {
    if !flags.relay {
        return Ok(Vec::new());
    }
    let Beside { destinations, relayed: mut routes, cloud_events, .. } = beside;
    let form = cloud_events.unwrap_or_default();
    for Destination { name, .. } in &destinations {
        if routes.iter().any(|route| route.destination == *name) {
            continue;
        }
        let make = events.ok_or_else(|| {
            format!(
                "the handlers publish to {name:?}, and nothing here brings events there: give --relay off where another \
                 process does, the service a route with .relay(…), or a service over HTTP its --brokers"
            )
        })?;
        let route = Route::to_shared(name, make(name, form.clone())?);
        routes.push(route.receiver_keeps(flags.receiver_keeps));
    }
    Ok(routes)
}

/// Refuses destinations of the worker's own broker that are a part of the worker. A destination with a route of its own may be
/// meant so, such as by a handler that splits its messages. Where another process relays, it may bring the events to another
/// broker, so that is only warned of.
///
/// # Errors
/// One line with the name, the flag and the cure.
pub(crate) fn check_own(beside: &Beside, relays: bool, own: impl Fn(&str) -> Option<Own>) -> Result<(), String> {
    for Destination { name, .. } in &beside.destinations {
        let Some(own) = own(name).filter(|_| beside.relayed.iter().all(|route| route.destination != *name)) else {
            continue;
        };
        let why = match own {
            Own::Source(flag) => format!(
                "the handlers publish to {name:?}, which is {flag}: each event would come back as a message under a key of its \
                 own, and make the next one, for ever"
            ),
            Own::DeadLetters(flag) => format!(
                "the handlers publish to {name:?}, which is {flag}: a consumer of the events would also carry out the \
                 messages that were set aside"
            ),
        };
        if relays {
            return Err(format!("{why}. Name another destination"));
        }
        tracing::warn!("{why}, unless the relay brings them to another broker");
    }
    Ok(())
}
