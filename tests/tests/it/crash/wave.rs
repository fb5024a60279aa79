//! The messages of producers between two crashes.

use fastrand::Rng;
use idem_testkit::memory::Queue;
use idem_tests::plan::{Act, Payment};

use super::ledger::{Body, Ledger, Sent};

/// How many accounts there are where the order within an account matters.
const ACCOUNTS: i64 = 5;

/// Makes messages of all kinds, in an order drawn from the seed.
#[derive(Debug)]
pub(crate) struct Producer {
    next: i64,
    /// Messages that succeed at the start of a wave; then lanes of this batch size take batches again.
    pub(crate) lead: usize,
    /// Messages that succeed among those that do not.
    pub(crate) rest: usize,
}

/// How many messages of a wave become dead letters at least.
pub(crate) const DEAD_LETTERS: u64 = 5;

impl Producer {
    pub(crate) fn new(lead: usize, rest: usize) -> Self {
        Self { next: 1, lead, rest }
    }

    /// A payment under a key of its own. A third of the keys are UUIDs, which the stores keep as they are.
    pub(crate) fn payment(&mut self, ledger: &Ledger, act: Act, rng: &mut Rng) -> Sent {
        let sequence = self.next;
        self.next += 1;
        let key = match rng.u8(..) % 3 {
            0 => format!("0191a2b3-c4d5-7{:03x}-8123-{sequence:012x}", rng.u16(..0x1000)),
            1 => format!("payment-{sequence}"),
            _ => format!("zahlung-{sequence}-ü"),
        };
        // Without order, messages of one account may meet on two lanes, and two batches of them in a deadlock. That is
        // resolved, but takes a second.
        let account = if ledger.ordered { sequence % ACCOUNTS } else { sequence };
        Sent { key, body: Body::Payment(Payment { sequence, account, cents: rng.i64(1..10_000), act }) }
    }

    fn special(&mut self, body: Body) -> Sent {
        self.next += 1;
        Sent { key: format!("malformed-{}", self.next), body }
    }

    /// Publishes a wave: payments, some of them sent twice, a conflict, some that fail, some that are malformed.
    pub(crate) fn wave(&mut self, ledger: &mut Ledger, queue: &Queue, rng: &mut Rng) {
        for _ in 0..self.lead {
            let payment = self.payment(ledger, Act::Succeed, rng);
            ledger.publish(queue, payment);
        }
        let mut acts = vec![Act::Succeed; self.rest];
        acts.extend([Act::FailOnce, Act::FailOnce, Act::FailAlways]);
        rng.shuffle(&mut acts);
        let mut wave: Vec<Sent> = acts.into_iter().map(|act| self.payment(ledger, act, rng)).collect();
        for body in [Body::Garbled, Body::Keyless, Body::TwoKeys] {
            let special = self.special(body);
            wave.insert(rng.usize(..=wave.len()), special);
        }
        let again: Vec<Sent> = (0..3).filter_map(|_| duplicate(ledger, &wave, rng)).collect();
        let conflict = wave.iter().find_map(conflict);
        for sent in again.into_iter().chain(conflict) {
            // Behind the original, so that the order within an account is that of the first sends.
            let original = wave.iter().position(|other| other.key == sent.key).map_or(0, |position| position + 1);
            wave.insert(rng.usize(original..=wave.len()), sent);
        }
        wave.into_iter().for_each(|sent| ledger.publish(queue, sent));
    }
}

/// A message that is sent again, of this wave or an earlier one.
fn duplicate(ledger: &Ledger, wave: &[Sent], rng: &mut Rng) -> Option<Sent> {
    let candidates: Vec<&Sent> =
        ledger.sent().chain(wave).filter(|sent| matches!(sent.body, Body::Payment(_))).collect();
    rng.choice(candidates).cloned()
}

/// The same key with another amount.
fn conflict(original: &Sent) -> Option<Sent> {
    let Body::Payment(payment) = &original.body else { return None };
    let other = Payment { cents: payment.cents + 1, ..payment.clone() };
    (payment.act == Act::Succeed).then(|| Sent { key: original.key.clone(), body: Body::Payment(other) })
}
