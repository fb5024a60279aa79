//! Rows that are due: which of them may run, who has them, and how they end.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use idem_core::{
    Bytes, ConsumerName,
    dead_letter::{DUE_LEASE, DeadLetter, DeadLetterId, Due, DueEnd, DueFailure, DueRoom, PutAside},
    message::OrderingKey,
    store::{Ahead, RunId, ScopeId},
};

use super::{
    Books,
    dead_letters::{DeadLetterRow, Folding, RowState},
    storable,
};

type Sequence = (ScopeId, OrderingKey);

impl DeadLetterRow {
    pub(super) fn sequence(&self) -> Option<Sequence> {
        self.message.ordering_key().map(|key| (self.scope, key.clone()))
    }

    fn since(&self) -> Option<SystemTime> {
        match self.state {
            RowState::Over => None,
            RowState::Due(at) | RowState::Behind(at) => Some(at),
        }
    }

    /// Whether no run has it.
    fn is_free(&self, now: SystemTime) -> bool {
        self.taken.is_none_or(|(at, _)| now.duration_since(at).is_ok_and(|age| age > DUE_LEASE))
    }

    fn failed(&mut self, failure: &DueFailure, now: SystemTime) {
        let (seen, error) = (&mut self.seen, storable(&failure.error));
        (seen.reason, seen.error, self.last_at) = (failure.reason, error, now);
        if failure.attempts > 0 {
            seen.attempts = failure.attempts;
        }
        seen.fingerprint = failure.fingerprint.or(seen.fingerprint);
    }

    fn is_of(&self, run: RunId) -> bool {
        self.taken.is_some_and(|(_, by)| by == run)
    }
}

impl Books {
    pub(super) fn due_now(&mut self, ids: &[DeadLetterId], now: SystemTime) -> u64 {
        let (mut marked, mut scopes, mut sequences) = (0, BTreeSet::new(), BTreeSet::new());
        for id in ids {
            let may = |row: &&mut DeadLetterRow| {
                row.seen.payload_kept && (row.state == RowState::Over || row.waits && row.taken.is_none())
            };
            let Some(row) = self.find(*id).filter(may) else { continue };
            let sequence = row.sequence();
            row.state = if sequence.is_some() { RowState::Behind(now) } else { RowState::Due(now) };
            row.seen.replayed = None;
            row.waits = false;
            let (scope, key, hash) = (row.scope, row.seen.key.clone(), row.hash);
            sequences.extend(sequence);
            self.end_count(scope, key.as_ref(), hash);
            scopes.insert(scope);
            marked += 1;
        }
        self.lead(&sequences);
        // Once a request, however many it marks.
        scopes.into_iter().for_each(|scope| *self.epochs.entry(scope).or_default() += 1);
        marked
    }

    /// The first row of each of these ordering keys is its head, and no other.
    pub(super) fn lead(&mut self, sequences: &BTreeSet<Sequence>) {
        for sequence in sequences {
            let rows = || self.dead_letters.iter().filter(|row| row.sequence().as_ref() == Some(sequence));
            let waiting = rows().filter(|row| row.state != RowState::Over);
            let first = waiting.min_by_key(|row| (row.taken.is_none(), row.seen.id)).map(|row| row.seen.id);
            for row in self.dead_letters.iter_mut().filter(|row| row.sequence().as_ref() == Some(sequence)) {
                let Some(at) = row.since() else { continue };
                row.state = if Some(row.seen.id) == first { RowState::Due(at) } else { RowState::Behind(at) };
            }
        }
    }

    /// Heads whose rows were removed leave rows behind that nothing would let go.
    fn lead_orphans(&mut self, consumer: &ConsumerName) {
        let own = self.dead_letters.iter().filter(|row| row.consumer == *consumer);
        let led: BTreeSet<_> =
            own.clone().filter(|row| matches!(row.state, RowState::Due(_))).map(|row| row.scope).collect();
        let behind = own.filter(|row| matches!(row.state, RowState::Behind(_)) && !led.contains(&row.scope));
        let orphans = behind.filter_map(DeadLetterRow::sequence).collect();
        self.lead(&orphans);
    }

