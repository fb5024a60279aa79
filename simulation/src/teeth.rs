//! Planted bugs: each must be found, and in how many lives and seconds says how sharp the simulation is.

use std::{fmt::Write as _, time::Instant};

#[cfg(idem_bugs)]
use idem_core::bugs::Bug;
use idem_testkit::Defect;

use crate::{life::Way, lives::Lives, lives::Until, scenario::Theme};

/// The most lives that are given to one bug.
const LIVES_MAX: u64 = 6_000;

/// A mistake that an adapter for partitions could make; the members of a group make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slip {
    /// The position is where delivery goes on, beyond messages that are not finished.
    PositionsPassUnfinished,
    /// Partitions are given back before their last positions are committed.
    GivesBackUncommitted,
    /// What was given back is still settled, and its positions are committed.
    KeepsWhatItGaveBack,
    /// A task of its own panics, and nothing waits for it.
    TaskPanics,
}

/// Where a bug is planted.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In the engine.
    #[cfg(idem_bugs)]
    Engine(Bug),
    /// In the store.
    Store(Defect),
    /// In the members of a group.
    Member(Slip),
}

/// A bug, and the failure mode that it stands for.
struct Planted {
    place: Place,
    /// The theme in which it is looked for.
    theme: Theme,
    about: &'static str,
}

impl Planted {
    fn name(&self) -> String {
        match self.place {
            #[cfg(idem_bugs)]
            Place::Engine(bug) => format!("{bug:?}"),
            Place::Store(defect) => format!("{defect:?}"),
            Place::Member(slip) => format!("{slip:?}"),
        }
    }

    fn way(&self) -> Way {
        match self.place {
            #[cfg(idem_bugs)]
            Place::Engine(_) => Way::default(),
            Place::Store(defect) => Way { defect: Some(defect), ..Way::default() },
            Place::Member(slip) => Way { slip: Some(slip), ..Way::default() },
        }
    }

    /// Plants it on this thread.
    #[cfg_attr(not(idem_bugs), allow(clippy::unused_self, reason = "there is nothing to plant"))]
    fn plant(&self) {
        #[cfg(idem_bugs)]
        if let Place::Engine(bug) = self.place {
            idem_core::bugs::plant(Some(bug));
        }
    }
}

