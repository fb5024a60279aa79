//! A process of a life: the real worker with the real consumer, started again whenever it dies or stops.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use idem_core::{
    CancellationToken, ConfigError, DedupConsumer, Retention, Tenant, Worker,
    cleanup::CleanupSettings,
    failpoint::Life,
    hash::HashRules,
    key::{Header, KEY_FIELD},
    results::RESULT_BYTES_MAX,
    worker::WorkerError,
};
use idem_testkit::MemoryStore;

use crate::{
    calls,
    handler::SimulatedHandler,
    identify::{Identifies, Numbered},
    journal::{Happened, Rule},
    receivers,
    source::CheckedSource,
    world::{Running, TENANT, World},
};

/// Runs a process until the life closes.
pub(crate) async fn keep(world: Arc<World>, process: usize) {
    while !world.closing.load(Ordering::SeqCst) {
        if world.is_kept_down.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        let (life, stop) = (begin_life(&world, process), CancellationToken::new());
        let running = Running { life: life.clone(), stop: stop.clone() };
        *world.places[process].running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        world.journal.note(&Happened::Started { process });
        let work = life.spawn(run(Arc::clone(&world), process, stop.clone()));
        tokio::select! {
            ended = work => {
                // The process is gone, and handlers that still hang with it.
                life.kill();
                // It may have been killed at that same moment, and is started again once.
                let died = world.places[process].died.notified();
                std::pin::pin!(died).as_mut().enable();
                note_polls(&world, process, &life);
                *world.places[process].running.lock().unwrap_or_else(PoisonError::into_inner) = None;
                let how = match ended {
                    Ok(how) => how,
                    Err(error) => Err(error.to_string()),
                };
                if let Err(error) = &how {
                    world.journal.breach(Rule::WorkerEnded, format!("process {process}: {error}"));
                }
                world.journal.note(&Happened::Ended { process, how: format!("{how:?}") });
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            () = world.places[process].died.notified() => {
                note_polls(&world, process, &life);
                let down = world.places[process].down.load(Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(down)).await;
            }
        }
    }
}

fn note_polls(world: &World, process: usize, life: &Life) {
    if process == 0 && world.first_polls.load(Ordering::SeqCst) == 0 {
        world.first_polls.store(life.polls(), Ordering::SeqCst);
    }
}

fn begin_life(world: &Arc<World>, process: usize) -> Life {
    // Weak, because the world holds the life.
    let world = Arc::downgrade(world);
    Life::new(move |life, task| {
        let Some(world) = world.upgrade() else { return };
        let place = &world.places[process];
        if world.journal.polled(process, task) && !world.is_cut.swap(true, Ordering::SeqCst) {
            world.journal.breach(Rule::Spins, format!("process {process}, task {task}"));
            world.closing.store(true, Ordering::SeqCst);
            world.cut.notify_one();
        }
        if world.is_cut.load(Ordering::SeqCst) || life.polls() >= place.dies_at.load(Ordering::SeqCst) {
            let down = place.down.load(Ordering::SeqCst);
            world.kill(process, down);
        }
    })
}

/// Ends well, or with what the worker died of.
async fn run(world: Arc<World>, process: usize, stop: CancellationToken) -> Result<&'static str, String> {
    let worker = worker(&world, process).map_err(|error| error.to_string())?;
    let ended = if world.scenario.telling.is_some() {
        tokio::select! {
            ended = worker.run(stop.clone().cancelled_owned()) => ended,
            Err(error) = calls::serve(Arc::clone(&world), process) => return Err(error.to_string()),
        }
    } else {
        worker.run(stop.clone().cancelled_owned()).await
    };
    match ended {
        Ok(_) if stop.is_cancelled() => Ok("stopped"),
        Ok(_) => Err("it ended by itself".to_owned()),
        // Handlers that hang outlast a stop, and a store that is down outlasts a start.
        Err(WorkerError::DrainDeadline { .. }) => {
            world.cut_off.fetch_add(1, Ordering::SeqCst);
            Ok("the drain deadline passed")
        }
        Err(WorkerError::Unreachable { .. }) => Ok("nothing could be reached"),
        Err(error) => {
            let causes = idem_core::internal::chain(&error).map(ToString::to_string).collect::<Vec<_>>();
            Err(causes.join(": "))
        }
    }
}

fn worker(world: &Arc<World>, process: usize) -> Result<Worker<MemoryStore, CheckedSource>, ConfigError> {
    let scenario = &world.scenario;
    let handler = SimulatedHandler { world: Arc::clone(world), process };
    let mut consumer = DedupConsumer::builder(Arc::clone(&world.store), world.consumer());
    consumer = if scenario.in_batches { consumer.batch_handler(handler) } else { consumer.handler(handler) }
        .effects(scenario.effects)
        .handler_deadline(scenario.deadline)
        .key_source(Header::new(KEY_FIELD))
        .retention(Retention::For(scenario.retention))
        .busy_timeout(scenario.busy_timeout)
        .commit_timeout(scenario.answer_timeout)
        .answer_timeout(scenario.answer_timeout)
        .lanes(scenario.lanes);
    let identifies = Identifies::are_needed(scenario).then(|| Identifies(Arc::clone(world)));
    if let Some(identifies) = &identifies {
        consumer = consumer.key_source(identifies.clone()).hash_rules(HashRules::new(identifies.clone()));
    }
    if scenario.rebinds() {
        let times = world.rebound.load(Ordering::SeqCst);
        consumer = consumer.handler_name(&format!("handler {times}")).hash_rules(Numbered::rules(times));
    }
    if scenario.tenants {
        consumer = match identifies {
            Some(identifies) => consumer.tenant_from(move |message| identifies.tenant(message)),
            None => consumer.tenant_from(|message| Tenant::new(message.headers().text(TENANT)?).ok()),
        };
    }
    if let Some(telling) = &scenario.telling {
        let receivers = (0..telling.receivers.len()).map(receivers::name);
        consumer = consumer.publish_to(receivers).keep_results(RESULT_BYTES_MAX);
    }
    let mut worker = Worker::builder(consumer.build()?, CheckedSource::new(world, process))
        .batch(scenario.batch)
        .in_flight(scenario.in_flight)
        .retry(scenario.retry)
        .on_conflict(scenario.on_conflict)
        .breaker(scenario.breaker)
        .control_every(scenario.control_every)
        .drain(scenario.drain)
        .cleanup(scenario.cleanup_every.map(|every| CleanupSettings::default().every(every)));
    if let Some(time) = scenario.cache_for {
        worker = worker.cache_for(time);
    }
    if scenario.publisher {
        worker = worker.publisher(world.dead_letters().publisher());
    }
    if scenario.telling.as_ref().is_some_and(|telling| process < telling.relays) {
        worker = worker.relay(|relay| receivers::routes(world, process, relay));
    }
    worker.build()
}
