use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::names::OrderingKey;

/// A job in small: `id` is the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Small {
    id: u32,
    hold_key: HoldKey,
    alone: bool,
    wants_look: bool,
}

impl Queued for Small {
    fn hold_key(&self) -> HoldKey {
        self.hold_key.clone()
    }

    fn alone(&self) -> bool {
        self.alone
    }

    fn wants_look(&self) -> bool {
        self.wants_look
    }
}

fn key(key: u8) -> HoldKey {
    HoldKey::Order(OrderingKey::new(vec![key]))
}

fn small(id: u32, of: u8) -> Small {
    Small { id, hold_key: key(of), alone: false, wants_look: false }
}

fn alone(id: u32, of: u8) -> Small {
    Small { alone: true, ..small(id, of) }
}

fn look(id: u32, of: u8) -> Small {
    Small { wants_look: true, ..alone(id, of) }
}

fn queue(jobs: impl IntoIterator<Item = Small>) -> Queue<Small> {
    let mut queue = Queue::new();
    queue.push(jobs);
    queue
}

/// How many, of which kind, by id: `together`, `look` or `alone`.
fn ids(next: &Next<Small>) -> (&'static str, Vec<u32>) {
    let of = |jobs: &[Small]| jobs.iter().map(|job| job.id).collect();
    match next {
        Next::Nothing => ("nothing", Vec::new()),
        Next::Together(jobs) => ("together", of(jobs)),
        Next::Look(jobs) => ("look", of(jobs)),
        Next::Alone(job) => ("alone", vec![job.id]),
    }
}

fn took(queue: &mut Queue<Small>, max: usize) -> (&'static str, Vec<u32>) {
    ids(&queue.take(max, false))
}

