//! The places of calls: who may have how many of them, so that endpoints that hang leave places for others.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::line::Line;

/// The most calls in flight at once.
pub(crate) const AT_ONCE: usize = 64;

/// The most of them for one owner, whatever hosts it has.
const AN_OWNER: usize = 8;

/// The most of them for one host of an owner. A host whose last call hung has one.
const A_HOST: usize = 4;

/// The most calls for hosts of which nothing is known yet, together with those of slow hosts. The other places are for hosts whose last
/// call was quick.
const UNPROVEN: usize = AT_ONCE - 16;

/// The most calls that a slow host can begin beside.
const SLOW: usize = AT_ONCE / 2;

/// From how long on a call is slow.
const SLOW_FROM: Duration = Duration::from_secs(1);

/// For how long after a slow call a host is slow.
const SLOW_FOR: Duration = Duration::from_secs(60);

/// How many owners, and how many hosts of each, are remembered.
const OWNERS_MAX: usize = 4_096;
const HOSTS_MAX: usize = 64;

/// Whose endpoint is at this host, unless the lookup says: the registrable domain, by the Public Suffix List. An address, and a name without
/// such a domain, is its own.
pub(crate) fn owner_of(host: &str) -> &str {
    let name = host.strip_suffix('.').unwrap_or(host);
    if host.starts_with('[') || name.parse::<IpAddr>().is_ok() {
        return name;
    }
    psl::domain_str(name).unwrap_or(name)
}

/// The calls in flight, and what is known of those that they go to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    owners: HashMap<String, Owner>,
    begun: u64,
}

#[derive(Debug)]
struct Call {
    number: u64,
    owner: String,
    host: String,
    at: Instant,
    /// Its host's last call was quick.
    is_proven: bool,
}

impl Call {
    fn is_slow(&self, now: Instant) -> bool {
        now.duration_since(self.at) >= SLOW_FROM
    }
}

#[derive(Debug, Default)]
struct Owner {
    hosts: HashMap<String, Host>,
    slow_until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Host {
    line: Line,
    /// Its last call ended, and was not slow.
    is_quick: bool,
    /// Its last call had no answer in time.
    hangs: bool,
    slow_until: Option<Instant>,
}

/// A place. It is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    number: u64,
    is_noted: bool,
}

impl Places {
    /// A place among the calls, or how long the event waits in line for one.
    pub(crate) fn take(&self, owner: &str, host: &str, now: Instant) -> Result<Place, Duration> {
        let number = self.state().take(owner, host, now)?;
        Ok(Place { places: self.clone(), number, is_noted: false })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Notes that the call ended now, with an answer or without one in time.
    pub(crate) fn ended(&mut self, hung: bool) {
        self.is_noted = true;
        self.places.state().ended(self.number, hung, Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        if !self.is_noted {
            // The relay's deadline has dropped it, or the relay has ended.
            let now = Instant::now();
            let is_slow = state.calls.iter().any(|call| call.number == self.number && call.is_slow(now));
            if is_slow {
                state.ended(self.number, true, now);
            }
        }
        state.calls.retain(|call| call.number != self.number);
    }
}

impl State {
    fn take(&mut self, owner: &str, host: &str, now: Instant) -> Result<u64, Duration> {
        self.forget_some(owner, host, now);
        let of_owner = || self.calls.iter().filter(|call| call.owner == owner);
        let of_host = || of_owner().filter(|call| call.host == host);
        let is_after = |until: Option<Instant>| until.is_some_and(|until| now < until);
        let known = self.owners.entry(owner.to_owned()).or_default();
        let owner_is_slow = is_after(known.slow_until) || of_owner().any(|call| call.is_slow(now));
        let to = known.hosts.entry(host.to_owned()).or_default();
        let is_slow = is_after(to.slow_until) || of_host().any(|call| call.is_slow(now));
        let is_proven = !is_slow && to.is_quick;
        let beside = match (is_slow, to.is_quick) {
            (false, true) => usize::MAX,
            // Another name of an owner that has a slow one is no better known for being new.
            (false, false) if !owner_is_slow => UNPROVEN,
            (true, _) | (false, false) => SLOW,
        };
        let of_this_host = if to.hangs { 1 } else { A_HOST };
        let others = self.calls.iter().filter(|call| !call.is_proven || call.is_slow(now)).count();
        if of_owner().count() < AN_OWNER && of_host().count() < of_this_host && others < beside {
            self.begun += 1;
            let (owner, host) = (owner.to_owned(), host.to_owned());
            self.calls.push(Call { number: self.begun, owner, host, at: now, is_proven });
            return Ok(self.begun);
        }
        // A host that hangs has been seen to take this long at least.
        let at_least = of_host().map(|call| now - call.at).min().unwrap_or_default();
        Err(to.line.wait(now, at_least, if to.hangs { 1 } else { A_HOST as u32 }))
    }

    fn ended(&mut self, number: u64, hung: bool, now: Instant) {
        let Some(call) = self.calls.iter().find(|call| call.number == number) else { return };
        let Some(owner) = self.owners.get_mut(&call.owner) else { return };
        let Some(host) = owner.hosts.get_mut(&call.host) else { return };
        host.line.took(now - call.at);
        host.hangs = hung;
        host.is_quick = !hung && !call.is_slow(now);
        if !host.is_quick {
            host.slow_until = Some(now + SLOW_FOR);
            owner.slow_until = host.slow_until;
        }
    }

    /// Makes room for a new owner and a new host: names are the customers' to choose, and have no end.
    fn forget_some(&mut self, owner: &str, host: &str, now: Instant) {
        let calls = &self.calls;
        if let Some(known) = self.owners.get_mut(owner) {
            if known.hosts.len() >= HOSTS_MAX && !known.hosts.contains_key(host) {
                known.hosts.retain(|host, _| calls.iter().any(|call| call.owner == owner && call.host == *host));
            }
            return;
        }
        if self.owners.len() >= OWNERS_MAX {
            let has_calls = |owner: &String| calls.iter().any(|call| call.owner == *owner);
            self.owners.retain(|owner, known| has_calls(owner) || known.slow_until.is_some_and(|until| now < until));
            if self.owners.len() >= OWNERS_MAX {
                self.owners.retain(|owner, _| has_calls(owner));
            }
        }
    }
}

#[cfg(test)]
mod tests;
