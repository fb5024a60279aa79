//! State of the task that owns the connection and of the worker's tasks: the buffer, the epoch, and pending announcements.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use idem_core::{
    CancellationToken, SourceError,
    source::{Assignment, Delivery, Received, Revocation, Settle, Settled},
};
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicNackOptions},
};
use tokio::{sync::Notify, time::Instant};

use crate::{
    attach, message,
    prefetch::{Better, Prefetch, UNSETTLED_BYTES_MAX},
    properties::{is_all_told, size},
    retry::{Content, Original, RetryQueue},
};

/// The handle that settles one delivery: a tag says nothing outside of the channel that delivered it.
#[derive(Debug)]
pub struct AmqpHandle {
    epoch: Assignment,
    tag: u64,
    /// That of the subscription.
    subscription: u64,
    /// Of the payload.
    bytes: usize,
    /// Where there is a retry queue.
    original: Option<Arc<Original>>,
}

type AmqpDelivery = Delivery<AmqpHandle>;

/// Held by the task and the source together.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Whether handles hold the originals that a retry queue needs.
    keeps_originals: bool,
    /// There is something for `receive`.
    arrived: Notify,
    /// The subscription has to change.
    wished: Notify,
    /// Nothing more is handed over.
    pub(crate) stopping: CancellationToken,
    /// The broker is to be let go.
    pub(crate) closing: CancellationToken,
    /// The broker is not waited for any longer.
    pub(crate) gone: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    /// Bounded by the prefetch, and by bytes as far as they are known before.
    buffer: VecDeque<AmqpDelivery>,
    revocations: VecDeque<Revocation>,
    failure: Option<SourceError>,
    /// How many channels there were; the number of the last one is its epoch.
    epochs: u64,
    /// The channel of this epoch, unless it is over.
    channel: Option<Channel>,
    counting: Option<Channel>,
    /// When the last channel was lost.
    lost_at: Option<Instant>,
    /// Delivered in this epoch, and not settled; and the bytes of their payloads.
    unsettled: usize,
    unsettled_bytes: usize,
    /// Whether the source is paused, and how often it was.
    paused: bool,
    pauses: u64,
    prefetch: Prefetch,
    /// How many subscriptions there were.
    subscriptions: u64,
    /// The queue's name where it is a stream.
    stream: Option<String>,
}

/// The subscription that the worker wants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It ends, as the pause of this number says.
    End { pauses: u64 },
    /// It begins again.
    Begin,
    /// It is to have this larger prefetch.
    More(u16),
    /// It is to have this smaller one: messages are too large for the present one.
    Less(u16),
}

impl Shared {
    pub(crate) fn new(keeps_originals: bool, prefetch_max: u16) -> Self {
        let state = State { prefetch: Prefetch::new(prefetch_max), ..State::default() };
        Self { state: Mutex::new(state), keeps_originals, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel begins, and with it another one of its connection, for counting.
    pub(crate) fn begin(&self, channel: Channel, counting: Channel) {
        let mut state = self.lock();
        state.epochs += 1;
        (state.channel, state.counting, state.lost_at) = (Some(channel), Some(counting), None);
    }

    /// The channel for counting; `None` while there is no connection.
    pub(crate) fn counting(&self) -> Option<Channel> {
        self.lock().counting.clone()
    }

    /// The channel is over: every handle of it is stale, and its deliveries come back.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        if state.channel.take().is_none() {
            return;
        }
        state.counting = None;
        state.lost_at = Some(Instant::now());
        let assignments = vec![state.epoch()];
        state.revocations.push_back(Revocation { assignments, drained: None });
        (state.unsettled, state.unsettled_bytes) = (0, 0);
        state.buffer.clear();
        drop(state);
        self.arrived.notify_one();
    }

    /// For how long the broker has been lost.
    pub(crate) fn unreachable_for(&self) -> Option<Duration> {
        self.lock().lost_at.map(|at| at.elapsed())
    }

    /// From now on a larger prefetch has to be earned, because the queue may drop messages that are delivered too often.
    pub(crate) fn be_careful(&self) {
        self.lock().prefetch.be_careful();
    }