/// Those of the store, which are there without the feature.
#[allow(clippy::too_many_lines, reason = "a list")]
fn in_the_store() -> Vec<Planted> {
    let planted = |defect, theme, about| Planted { place: Place::Store(defect), theme, about };
    let slip = |slip, about| Planted { place: Place::Member(slip), theme: Theme::Partitions, about };
    vec![
        planted(
            Defect::StoresByOrigin,
            Theme::Any,
            "another message at a used origin is taken for the dead letter there (E1)",
        ),
        planted(
            Defect::CountsAttemptsByKey,
            Theme::Small,
            "two failing payloads of one key begin each other's attempts anew (A-M3)",
        ),
        slip(Slip::PositionsPassUnfinished, "a position is committed beyond messages that are not finished"),
        slip(Slip::GivesBackUncommitted, "partitions are given back before their last positions are committed"),
        slip(Slip::KeepsWhatItGaveBack, "partitions that were given back are still committed"),
        slip(Slip::TaskPanics, "a task of the adapter panics, and nothing waits for it"),
        planted(Defect::CommitsUnsealed, Theme::Small, "a handler's own COMMIT commits the claims (A12)"),
        planted(
            Defect::CommitsAbortedWithoutError,
            Theme::Small,
            "the commit of an aborted transaction reports success (A9)",
        ),
        planted(Defect::LocksNoRows, Theme::Small, "rows are not locked, so additions overwrite each other"),
        planted(Defect::LosesEffects, Theme::Small, "a commit keeps the records and loses the effects"),
        planted(Defect::RecordsOutside, Theme::Small, "records are written outside of the transaction"),
        planted(Defect::PutsEffectsOutside, Theme::Small, "handlers write outside of their transaction"),
        planted(Defect::FindsUncommitted, Theme::Small, "a claim finds records that are not committed"),
        planted(Defect::IgnoresScopes, Theme::Small, "tenants share their keys"),
        planted(
            Defect::NumbersInOrder,
            Theme::Any,
            "consumers and tenants are numbered as they come, also by a server that has lost some (J63)",
        ),
        planted(
            Defect::SettlesByNumberAlone,
            Theme::Any,
            "what became of an event that a server has lost is noted of another one of its number (O41)",
        ),
        planted(Defect::CleansLiveRecords, Theme::Small, "cleanup removes records that have not expired"),
        planted(Defect::DroppedUnitsHoldKeys, Theme::Small, "a unit whose process died holds its keys for ever"),
        planted(Defect::PutsEventsOutside, Theme::Small, "events of a unit that is rolled back are sent (O1)"),
        planted(Defect::LosesEvents, Theme::Small, "a commit keeps the effects and loses the events"),
        planted(Defect::ScansByNumber, Theme::Small, "the store answers on from the last number that was seen (O5)"),
        planted(
            Defect::EventsOvertake,
            Theme::Small,
            "events go although one of their ordering key before them waits (O24)",
        ),
        planted(Defect::EventsByKeyAlone, Theme::Small, "an event is known by its key alone, at all receivers (O15)"),
        planted(Defect::LeasesToAll, Theme::Small, "every relay has every destination (O11)"),
        planted(Defect::LosesResults, Theme::Small, "a commit keeps the effects and loses the answers (V1)"),
        planted(Defect::ResultsByKeyAlone, Theme::Small, "tenants with one key have each other's answers (V5)"),
        planted(Defect::KeepsOneRowAKey, Theme::Small, "a commit keeps one of the rows of one key (J87)"),
        planted(
            Defect::RenamesWithoutRecords,
            Theme::Small,
            "a consumer that is renamed begins without a record under its new name (J88)",
        ),
        planted(
            Defect::RenamesDerivedIds,
            Theme::Small,
            "a consumer that is renamed derives other ids for its events and calls (O37)",
        ),
        planted(
            Defect::SharesHashRules,
            Theme::Small,
            "a record does not say by which hash rule it was written, so that copies of it differ once the rule has changed (C13)",
        ),
        planted(Defect::FoldsKeys, Theme::Small, "keys that differ in case or in spaces at the end are one (J89)"),
        planted(Defect::CutsKeysAt64Bytes, Theme::Small, "keys are cut (J89)"),
        planted(Defect::ForgetsHashes, Theme::Small, "a record has whatever hash it is compared with"),
    ]
}

