//! The functions of the user's that find a message's tenant, key and hash, and fail for some messages.

use std::{fmt, sync::Arc};

use idem_core::{
    IdempotencyKey, Message, Tenant,
    hash::{HashPayloadError, HashRules, PayloadHash, PayloadHasher, RawPayload},
    key::{Header, KEY_FIELD, KeyError, KeySource},
};

use crate::{
    handler::UsersOwn,
    scenario::{Finds, Scenario},
    world::{TENANT, World},
};

/// All three functions, over the ones that a life without failures has.
#[derive(Clone)]
pub(crate) struct Identifies(pub(crate) Arc<World>);

impl fmt::Debug for Identifies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identifies")
    }
}

impl Identifies {
    /// Whether a life needs them.
    pub(crate) fn are_needed(scenario: &Scenario) -> bool {
        scenario.contents.iter().any(|content| content.unidentified.is_some())
    }

    pub(crate) fn tenant(&self, message: &Message) -> Option<Tenant> {
        if self.fails(Finds::Tenant, message) {
            return None;
        }
        Tenant::new(message.headers().text(TENANT)?).ok()
    }

    /// Whether this call fails. Or it panics.
    fn fails(&self, function: Finds, message: &Message) -> bool {
        let content = self.0.content(message);
        let Some(about) = self.0.scenario.contents.get(content) else { return false };
        let Some(fails) = about.unidentified.filter(|fails| fails.function == function) else { return false };
        let asked = self.0.asked_about(content);
        if fails.calls.is_some_and(|calls| asked > calls) {
            return false;
        }
        if fails.panics {
            #[allow(clippy::panic, reason = "the user's code panics")]
            std::panic::panic_any(UsersOwn);
        }
        true
    }
}

impl KeySource for Identifies {
    fn key(&self, message: &Message) -> Result<Option<IdempotencyKey>, KeyError> {
        if self.fails(Finds::Key, message) {
            return Err(KeyError::Empty);
        }
        Header::new(KEY_FIELD).key(message)
    }

    fn rule(&self) -> String {
        Header::new(KEY_FIELD).rule()
    }
}

impl PayloadHasher for Identifies {
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError> {
        if self.fails(Finds::Hash, message) {
            return Err(HashPayloadError { rule: PayloadHasher::rule(self), problem: "it is no JSON".to_owned() });
        }
        RawPayload.hash(message)
    }

    fn rule(&self) -> String {
        RawPayload.rule()
    }
}

/// A hash rule of its own number, of the rules that a consumer has in turn where it is bound anew.
#[derive(Debug)]
pub(crate) struct Numbered(u32);

impl Numbered {
    /// The rule of this number, and all before it as former ones.
    pub(crate) fn rules(number: u32) -> HashRules {
        (0..number).fold(HashRules::new(Self(number)), |rules, former| rules.and_formerly(Self(former)))
    }
}

impl PayloadHasher for Numbered {
    fn hash(&self, message: &Message) -> Result<PayloadHash, HashPayloadError> {
        let payload = message.payload().map_or(&[][..], |payload| payload);
        Ok(PayloadHash::of(&[&self.0.to_be_bytes(), payload].concat()))
    }

    fn rule(&self) -> String {
        format!("numbered/{}", self.0)
    }
}
