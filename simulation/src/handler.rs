//! The user's code of a life: its handler's behaviour for each payload, the first few times and then.

use std::{sync::Arc, time::Duration};

use idem_core::{
    Effects, Event, Handler, HandlerError, Message, ResultBody, Tx,
    handler::{BatchAnswer, BatchHandler},
    outbox::PublishError,
};
use idem_testkit::MemoryStore;

use crate::{
    receivers::{self, Of},
    scenario::Behaviour,
    world::{ACCOUNTS, EFFECTS, SECONDS, World},
};

/// The handler of one process.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedHandler {
    pub(crate) world: Arc<World>,
    pub(crate) process: usize,
}

impl Handler<MemoryStore> for SimulatedHandler {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.one(message, tx).await
    }
}

impl BatchHandler<MemoryStore> for SimulatedHandler {
    async fn handle_batch(
        &self,
        messages: &[&Message],
        tx: &mut Tx<'_, MemoryStore>,
    ) -> Result<BatchAnswer, HandlerError> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            let done = self.one(message, tx).await;
            // The transaction is spoilt for all of them.
            if done.as_ref().is_err_and(is_of_the_store) {
                return done.map(|()| BatchAnswer::all_handled());
            }
            answers.push(done);
        }
        Ok(if answers.iter().all(Result::is_ok) { BatchAnswer::all_handled() } else { BatchAnswer::each(answers) })
    }
}

/// The store's own failures are not the handler's doing.
fn is_of_the_store(error: &HandlerError) -> bool {
    error.downcast_ref::<idem_testkit::MemoryError>().is_some()
}

impl SimulatedHandler {
    async fn one(&self, message: &Message, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let content = self.world.content(message);
        let (run, before) = self.world.begin(self.process, content);
        let _under_way = UnderWay { world: &self.world, run };
        if self.world.scenario.effects == Effects::Outside {
            self.world.called(content, message.derived_key("charge").to_string());
        }
        let done = match self.tell(content, run, message, tx) {
            Ok(()) => self.run(content, run, before, tx).await,
            Err(refused) => Err(refused.into()),
        };
        let (how, own_failure) = match &done {
            Ok(()) => ("is done", false),
            Err(error) => ("fails", !is_of_the_store(error)),
        };
        self.world.returned(run, how, own_failure);
        done
    }

    async fn run(
        &self,
        content: usize,
        run: usize,
        before: u32,
        tx: &mut Tx<'_, MemoryStore>,
    ) -> Result<(), HandlerError> {
        match self.world.behaviour(content) {
            Behaviour::Good(milliseconds) => {
                self.add(content, tx).await?;
                if milliseconds > 0 {
                    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                }
                self.append(content, run, tx).await?;
                return self.append_second(content, run, tx).await;
            }
            Behaviour::FailsFor(times) if before < times => return Err(HandlerError::transient("not yet")),
            Behaviour::FailsAlways => return Err(HandlerError::transient("never")),
            Behaviour::Permanent => return Err(HandlerError::permanent("cannot succeed")),
            Behaviour::PanicsFor(times) if before < times => {
                self.world.returned(run, "panics", true);
                #[allow(clippy::panic, reason = "handlers panic")]
                std::panic::panic_any(UsersOwn);
            }
            Behaviour::HangsFor(times) if before < times => {
                self.world.returned(run, "hangs", true);
                std::future::pending::<()>().await;
            }
            Behaviour::SwallowsFor(times) if before < times => {
                self.write(content, run, tx).await?;
                tx.connection().fail_unread();
                let _ = self.append_second(content, run, tx).await;
                self.world.returned(run, "has swallowed an error", false);
                return Ok(());
            }
            Behaviour::LosesConnectionFor(times) if before < times => {
                self.write(content, run, tx).await?;
                tx.connection().lose_connection();
                return Err(idem_testkit::MemoryError::ConnectionLost.into());
            }
            Behaviour::CommitsFor(times) if before < times => {
                self.write(content, run, tx).await?;
                // The result is ignored: idem has to notice.
                let _ = tx.connection().raw_commit().await;
                let _ = self.append_second(content, run, tx).await;
                self.world.returned(run, "has sent a COMMIT", false);
                return Ok(());
            }
            Behaviour::KillsFor(times) if before < times => self.die().await,
            Behaviour::KillsAlways => self.die().await,
            Behaviour::FailsFor(_)
            | Behaviour::PanicsFor(_)
            | Behaviour::HangsFor(_)
            | Behaviour::SwallowsFor(_)
            | Behaviour::LosesConnectionFor(_)
            | Behaviour::CommitsFor(_)
            | Behaviour::KillsFor(_) => {}
        }
        self.write(content, run, tx).await?;
        self.append_second(content, run, tx).await
    }

    /// Publishes its events and sets its answer, before anything can go wrong.
    fn tell(
        &self,
        content: usize,
        run: usize,
        message: &Message,
        tx: &mut Tx<'_, MemoryStore>,
    ) -> Result<(), PublishError> {
        if self.world.scenario.telling.is_none() {
            return Ok(());
        }
        for (number, told) in self.world.scenario.contents[content].tells.iter().enumerate() {
            let of = Of::Content(content, number);
            let mut event = Event::to(&receivers::name(told.receiver)).label(&number.to_string()).body(of.to_string());
            if told.same_key {
                event = event.same_key();
            }
            if let Some(order) = told.order {
                event = event.ordering_key(order.to_string());
            }
            let id = tx.publish(message, event)?;
            self.world.published(of, id.as_str());
        }
        tx.set_result(message, ResultBody::new(run.to_string()))
    }

    async fn write(&self, content: usize, run: usize, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        self.add(content, tx).await?;
        self.append(content, run, tx).await
    }

    async fn add(&self, content: usize, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        for account in &self.world.scenario.contents[content].accounts {
            tx.connection().add(ACCOUNTS, &account.to_string(), 1).await?;
        }
        Ok(())
    }

    async fn append(&self, content: usize, run: usize, tx: &mut Tx<'_, MemoryStore>) -> Result<(), HandlerError> {
        let key = self.world.scenario.contents[content].scoped_key().unwrap_or_default();
        Ok(tx.connection().append(EFFECTS, &key, run.to_string()).await?)
    }

    /// The other half of its effect, where it has one.
    async fn append_second(
        &self,
        content: usize,
        run: usize,
        tx: &mut Tx<'_, MemoryStore>,
    ) -> Result<(), HandlerError> {
        let about = &self.world.scenario.contents[content];
        if about.writes_twice {
            let key = about.scoped_key().unwrap_or_default();
            tx.connection().append(SECONDS, &key, run.to_string()).await?;
        }
        Ok(())
    }

    async fn die(&self) {
        self.world.kill(self.process, 200);
        std::future::pending::<()>().await;
    }
}

/// A run, until its handler has returned or is dropped.
struct UnderWay<'w> {
    world: &'w World,
    run: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.world.known().running.remove(&self.run);
    }
}

/// The payload of a planned panic in the user's code; any other panic is a defect.
#[derive(Debug)]
pub(crate) struct UsersOwn;