#[cfg(idem_bugs)]
#[allow(clippy::too_many_lines, reason = "a list")]
fn all() -> Vec<Planted> {
    let planted = |bug, theme, about| Planted { place: Place::Engine(bug), theme, about };
    let mut all = vec![
        planted(Bug::AcknowledgesBeforeCommit, Theme::Small, "a batch is acknowledged before it is committed (A4)"),
        planted(Bug::UnknownIsCommitted, Theme::Small, "a commit whose answer was lost counts as done (A6)"),
        planted(Bug::RemembersBeforeCommit, Theme::Small, "keys are remembered as committed before they are"),
        planted(Bug::ZeroRowsAreADuplicate, Theme::Small, "no row inserted is taken for a duplicate"),
        planted(Bug::ConflictIsADuplicate, Theme::Small, "a used key is a duplicate, whatever the payload"),
        planted(Bug::FoldsOverTenants, Theme::Any, "messages are folded by key, over tenants"),
        planted(Bug::SuccessesCount, Theme::Any, "successes count as attempts (E3)"),
        planted(
            Bug::CountsBeforeTheClaim,
            Theme::Calm,
            "an attempt is counted before its key is claimed, so a copy elsewhere has one less (E4)",
        ),
        planted(Bug::LostCountsCount, Theme::Small, "a count whose answer was lost is one more attempt (found here)"),
        planted(Bug::CountsInMemory, Theme::Small, "a message that kills its process is tried for ever (D4)"),
        planted(Bug::ExhaustedWithoutClaim, Theme::Small, "a copy of the running last attempt is set aside (E4)"),
        planted(Bug::OutagesCharge, Theme::Small, "an outage of the database charges the message at hand (A25)"),
        planted(Bug::HaltsTheTenant, Theme::Calm, "a conflict halts its message's tenant alone (E9)"),
        planted(Bug::JunkOpensTheBreaker, Theme::Junk, "messages that no handler can see open the breaker (A-M4)"),
        planted(Bug::OpenBreakerRetries, Theme::Any, "an open breaker runs what failed for good again and again (N2)"),
        planted(Bug::DeadLetterWithoutRow, Theme::Small, "a dead letter is settled although its row was not written"),
        planted(Bug::FollowersOvertake, Theme::Small, "what follows a message that waits overtakes it"),
        planted(
            Bug::SetsAsideLaterWithoutClaim,
            Theme::Small,
            "what has no attempt left is set aside without its key where its row could not be written at first (J71)",
        ),
        planted(
            Bug::LostConnectionsNeedNoClaim,
            Theme::Small,
            "a message whose last attempt has lost its connection is set aside without its key (J76)",
        ),
        planted(
            Bug::KillersLoseSettlements,
            Theme::Calm,
            "what is settled is lost with the process that the next message kills (found here)",
        ),
        planted(
            Bug::KillersGoBeforeTheirTurn,
            Theme::Small,
            "what killed its process in each attempt is set aside while the position cannot pass it (J73)",
        ),
        planted(
            Bug::EndsRowsBeforeCommit,
            Theme::Small,
            "a row that is due is ended before its effect is committed (C18)",
        ),
        planted(Bug::RestingLaneSpins, Theme::Any, "a lane that rests is woken by what is due, and spins (N1)"),
        planted(
            Bug::TrustsTheBrokersCount,
            Theme::Small,
            "the broker's count of deliveries decides who has no attempt left",
        ),
        planted(
            Bug::RemembersOverServers,
            Theme::Any,
            "keys are remembered as committed although another server answers now (A43)",
        ),
        planted(
            Bug::LateDeadLettersBeginAnew,
            Theme::Any,
            "what was set aside and settled too late gets its attempts anew when it comes again (J64)",
        ),
        planted(
            Bug::UnansweredRowsAreForgotten,
            Theme::Small,
            "what was set aside without an answer gets its attempts anew when it comes again (J78)",
        ),
        planted(
            Bug::LateDeadLettersWait,
            Theme::Any,
            "what was set aside and came again waits for its turn under an open breaker (J64)",
        ),
        planted(
            Bug::DeclaresOnce,
            Theme::Any,
            "destinations and tenants are interned once, also where another server lacks them (J63)",
        ),
        planted(
            Bug::RefusesLostTenants,
            Theme::Small,
            "a consumer's row that is lost while its tenants are interned ends the worker (J63)",
        ),
        planted(
            Bug::RevocationsTakeAll,
            Theme::Partitions,
            "a revocation gives back the messages of partitions that stay, too",
        ),
        planted(
            Bug::RevocationsFinishNothing,
            Theme::Partitions,
            "a revocation gives back what stands before settled messages, so that these come again (E10)",
        ),
        planted(
            Bug::RevocationsDoNotWait,
            Theme::Partitions,
            "a revocation is answered while messages of its partitions run (E10)",
        ),
        planted(
            Bug::LossesMissTheUnit,
            Theme::Partitions,
            "messages of a lost partition run once more where their unit failed meanwhile (found here, E41)",
        ),
        planted(Bug::RandomId, Theme::Small, "the ids of events are drawn, so a second run makes other events (O17)"),
        planted(Bug::MarksFirst, Theme::Small, "an event is noted as published before it is (O2)"),
        planted(Bug::ScansById, Theme::Small, "a relay reads on from the last number that it saw (O5)"),
        planted(
            Bug::PkIdOnly,
            Theme::Small,
            "an event is known by its key alone, at all destinations of a message (O15)",
        ),
        planted(
            Bug::SilenceConfirms,
            Theme::Small,
            "an event whose confirmation did not come counts as published (O2)",
        ),
        planted(Bug::OneConfirmsAll, Theme::Small, "one confirmed event of a batch confirms all of them (O2)"),
        planted(
            Bug::SendsFollowers,
            Theme::Small,
            "what stands behind an event that failed is sent all the same (O24)",
        ),
        planted(
            Bug::UnderWayByNumber,
            Theme::Small,
            "an event with the number of one that is under way, and was lost, waits, and those behind it do not (J70)",
        ),
        planted(Bug::ResultInSecondTx, Theme::Small, "an answer is written after the commit of its effect (V1)"),
        planted(Bug::AnswersBeforeCommit, Theme::Small, "a caller has its answer before the commit (W17)"),
        planted(
            Bug::TrustsTheFirstServer,
            Theme::Small,
            "a worker takes the first server that it sees for the one that knows its consumer (J63)",
        ),
        planted(Bug::IgnoresPauses, Theme::Calm, "a worker goes on although an operator pauses its consumer (J74)"),
        planted(
            Bug::RefusedIsPublished,
            Theme::Small,
            "a dead letter whose publication was refused counts as published (J75)",
        ),
        planted(
            Bug::CatchesNothing,
            Theme::Small,
            "a function that finds tenant, key or hash ends its worker by a panic (D11)",
        ),
        planted(Bug::UnhashedIsEmpty, Theme::Small, "a payload that cannot be hashed counts as an empty one (J86)"),
        planted(Bug::MakesKeysUp, Theme::Small, "a message whose key cannot be found gets one made up (J86)"),
        planted(
            Bug::DerivesByPlace,
            Theme::Small,
            "the key of a call is derived from the message's place at the broker (A22)",
        ),
        planted(Bug::WaitsForFullBatches, Theme::Calm, "a lane waits before it takes less than a batch"),
    ];
    all.extend(in_the_store());
    all
}