    /// Takes rows. `twice` hands out those of other runs too, `alone` rows whose head is not taken with them, and `early` rows before their
    /// time: defects.
    pub(super) fn take_due(
        &mut self,
        consumer: &ConsumerName,
        (run, room): (RunId, DueRoom),
        now: SystemTime,
        (twice, alone, early): (bool, bool, bool),
    ) -> Vec<Due> {
        self.lead_orphans(consumer);
        let own = || self.dead_letters.iter().filter(|row| row.consumer == *consumer && (twice || row.is_free(now)));
        let is_head = |row: &&DeadLetterRow| match row.state {
            RowState::Due(at) => at <= now || early,
            RowState::Behind(_) => alone,
            RowState::Over => false,
        };
        let mut heads: Vec<&DeadLetterRow> = own().filter(is_head).collect();
        heads.sort_by_key(|row| (row.since(), row.seen.id));
        let mut turns: Vec<(usize, &DeadLetterRow)> = heads
            .iter()
            .enumerate()
            .map(|(place, row)| (heads[..place].iter().filter(|before| before.scope == row.scope).count(), *row))
            .collect();
        turns.sort_by_key(|(turn, row)| (*turn, row.since(), row.seen.id));
        turns.truncate(room.rows as usize);
        let each_max = (room.rows as usize - turns.len()) / turns.len().max(1);
        let mut found: Vec<(usize, Option<SystemTime>, DeadLetterId, DeadLetterId)> = Vec::new();
        for (_, head) in turns {
            let (at, id) = (head.since(), head.seen.id);
            found.push((0, at, id, id));
            let is_follower =
                |row: &&DeadLetterRow| matches!(row.state, RowState::Behind(_)) && row.sequence() == head.sequence();
            let mut followers: Vec<_> =
                own().filter(is_follower).map(|row| (row.taken.is_none(), row.seen.id)).collect();
            followers.sort_unstable();
            let steps = followers.into_iter().take(each_max).enumerate();
            found.extend(steps.filter(|_| !alone).map(|(step, (_, follower))| (step + 1, at, id, follower)));
        }
        found.sort_unstable();
        let (mut bytes, mut taken) = (0, Vec::new());
        for (.., id) in found {
            let Some(row) = self.find(id).filter(|_| bytes < room.bytes) else { break };
            bytes += row.message.payload().map_or(0, Bytes::len) as u64;
            let was_taken = row.taken.replace((now, run)).is_some();
            let (scope, message, key) = (row.scope, row.message.clone(), row.seen.key.clone());
            let attempts = if row.waits { row.seen.attempts } else { 0 };
            let replayed = !row.waits;
            taken.push(Due { id, scope, message, key, attempts, replayed, was_taken });
        }
        taken
    }

    /// The rows of an ordering key that are not over.
    pub(in super::super) fn ahead(&self, scope: ScopeId, key: &OrderingKey, now: SystemTime) -> Ahead {
        let is_its = |row: &&DeadLetterRow| {
            row.state != RowState::Over && row.scope == scope && row.message.ordering_key() == Some(key)
        };
        let first = self.dead_letters.iter().filter(is_its).min_by_key(|row| (row.taken.is_none(), row.seen.id));
        match first {
            None => Ahead::Nothing,
            Some(row) if row.taken.is_some() || row.since().is_some_and(|at| at <= now) => Ahead::Runs,
            Some(_) => Ahead::Waits,
        }
    }

    /// Whether rows of any ordering key of these scopes are not over.
    pub(in super::super) fn anything_waits(&self, of: impl Fn(ScopeId) -> bool) -> bool {
        let waits = |row: &DeadLetterRow| row.state != RowState::Over && row.message.ordering_key().is_some();
        self.dead_letters.iter().any(|row| waits(row) && of(row.scope))
    }

    /// The row of this message that is not over.
    pub(super) fn not_over(&self, letter: &DeadLetter) -> Option<&DeadLetterRow> {
        let hash = letter.payload_hash().0;
        let is_its = |row: &&DeadLetterRow| {
            row.state != RowState::Over && row.scope == letter.scope && row.seen.key == letter.key && row.hash == hash
        };
        self.dead_letters.iter().filter(|_| letter.key.is_some()).find(is_its)
    }

