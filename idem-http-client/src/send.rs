//! [`IdempotentClient`]: tries until the outcome is known.

use std::{fmt, future::poll_fn, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Limited};
use idem_core::BoxError;
use tower_service::Service;

use super::{
    Answer, Ended, Indeterminate, Intent, KeyState, KeyStateKind, Meaning, PrepareRequestError, Profile, Refusal,
    Retries, Undecided, ask,
    clock::wall_clock,
    judge::{Judged, judge},
    prepare::Prepared,
    window::Window,
};

/// How much longer than the server's own wait its answer to a question may take.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// A client that sends each intent until its outcome is known. See the [module](super).
///
/// It sends over any tower `Service` of `http` requests that can be cloned for each try, such as [`Reqwest`](super::Reqwest).
#[derive(Clone)]
pub struct IdempotentClient<C> {
    service: C,
    profile: Profile,
    retries: Retries,
    route: Option<String>,
}

/// The knowledge from the tries so far.
#[derive(Debug, Default)]
struct Seen {
    tries: u32,
    /// An earlier call has tried before.
    is_resumed: bool,
    /// A try may have been carried out, and no answer says whether.
    open: bool,
    /// The last answer was a refusal that may have been given for its own try alone.
    is_unconfirmed: bool,
    last: Option<Answer>,
}

/// The step after a try.
enum Step {
    End(Box<Ended>),
    Again(Option<Duration>),
    Stop(Undecided),
}

/// The outcome of one try.
enum Tried {
    Answered(Response<Bytes>),
    /// An answer that did not arrive in full.
    TooLarge(Response<Bytes>),
    Lost,
}