#[cfg(not(idem_bugs))]
fn all() -> Vec<Planted> {
    in_the_store()
}

/// Plants a bug on this thread. Answers how lives are then run.
///
/// # Errors
/// Where no bug has this name.
pub fn plant(name: &str) -> Result<Way, String> {
    let all = all();
    let Some(planted) = all.iter().find(|planted| planted.name() == name) else {
        let names: Vec<String> = all.iter().map(Planted::name).collect();
        return Err(format!("there is no bug named {name}; there are {}", names.join(", ")));
    };
    planted.plant();
    Ok(planted.way())
}

/// Takes out of the engine again whatever was planted on this thread.
pub fn plant_nothing() {
    #[cfg(idem_bugs)]
    idem_core::bugs::plant(None);
}

/// Runs lives with each bug until it is found. Answers a table, and whether all were found.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the time that it takes the person who waits for it")]
pub fn bite(jobs: usize, mut tell: impl FnMut(&str)) -> (String, bool) {
    let mut table = "| planted bug | what it does | theme | lives | seconds | the check that found it |\n|---|---|---|---|---|---|\n".to_owned();
    let mut all_found = true;
    for planted in all() {
        let begun = Instant::now();
        let theme = planted.theme;
        let lives =
            Lives { theme, seed: 1, count: LIVES_MAX, jobs, way: planted.way(), every_poll: false, until: Until::Any };
        let sum = lives.run(|| planted.plant());
        let first = sum.broken.iter().min_by_key(|(_, broken)| broken.seed);
        let seconds = begun.elapsed().as_secs_f64();
        let (found, rule) = match first {
            Some((rule, broken)) => (broken.seed.to_string(), format!("{rule:?}")),
            None => (format!("not in {}", sum.lives), String::new()),
        };
        all_found &= first.is_some();
        let Planted { about, .. } = planted;
        let line = format!("| {} | {about} | {} | {found} | {seconds:.2} | {rule} |", planted.name(), theme.as_str());
        tell(&line);
        // A string takes every line.
        let _ = writeln!(table, "{line}");
    }
    (table, all_found)
}