    /// Whether the subscription has as many messages in hand as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().prefetch.is_full()
    }

    /// The prefetch with which a subscription begins.
    pub(crate) fn first_prefetch(&self) -> u16 {
        self.lock().prefetch.first()
    }

    pub(crate) fn pause(&self) {
        let mut state = self.lock();
        state.paused = true;
        state.pauses += 1;
        drop(state);
        self.wished.notify_one();
    }

    pub(crate) fn resume(&self) {
        self.lock().paused = false;
        self.wished.notify_one();
        self.arrived.notify_one();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.lock().paused
    }

    pub(crate) fn pauses(&self) -> u64 {
        self.lock().pauses
    }

    /// A subscription begins. Returns how many deliveries of the one before are not settled.
    pub(crate) fn subscribed(&self, prefetch: u16) -> usize {
        let mut state = self.lock();
        state.subscriptions += 1;
        state.prefetch.begin(prefetch);
        let unsettled = state.unsettled;
        drop(state);
        self.arrived.notify_one();
        unsettled
    }

    /// Waits for something to do about the subscription. `pauses` were obeyed.
    pub(crate) async fn wish(&self, pauses: u64, is_subscribed: bool) -> Wish {
        loop {
            if let Some(wish) = self.lock().wish(pauses, is_subscribed) {
                return wish;
            }
            self.wished.notified().await;
        }
    }

    /// The channel has delivered a payload of this many bytes, which counts from now on. Returns how many are not settled.
    pub(crate) fn note(&self, bytes: usize) -> usize {
        let mut state = self.lock();
        state.unsettled += 1;
        state.unsettled_bytes += bytes;
        state.prefetch.delivered(bytes);
        state.unsettled
    }

    /// Whether a payload of this many bytes may be kept where a smaller prefetch is to take effect. A single one may,
    /// however large it is.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let state = self.lock();
        state.unsettled == 0 || state.unsettled_bytes.saturating_add(bytes) <= UNSETTLED_BYTES_MAX
    }

    /// Whether messages are too large for the present prefetch.
    pub(crate) fn wants_less(&self) -> bool {
        matches!(self.lock().prefetch.better(), Some(Better::Less(_)))
    }

    /// Takes in the deliveries that were noted.
    pub(crate) fn deliver(&self, deliveries: impl Iterator<Item = lapin::message::Delivery>) {
        let (epoch, subscription) = {
            let state = self.lock();
            (state.epoch(), state.subscriptions)
        };
        for delivery in deliveries {
            // Outside the lock, because a large payload takes time, and settlements must not wait for it.
            let delivery = self.message(delivery, epoch, subscription);
            self.lock().buffer.push_back(delivery);
        }
        self.arrived.notify_one();
    }

    fn message(&self, delivery: lapin::message::Delivery, epoch: Assignment, subscription: u64) -> AmqpDelivery {
        let bytes = delivery.data.len();
        let (message, attempt) = message::message(
            delivery.exchange.as_str(),
            delivery.routing_key.as_str(),
            &delivery.properties,
            delivery.data,
        );
        let redelivered = delivery.redelivered;
        let suspect = redelivered && message::is_suspect(&delivery.properties, attempt);
        // Facts that the message itself has are not kept twice.
        let is_all_told = is_all_told(&delivery.properties);
        let original = (self.keeps_originals || !is_all_told).then(|| {
            let content = self.keeps_originals.then(|| Content {
                exchange: delivery.exchange.to_string(),
                routing_key: delivery.routing_key.to_string(),
                payload: message.payload().cloned().unwrap_or_default(),
            });
            Arc::new(Original { properties: delivery.properties, content })
        });
        let message = match &original {
            Some(original) if !is_all_told => {
                let bytes = original.properties.headers().as_ref().map_or(0, size);
                message.with_original(Arc::clone(original) as _, bytes)
            }
            Some(_) | None => message,
        };
        let original = original.filter(|_| self.keeps_originals);
        let handle = AmqpHandle { epoch, tag: delivery.delivery_tag, subscription, bytes, original };
        Delivery { message, attempt, redelivered, suspect, assignment: epoch, handle }
    }

    /// The next thing to hand over. Nothing is lost if the caller is dropped: whatever is taken is returned at once.
    pub(crate) async fn receive(&self, max: usize) -> Result<Received<AmqpHandle>, SourceError> {
        loop {
            if let Some(answer) = self.lock().next(max, self.stopping.is_cancelled()) {
                return answer;
            }
            tokio::select! {
                () = self.arrived.notified() => {}
                () = self.stopping.cancelled() => {}
            }
        }
    }

    /// The queue of this name is a stream, of which nothing is handed over.
    pub(crate) fn is_a_stream(&self, queue: &str) {
        self.lock().stream = Some(queue.to_owned());
        self.arrived.notify_one();
    }

    pub(crate) fn fail(&self, failure: SourceError) {
        self.lock().failure = Some(failure);
        self.arrived.notify_one();
    }

    /// The tags of the messages that were not handed over, which are to be given back.
    pub(crate) fn take_buffer(&self) -> Vec<u64> {
        let mut state = self.lock();
        let handles: Vec<_> = state.buffer.drain(..).map(|delivery| delivery.handle).collect();
        state.settled(&handles);
        handles.into_iter().map(|handle| handle.tag).collect()
    }

    /// Whether everything that was delivered was handed over.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().buffer.is_empty()
    }

    /// The channel on which these may be settled, and those of its epoch.
    pub(crate) fn settling(&self, handles: &[(AmqpHandle, Settle)]) -> (Option<Channel>, Vec<bool>) {
        let mut state = self.lock();
        let epoch = state.channel.as_ref().filter(|channel| channel.status().connected()).map(|_| state.epoch());
        let current: Vec<bool> = handles.iter().map(|(handle, _)| Some(handle.epoch) == epoch).collect();
        let settled = || handles.iter().zip(&current).filter(|(_, current)| **current).map(|(handle, _)| handle);
        state.settled(settled().map(|(handle, _)| handle));
        let acknowledged = settled().filter(|(_, settle)| matches!(settle, Settle::Acknowledge(_))).count();
        state.prefetch.acknowledged(acknowledged as u64);
        if state.prefetch.better().is_some() {
            self.wished.notify_one();
        }
        (state.channel.clone(), current)
    }
}

