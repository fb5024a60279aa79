//! The answer of a run's handler, beside the part that the engine keeps.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::Response;
use idem_core::{HandlerError, Ran, ResultBody, RunOnceError, WorkError, store::Store};

use super::{
    answer,
    error::{self, Judged, Wish},
    problem::Problem,
    run::Ended,
    state::Shared,
};

/// The response of the last run, apart from the part that is kept.
#[derive(Default)]
pub(crate) enum Made {
    #[default]
    Nothing,
    Own(Response<Bytes>),
    /// The run is rolled back, and ends so.
    Not(Ended),
}

/// Left by the work of a run for the code that began it.
#[derive(Default)]
pub(crate) struct Last(Mutex<Made>);

impl Last {
    pub(crate) fn take(&self) -> Made {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Leaves a handler's answer with its treatment, and gives the engine its part.
    pub(crate) fn judge<S: Store>(
        &self,
        response: Response<Bytes>,
        wish: Wish,
        shared: &Shared<S>,
        response_bytes_max: usize,
    ) -> Result<ResultBody, WorkError> {
        let limits = error::Limits::new(response_bytes_max, &shared.counts.misplaced);
        let (made, outcome) = match error::judge(response, wish, limits) {
            Judged::Keep(response) => {
                let kept = answer::kept(&response, &shared.kept_headers);
                (Made::Own(response), Ok(kept))
            }
            Judged::Refuse(response) => {
                let kept = answer::kept(&response, &shared.kept_headers);
                (Made::Own(response), Err(WorkError::final_result(kept)))
            }
            Judged::Drop(response) => return self.roll_back(Ended::Dropped(response)),
            Judged::Unfit(what) => return self.roll_back(Ended::Not(Problem::ResponseRefused(what))),
        };
        self.set(made);
        outcome
    }

    /// Has the engine roll back, and the run end so.
    pub(crate) fn roll_back(&self, ended: Ended) -> Result<ResultBody, WorkError> {
        self.set(Made::Not(ended));
        Err(WorkError::failed(HandlerError::permanent("its answer is not kept")))
    }

    /// How a run has ended, of which the engine says this.
    #[expect(clippy::result_large_err, reason = "it is passed on as it came, once a request")]
    pub(crate) fn ended(&self, ran: Result<Ran, RunOnceError>) -> Result<Ended, RunOnceError> {
        match (ran, self.take()) {
            (Ok(ran), Made::Own(response)) => Ok(Ended::Done(ran, Some(response))),
            (Ok(ran), Made::Nothing | Made::Not(_)) => Ok(Ended::Done(ran, None)),
            (Err(RunOnceError::Failed(_)), Made::Not(ended)) => Ok(ended),
            (Err(error), _) => Err(error),
        }
    }

    fn set(&self, made: Made) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = made;
    }
}
