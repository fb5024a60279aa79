//! The client library's callbacks, always from within a poll. Nothing is done here but noting it, so that the polling
//! thread acts on it when it is ready.

use std::{
    collections::VecDeque,
    error::Error,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rdkafka::{
    ClientContext, TopicPartitionList,
    client::OAuthToken,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, KafkaResult},
    types::{RDKafkaErrorCode, RDKafkaRespErr},
};

use crate::{
    error::{is_authentication, said},
    tokens::Login,
};

/// A part of a rebalance that waits for its answer. Meanwhile the client library keeps the membership alive.
#[derive(Debug)]
pub(crate) enum Step {
    Assign(Vec<i32>),
    /// Still held, until it is answered.
    Revoke(Vec<i32>),
    /// No longer held: the session ended.
    Lost(Vec<i32>),
}

#[derive(Debug, Default)]
pub(crate) struct Context {
    log: Log,
    /// The consumer is being dropped, and its notes are not read any more.
    closing: AtomicBool,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    steps: VecDeque<Step>,
    not_let_in: Option<String>,
    /// The library's words about the error that it hands over next, which carries the code alone.
    reason: String,
    /// Why there is no token for the login.
    no_token: Option<String>,
}

impl Context {
    pub(crate) fn new(login: Option<Login>) -> Self {
        Self { log: Log { login }, ..Self::default() }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_step(&self) -> Option<Step> {
        self.noted().steps.pop_front()
    }

    pub(crate) fn has_step(&self) -> bool {
        !self.noted().steps.is_empty()
    }

    /// Why the brokers do not let this client in, where they said so.
    pub(crate) fn not_let_in(&self) -> Option<String> {
        self.noted().not_let_in.clone()
    }

    /// Why there is no token to log in with; the brokers were not asked then.
    pub(crate) fn no_token(&self) -> Option<String> {
        self.noted().no_token.clone()
    }

    /// The words about the error that was just handed over.
    pub(crate) fn reason(&self) -> String {
        std::mem::take(&mut self.noted().reason)
    }

    /// From now on rebalances are answered at once.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.log.log(level, facility, message);
    }

    fn generate_oauth_token(&self, config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        let token = self.log.generate_oauth_token(config);
        self.noted().no_token = token.as_ref().err().map(ToString::to_string);
        token
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // The end of a partition is no error, and comes by often.
        if code == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        let mut noted = self.noted();
        if code.is_some_and(is_authentication) && noted.no_token.is_none() {
            noted.not_let_in = Some(reason.to_owned());
        }
        reason.clone_into(&mut noted.reason);
        drop(noted);
        self.log.error(error, reason);
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, code: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let assign = code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.closing.load(Ordering::SeqCst) {
            let answered = if assign { answer_assign(consumer, list) } else { answer_revoke(consumer, list) };
            if let Err(error) = answered {
                tracing::debug!(error = said(&error), "the last assignment could not be answered");
            }
            return;
        }
        let partitions = list.elements().iter().map(|element| element.partition()).collect();
        let step = match (assign, consumer.assignment_lost()) {
            (true, _) => Step::Assign(partitions),
            (false, false) => Step::Revoke(partitions),
            (false, true) => Step::Lost(partitions),
        };
        tracing::debug!(?step, "the group rebalances");
        self.noted().steps.push_back(step);
    }
}

/// Takes an assignment over, by the protocol that the group has chosen.
pub(crate) fn answer_assign(consumer: &BaseConsumer<Context>, list: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(list),
    }
}

/// Lets go of the revoked partitions.
pub(crate) fn answer_revoke(consumer: &BaseConsumer<Context>, list: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
    }
}

/// The client library's log lines, as ours, and the login of whatever client it belongs to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    pub(crate) login: Option<Login>,
}

impl ClientContext for Log {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        let login = self.login.as_ref().ok_or("nothing makes tokens: give KafkaOptions::tokens a source of them")?;
        Ok(login.token()?)
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            // Most of the library's errors are connections that it opens again.
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(target: "librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Most pass by themselves; those that a person must act on come as an answer as well.
        tracing::debug!(error = said(&error), reason, "the Kafka client reports an error");
    }
}