fn start() -> Instant {
    Instant::now()
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_batch_takes_at_most_max_in_the_order_of_arrival() {
    let mut queue = queue((0..5).map(|id| small(id, id as u8)));
    assert_eq!(took(&mut queue, 3), ("together", vec![0, 1, 2]));
    assert_eq!(took(&mut queue, 3), ("together", vec![3, 4]));
    assert_eq!(took(&mut queue, 3), ("nothing", vec![]));
}

/// D1: the culprits of a failed batch come alone, and the rest stays one batch.
#[test]
fn d1_culprits_come_alone_while_the_rest_stays_one_batch() {
    let jobs = (0..100).map(|id| if id % 10 == 3 { alone(id, id as u8) } else { small(id, id as u8) });
    let mut queue = queue(jobs);
    let (kind, rest) = took(&mut queue, 100);
    assert_eq!((kind, rest.len()), ("together", 90));
    assert!(rest.iter().all(|id| id % 10 != 3) && rest.is_sorted());
    for culprit in (3..100).step_by(10) {
        assert_eq!(took(&mut queue, 100), ("alone", vec![culprit]));
    }
    assert_eq!(took(&mut queue, 100), ("nothing", vec![]));
}

/// D7: jobs behind a culprit in its key do not overtake it.
#[test]
fn d7_what_follows_a_culprit_in_its_key_waits_behind_it() {
    let mut queue = queue([small(0, 1), alone(1, 2), small(2, 2), small(3, 1), alone(4, 1), small(5, 1), small(6, 3)]);
    assert_eq!(took(&mut queue, 10), ("together", vec![0, 3, 6]));
    assert_eq!(took(&mut queue, 10), ("alone", vec![1]));
    assert_eq!(took(&mut queue, 10), ("together", vec![2]));
    assert_eq!(took(&mut queue, 10), ("alone", vec![4]));
    assert_eq!(took(&mut queue, 10), ("together", vec![5]));
}

/// D7, P: a held message holds those behind it in its key, and no others.
#[test]
fn d7_a_held_key_waits_as_a_whole_and_stops_nobody_else() {
    let mut queue = queue([small(0, 1), small(1, 2), small(2, 1)]);
    let Next::Together(mut batch) = queue.take(1, false) else { panic!("there is one") };
    let now = start();
    queue.hold(batch.remove(0), now + SECOND);
    queue.push([small(3, 1)]);
    assert_eq!(took(&mut queue, 10), ("together", vec![1]));
    assert_eq!(took(&mut queue, 10), ("nothing", vec![]));
    assert_eq!(queue.next_due(), Some(now + SECOND));
    queue.release_due(now + SECOND - Duration::from_nanos(1));
    assert_eq!(took(&mut queue, 10), ("nothing", vec![]));
    queue.push([small(4, 1)]);
    queue.release_due(now + SECOND);
    assert_eq!((took(&mut queue, 10), queue.next_due()), (("together", vec![0, 2, 3, 4]), None));
}

/// During probation and with effects outside, everything is looked up in batches and then runs alone.
#[test]
fn in_probation_everything_is_looked_up_together_and_runs_alone() {
    let mut queue = queue([look(0, 1), look(1, 1), look(2, 2), small(3, 3), look(4, 4)]);
    assert_eq!(ids(&queue.take(2, true)), ("look", vec![0, 1]));
    assert_eq!(ids(&queue.take(9, true)), ("look", vec![2]), "a job that needs no look ends the look-up");
    assert_eq!(ids(&queue.take(9, true)), ("alone", vec![3]));
    assert_eq!(ids(&queue.take(9, true)), ("look", vec![4]));
}

#[test]
fn what_is_put_back_comes_first_and_in_its_order() {
    let mut queue = queue([small(3, 1)]);
    queue.put_back([small(0, 1), small(1, 2), small(2, 1)]);
    assert_eq!(took(&mut queue, 9), ("together", vec![0, 1, 2, 3]));
}

/// D7: a unit of several that waits as a whole, such as one without a winner, comes back in its order.
#[test]
fn d7_several_messages_of_a_key_are_held_in_their_order() {
    let mut queue = queue((0..4).map(|id| small(id, 1)));
    let Next::Together(batch) = queue.take(3, false) else { panic!("there are some") };
    let now = start();
    batch.into_iter().zip(1..).for_each(|(job, seconds)| queue.hold(job, now + seconds * SECOND));
    queue.release_due(now + 2 * SECOND);
    assert_eq!(took(&mut queue, 9), ("nothing", vec![]), "the last wait counts for the key");
    queue.release_due(now + 3 * SECOND);
    assert_eq!(took(&mut queue, 9), ("together", vec![0, 1, 2, 3]));
}

#[test]
fn removing_takes_held_and_ready_jobs_in_order_and_frees_an_empty_key() {
    let mut queue = queue([small(1, 1), small(2, 2)]);
    queue.hold(small(0, 1), start() + SECOND);
    assert_eq!(took(&mut queue, 1), ("together", vec![2]));
    queue.push([small(3, 1)]);
    let removed: Vec<u32> = queue.remove(|job| job.hold_key == key(1)).iter().map(|job| job.id).collect();
    assert_eq!(removed, [0, 1, 3]);
    assert_eq!(queue.next_due(), None, "a key without jobs is not held");
    queue.push([small(4, 1)]);
    assert_eq!(took(&mut queue, 1), ("together", vec![4]));
}

/// The operations of a lane on its queue.
#[derive(Debug, Clone)]
enum Step {
    Push {
        key: u8,
        alone: bool,
        look: bool,
    },
    /// Takes, and ends each job that was taken as the bits say: done, held, put back, or put back to run alone.
    Take {
        max: usize,
        all_alone: bool,
        ends: Vec<u8>,
    },
    Wait(u64),
    Remove(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u8..4, proptest::bool::weighted(0.2), any::<bool>()).prop_map(|(key, alone, look)| Step::Push { key, alone, look }),
        4 => (1_usize..6, proptest::bool::weighted(0.2), proptest::collection::vec(0_u8..4, 6))
            .prop_map(|(max, all_alone, ends)| Step::Take { max, all_alone, ends }),
        2 => (0_u64..40).prop_map(Step::Wait),
        1 => (0_u8..4).prop_map(Step::Remove),
    ];
    proptest::collection::vec(step, 0..80)
}

/// The reference: for each key the jobs that are not done, in the order of arrival, and until when it is held.
#[derive(Default)]
struct Model {
    open: BTreeMap<u8, Vec<u32>>,
    held_until: BTreeMap<u8, Instant>,
}

impl Model {
    fn key_of(job: &Small) -> u8 {
        let HoldKey::Order(order) = &job.hold_key else { panic!("all have an ordering key") };
        order.as_bytes()[0]
    }

    /// Each key's jobs come as the oldest ones of the key, in order, from keys that are not held.
    fn took(&self, jobs: &[Small]) {
        let mut by_key: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
        jobs.iter().for_each(|job| by_key.entry(Self::key_of(job)).or_default().push(job.id));
        for (key, ids) in by_key {
            assert!(!self.held_until.contains_key(&key), "key {key} is held");
            assert!(self.open[&key].starts_with(&ids), "key {key}: took {ids:?} of {:?}", self.open[&key]);
        }
    }