impl State {
    fn epoch(&self) -> Assignment {
        Assignment(self.epochs)
    }

    /// These are the broker's again, or acknowledged.
    fn settled<'a>(&mut self, handles: impl IntoIterator<Item = &'a AmqpHandle>) {
        for handle in handles {
            self.unsettled = self.unsettled.saturating_sub(1);
            self.unsettled_bytes = self.unsettled_bytes.saturating_sub(handle.bytes);
            if handle.subscription == self.subscriptions {
                self.prefetch.settled();
            }
        }
    }

    fn wish(&self, pauses: u64, is_subscribed: bool) -> Option<Wish> {
        if self.pauses != pauses {
            Some(Wish::End { pauses: self.pauses })
        } else if !self.paused && !is_subscribed {
            Some(Wish::Begin)
        } else {
            self.prefetch.better().filter(|_| is_subscribed).map(|better| match better {
                Better::More(prefetch) => Wish::More(prefetch),
                Better::Less(prefetch) => Wish::Less(prefetch),
            })
        }
    }

    fn next(&mut self, max: usize, stopped: bool) -> Option<Result<Received<AmqpHandle>, SourceError>> {
        if stopped {
            return Some(Ok(Received::End));
        }
        if let Some(queue) = &self.stream {
            return Some(Err(attach::stream(queue)));
        }
        if let Some(failure) = self.failure.take() {
            return Some(Err(failure));
        }
        if let Some(revocation) = self.revocations.pop_front() {
            return Some(Ok(Received::Revoked(revocation)));
        }
        let is_shut = self.paused || self.prefetch.holds_back();
        let count = if is_shut { 0 } else { max.min(self.buffer.len()) };
        (count > 0).then(|| Ok(Received::Deliveries(self.buffer.drain(..count).collect())))
    }
}

impl AmqpHandle {
    /// Settles on the channel. Done once it is written; the broker does not answer.
    pub(crate) async fn settle(self, settle: Settle, channel: &Channel, retry: Option<&RetryQueue>) -> Settled {
        let sent = match settle {
            Settle::Acknowledge(_) | Settle::DeadLetter(_) => {
                channel.basic_ack(self.tag, BasicAckOptions::default()).await
            }
            Settle::Release { after } if self.is_put_off(after, retry).await => {
                channel.basic_ack(self.tag, BasicAckOptions::default()).await
            }
            Settle::Release { .. } => give_back(channel, self.tag).await,
        };
        if sent.is_ok() { Settled::Settled } else { Settled::Unknown }
    }

    /// Whether the retry queue has it now.
    async fn is_put_off(&self, after: Duration, retry: Option<&RetryQueue>) -> bool {
        let (Some(retry), Some(original), false) = (retry, &self.original, after.is_zero()) else { return false };
        let put = retry.put(original, after).await;
        if let Err(error) = &put {
            let error = error as &dyn std::error::Error;
            tracing::warn!(error, "a message was not put into the retry queue; it is given back, and comes at once");
        }
        put.is_ok()
    }
}

/// `nack`, because from RabbitMQ 4.3 on `reject` counts towards the delivery limit, and nothing has failed here.
pub(crate) async fn give_back(channel: &Channel, tag: u64) -> lapin::Result<()> {
    channel.basic_nack(tag, BasicNackOptions { requeue: true, multiple: false }).await
}