    /// Keeps a message as a row until a time, unless a row of it is not over.
    /// `twice` writes another one all the same: a defect.
    /// `alone` lets none of its ordering key wait before it: another one.
    pub(super) fn put_aside(
        &mut self,
        letter: &DeadLetter,
        now: SystemTime,
        after: Duration,
        (twice, alone): (bool, bool),
    ) -> PutAside {
        if let Some(row) = self.not_over(letter).filter(|_| !twice) {
            return PutAside::Known(row.seen.id);
        }
        let folding = if twice { Folding::Never } else { Folding::ByIdentity };
        let id = self.store_dead_letter(letter, now, folding).id;
        let own = letter.message.own_ordering_key().cloned();
        let mut sequences = BTreeSet::new();
        if let Some(row) = self.find(id) {
            row.message = match own {
                Some(key) => row.message.clone().with_ordering_key(key),
                None => row.message.clone().without_ordering_key(),
            };
            (row.state, row.waits) = (RowState::Due(now + after), true);
            row.seen.replayed = None;
            sequences.extend(row.sequence().filter(|_| !alone));
        }
        self.lead(&sequences);
        PutAside::Written(id)
    }

    pub(super) fn renew_due(&mut self, run: RunId, ids: &[DeadLetterId], now: SystemTime) {
        for id in ids {
            if let Some(row) = self.find(*id).filter(|row| row.is_of(run)) {
                row.taken = Some((now, run));
            }
        }
    }

    pub(super) fn release_due(&mut self, run: RunId, ids: &[DeadLetterId]) {
        let mut sequences = BTreeSet::new();
        for id in ids {
            if let Some(row) = self.find(*id).filter(|row| row.is_of(run)) {
                row.taken = None;
                sequences.extend(row.sequence());
            }
        }
        self.lead(&sequences);
    }

    /// A row that has ended stays as it ended: a worker that was thought dead may come late.
    /// `stuck` lets no next row go, and `taken` gives none back that was taken with one that waits again: defects.
    pub(super) fn end_due(
        &mut self,
        run: RunId,
        ends: &[(DeadLetterId, DueEnd)],
        now: SystemTime,
        (stuck, taken): (bool, bool),
    ) {
        let (mut sequences, mut again_in) = (BTreeSet::new(), BTreeSet::new());
        for (id, end) in ends {
            let counts = |row: &&mut DeadLetterRow| match end {
                DueEnd::Processed | DueEnd::Duplicate => row.taken.is_some(),
                DueEnd::Failed(_) | DueEnd::Again { .. } => row.is_of(run),
            };
            let Some(row) = self.find(*id).filter(counts) else { continue };
            sequences.extend(row.sequence());
            again_in.extend(row.sequence().filter(|_| matches!(end, DueEnd::Again { .. })));
            row.taken = None;
            let waited = std::mem::take(&mut row.waits);
            let again = match end {
                DueEnd::Again { after, .. } => Some(*after),
                DueEnd::Processed | DueEnd::Duplicate | DueEnd::Failed(_) => None,
            };
            match end.failure() {
                Some(failure) if waited || again.is_some() => {
                    row.failed(failure, now);
                    row.waits = again.is_some();
                    row.state = again.map_or(RowState::Over, |after| RowState::Due(now + after));
                    let (scope, key, hash) = (row.scope, row.seen.key.clone(), row.hash);
                    if again.is_none() {
                        self.end_count(scope, key.as_ref(), hash);
                    }
                }
                None if waited => self.dead_letters.retain(|row| row.seen.id != *id),
                Some(_) | None => {
                    row.state = RowState::Over;
                    row.seen.replayed = Some(storable(&end.outcome()));
                }
            }
        }
        let behind = |row: &&mut DeadLetterRow| {
            !taken && row.is_of(run) && row.sequence().is_some_and(|sequence| again_in.contains(&sequence))
        };
        self.dead_letters.iter_mut().filter(behind).for_each(|row| row.taken = None);
        if !stuck {
            self.lead(&sequences);
        }
    }
}