    fn done(&mut self, job: &Small) {
        let open = self.open.get_mut(&Self::key_of(job)).expect("its key is open");
        let at = open.iter().position(|id| *id == job.id).expect("it is open");
        open.remove(at);
    }
}

/// Ends the jobs of one take as a lane does: a job behind one of its key that is not done is not done either, and one
/// that follows a held job is held behind it or put back.
fn end(queue: &mut Queue<Small>, model: &mut Model, jobs: Vec<Small>, ends: &[u8], now: Instant) {
    let (mut back, mut kept, mut returned) = (Vec::new(), HashSet::new(), HashSet::new());
    for (mut job, end) in jobs.into_iter().zip(ends.iter().cycle()) {
        let key = Model::key_of(&job);
        match end {
            0 if !kept.contains(&key) => model.done(&job),
            1 if !returned.contains(&key) => {
                kept.insert(key);
                let until = now + Duration::from_secs(10 + u64::from(job.id % 7));
                model.held_until.insert(key, until);
                queue.hold(job, until);
            }
            _ => {
                kept.insert(key);
                returned.insert(key);
                job.alone |= *end == 3;
                job.wants_look = false;
                back.push(job);
            }
        }
    }
    queue.put_back(back);
}

fn step(queue: &mut Queue<Small>, model: &mut Model, step: Step, now: &mut Instant, id: u32) {
    match step {
        Step::Push { key: of, alone, look } => {
            model.open.entry(of).or_default().push(id);
            queue.push([Small { id, hold_key: key(of), alone, wants_look: look }]);
        }
        Step::Take { max, all_alone, ends } => match queue.take(max, all_alone) {
            Next::Nothing => {
                let ready =
                    model.open.iter().filter(|(key, jobs)| !jobs.is_empty() && !model.held_until.contains_key(key));
                assert_eq!(ready.count(), 0, "something is ready");
            }
            Next::Together(jobs) => {
                assert!(!jobs.is_empty() && jobs.len() <= max && !all_alone);
                assert!(jobs.iter().all(|job| !job.alone));
                model.took(&jobs);
                end(queue, model, jobs, &ends, *now);
            }
            Next::Look(jobs) => {
                assert!(!jobs.is_empty() && jobs.len() <= max);
                assert!(jobs.iter().all(|job| job.wants_look && (job.alone || all_alone)));
                model.took(&jobs);
                end(queue, model, jobs, &ends, *now);
            }
            Next::Alone(job) => {
                assert!((job.alone || all_alone) && !job.wants_look);
                model.took(std::slice::from_ref(&job));
                end(queue, model, vec![job], &ends, *now);
            }
        },
        Step::Wait(seconds) => {
            *now += Duration::from_secs(seconds);
            queue.release_due(*now);
            model.held_until.retain(|_, until| *until > *now);
            assert_eq!(queue.next_due(), model.held_until.values().min().copied());
        }
        Step::Remove(of) => {
            let removed: Vec<u32> = queue.remove(|job| job.hold_key == key(of)).iter().map(|job| job.id).collect();
            assert_eq!(removed, model.open.remove(&of).unwrap_or_default());
            model.held_until.remove(&of);
        }
    }
}

/// Takes the remaining jobs, one by one.
fn run_out(queue: &mut Queue<Small>, model: &mut Model, now: Instant) {
    queue.release_due(now);
    model.held_until.clear();
    loop {
        let jobs = match queue.take(1, false) {
            Next::Nothing => break,
            Next::Together(jobs) | Next::Look(jobs) => jobs,
            Next::Alone(job) => vec![job],
        };
        model.took(&jobs);
        jobs.iter().for_each(|job| model.done(job));
    }
    assert!(model.open.values().all(Vec::is_empty), "lost: {:?}", model.open);
}

proptest! {
    /// D7, P: whatever a lane does, the order within each key is that of arrival, nothing of a held key is taken,
    /// nothing is lost or taken twice, and a job that must run alone never comes in a batch.
    #[test]
    fn d7_the_order_within_a_key_is_kept_and_nothing_is_lost(steps in steps()) {
        let (mut queue, mut model, mut now) = (Queue::new(), Model::default(), start());
        for (id, next) in (0..).zip(steps) {
            step(&mut queue, &mut model, next, &mut now, id);
        }
        run_out(&mut queue, &mut model, now + Duration::from_secs(3600));
    }
}