impl<C, B> IdempotentClient<C>
where
    C: Service<Request<Bytes>, Response = Response<B>> + Clone + Send + Sync,
    C::Error: Into<BoxError>,
    C::Future: Send,
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    /// A client for this provider, with [`Retries::default`].
    pub fn new(service: C, profile: Profile) -> Self {
        Self { service, profile, retries: Retries::default(), route: None }
    }

    /// Sets how long the client tries, and its pauses.
    #[must_use]
    pub fn retries(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the name, such as `POST /payments`, under which the server lets its keys [be asked about](Profile::status_endpoint), for the requests of
    /// this client; clone it for each route. Without it the client asks by method and path of its request, which name no route where a
    /// gateway gives it another path: the server then tells nothing of the key.
    #[must_use]
    pub fn route(mut self, name: impl Into<String>) -> Self {
        self.route = Some(name.into());
        self
    }

    /// The provider's profile.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Sends the request under the intent's key until its outcome is known, or until another try might be a second order.
    ///
    /// All tries send the same bytes. Send the same request for the same intent in later calls too: most providers
    /// [refuse](Refusal::KeyReused) another one, and some answer it with the first one's answer.
    ///
    /// # Errors
    /// [`PrepareRequestError`] if the key would not arrive unchanged. Nothing was sent.
    ///
    /// # Cancel safety
    /// A dropped call leaves its outcome unknown, as a lost answer does: send the same intent again, with the time of this call as
    /// [`Intent::first_tried_at`].
    pub async fn send(&self, intent: &Intent, request: Request<Bytes>) -> Result<Ended, PrepareRequestError> {
        let prepared = Prepared::new(&self.profile, intent, request)?;
        // A try of an earlier call may have been left without an answer.
        let is_resumed = intent.tried_first().is_some();
        let mut seen = Seen { open: is_resumed, is_resumed, ..Seen::default() };
        let window = match Window::open(&self.profile, &self.retries, intent) {
            Ok(window) => window,
            Err(why) => {
                let since = intent.tried_first().unwrap_or_else(wall_clock);
                return Ok(Ended::Indeterminate(doubt(since, prepared, why, seen, None)));
            }
        };
        let mut pause = Duration::ZERO;
        let why = loop {
            match window.time_for_a_try(pause) {
                Ok(_) if seen.tries >= self.retries.tries_max.max(1) => break Undecided::Deadline,
                Ok(_) => tokio::time::sleep(pause).await,
                Err(why) => break why,
            }
            // The pause may have lasted longer than it was to: the machine may have been suspended in it (W122).
            let within = match window.time_for_a_try(Duration::ZERO) {
                Ok(within) => within,
                Err(why) => break why,
            };
            let asked = match self.step(&prepared, within, &mut seen).await {
                Step::End(ended) => return Ok(*ended),
                Step::Stop(why) => break why,
                Step::Again(asked) => asked,
            };
            pause = self.retries.pause(seen.tries, asked, fastrand::f64());
            tracing::debug!(
                idem.provider = self.profile.name(), idem.key = %prepared.key, tries = seen.tries, pause = ?pause,
                status = seen.last.as_ref().map(|last| last.response.status().as_u16()), "not known yet; the same key is tried again"
            );
        };
        Ok(self.give_up(prepared, window, seen, why).await)
    }

    /// Makes one try, and notes its outcome.
    async fn step(&self, prepared: &Prepared, within: Duration, seen: &mut Seen) -> Step {
        seen.tries += 1;
        // A server that can be asked about keys runs idem, which looks a repeat up that says it is one.
        let attempt = self.profile.status_endpoint.as_ref().map(|_| seen.tries + u32::from(seen.is_resumed));
        let response = match self.try_once(prepared.request(attempt), within).await {
            Tried::Answered(response) => response,
            Tried::TooLarge(response) => {
                seen.open = true;
                seen.last = Some(Answer { response, tries: seen.tries, replayed: false });
                return Step::Stop(Undecided::AnswerTooLarge);
            }
            Tried::Lost => {
                seen.open = true;
                return Step::Again(None);
            }
        };
        let Judged { meaning, after, replayed } = judge(&self.profile, &response);
        // An earlier try of this very request may itself have caused a conflict, or a condition that no longer holds; or it is still on
        // its way. So only an answer that is known to be the key's own counts as a refusal: one more try shows whether it is kept. Where a
        // provider does not mark its repeats, its promise counts.
        let marks_repeats = self.profile.replayed.is_some();
        let own = !seen.open
            || replayed.is_some()
            || !marks_repeats && !matches!(response.status().as_u16(), 409 | 410 | 412);
        let answer = Answer { response, tries: seen.tries, replayed: replayed == Some(true) };
        let end = |ended| Step::End(Box::new(ended));
        match meaning {
            Meaning::Answer => return end(Ended::Known(answer)),
            Meaning::Refused if own => return end(Ended::Refused(answer, Refusal::Operation)),
            Meaning::Refused if marks_repeats && !std::mem::replace(&mut seen.is_unconfirmed, true) => {
                seen.last = Some(answer);
                return Step::Again(after);
            }
            Meaning::KeyReused => return end(Ended::Refused(answer, Refusal::KeyReused)),
            Meaning::NotTaken if !seen.open => return end(Ended::Refused(answer, Refusal::Request)),
            Meaning::Refused | Meaning::NotTaken | Meaning::NotYet => {}
            Meaning::InProgress | Meaning::Failed | Meaning::KeptFailure | Meaning::AnswerGone => seen.open = true,
        }
        seen.last = Some(answer);
        match meaning {
            Meaning::NotTaken | Meaning::Refused => Step::Stop(Undecided::NotAccepted),
            Meaning::KeptFailure => Step::Stop(Undecided::KeptFailure),
            Meaning::AnswerGone => Step::Stop(Undecided::AnswerGone),
            Meaning::NotYet | Meaning::InProgress | Meaning::Failed | Meaning::Answer | Meaning::KeyReused => {
                Step::Again(after)
            }
        }
    }

    /// Sends once and reads the whole answer. An answer that is cut off, hangs, or arrives in part is lost.
    async fn try_once(&self, request: Request<Bytes>, within: Duration) -> Tried {
        let mut service = self.service.clone();
        let max = self.retries.answer_bytes_max;
        let sent = async {
            poll_fn(|context| service.poll_ready(context)).await.map_err(Into::into)?;
            let (parts, body) = service.call(request).await.map_err(Into::into)?.into_parts();
            let collected = Limited::new(body, max).collect().await.map(|body| body.to_bytes());
            Ok::<_, BoxError>((parts, collected))
        };
        match tokio::time::timeout(within, sent).await {
            Ok(Ok((parts, Ok(body)))) => Tried::Answered(Response::from_parts(parts, body)),
            Ok(Ok((parts, Err(error)))) if error.is::<http_body_util::LengthLimitError>() => {
                Tried::TooLarge(Response::from_parts(parts, Bytes::new()))
            }
            Ok(Ok((_, Err(error))) | Err(error)) => {
                tracing::debug!(
                    idem.provider = self.profile.name(),
                    error = &*error as &dyn std::error::Error,
                    "an answer was lost"
                );
                Tried::Lost
            }
            Err(_) => Tried::Lost,
        }
    }

    /// Ends the tries. Asks the server about the key if it can be asked, and fetches its answer if it has one.
    async fn give_up(&self, prepared: Prepared, window: Window, mut seen: Seen, why: Undecided) -> Ended {
        if seen.tries > 0 && !seen.open && why != Undecided::NotAccepted {
            // Every try was answered, and none was carried out.
            if let Some(last) = seen.last {
                return Ended::Refused(last, Refusal::Busy);
            }
        }
        let state = self.ask(&prepared).await;
        let is_there = state.as_ref().is_some_and(|state| match state.kind {
            KeyStateKind::Completed | KeyStateKind::Failed => true,
            KeyStateKind::Unknown
            | KeyStateKind::InProgress
            | KeyStateKind::Uncertain
            | KeyStateKind::AnswerNotKept => false,
        });
        // A server that names no route may have told of another operation with this key, which says nothing of how long this one is known.
        let of_this = state.as_ref().filter(|state| state.route.is_some());
        let key_expires = of_this.and_then(|state| state.key_expires);
        if is_there
            && let Some(within) = window.time_to_fetch(key_expires)
            && let Step::End(ended) = self.step(&prepared, within, &mut seen).await
        {
            return *ended;
        }
        let gone = of_this.is_some_and(|state| state.kind == KeyStateKind::AnswerNotKept);
        let why = if gone { Undecided::AnswerGone } else { why };
        Ended::Indeterminate(doubt(window.since, prepared, why, seen, state))
    }

    async fn ask(&self, prepared: &Prepared) -> Option<KeyState> {
        let path = self.profile.status_endpoint.as_deref()?;
        let question = ask::question(prepared, path, self.route.as_deref(), self.retries.ask_for)?;
        match self.try_once(question, self.retries.ask_for.saturating_add(ASKED_WITHIN)).await {
            Tried::Answered(response) => ask::state(&response),
            Tried::TooLarge(_) | Tried::Lost => None,
        }
    }
}

fn doubt(
    since: std::time::SystemTime,
    prepared: Prepared,
    why: Undecided,
    seen: Seen,
    state: Option<KeyState>,
) -> Indeterminate {
    Indeterminate { since, key: prepared.key, why, tries: seen.tries, last: seen.last, state }
}

impl<C> fmt::Debug for IdempotentClient<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentClient")
            .field("profile", &self.profile)
            .field("retries", &self.retries)
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
