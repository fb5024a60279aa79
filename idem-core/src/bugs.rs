//! Bugs that can be planted by name, one at a time, to see that tests and `./sim` find them: former bugs of this project,
//! tempting shortcuts, and bugs by which other projects lost messages. Without `--cfg idem_bugs` none of them is compiled in.

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(idem_bugs), allow(dead_code, unreachable_pub, reason = "only asked about"))]
#[non_exhaustive]
pub enum Bug {
    /// A batch is acknowledged before it is committed (A4).
    AcknowledgesBeforeCommit,
    /// A commit whose answer was lost counts as done (A6).
    UnknownIsCommitted,
    /// Keys are remembered as committed before they are.
    RemembersBeforeCommit,
    /// Zero inserted rows are taken for a duplicate, without reading the record.
    ZeroRowsAreADuplicate,
    /// A used key is a duplicate, whatever the payload.
    ConflictIsADuplicate,
    /// Messages of a unit are folded by key, over tenants.
    FoldsOverTenants,
    /// Successes count as attempts (D28).
    SuccessesCount,
    /// An attempt is counted before its key is claimed (D29).
    CountsBeforeTheClaim,
    /// A count whose answer was lost is one more attempt (D36).
    LostCountsCount,
    /// An attempt is counted in memory alone, so a message that kills its process is tried for ever (D4).
    CountsInMemory,
    /// A message whose attempts are used up is set aside without its key (D29).
    ExhaustedWithoutClaim,
    /// An outage of the database charges the message at hand (A25).
    OutagesCharge,
    /// A conflict halts its message's tenant alone (J17).
    HaltsTheTenant,
    /// Messages that no handler can see open the breaker (D22).
    JunkOpensTheBreaker,
    /// While the breaker is open, messages that failed for good run again and again (D23).
    OpenBreakerRetries,
    /// A dead letter is settled although its row could not be written.
    DeadLetterWithoutRow,
    /// Messages behind one that waits overtake it.
    FollowersOvertake,
    /// A message without an attempt left whose dead letter could not be written is set aside later without its key (J71).
    SetsAsideLaterWithoutClaim,
    /// A message whose last attempt has lost its connection is set aside without its key (J76).
    LostConnectionsNeedNoClaim,
    /// Settlements are not sent before a message runs that may kill the process (D38).
    KillersLoseSettlements,
    /// A message that killed its process in each attempt is set aside while the broker's position cannot pass it (J73).
    KillersGoBeforeTheirTurn,
    /// A lane that rests during a revocation is woken by messages that are due, and spins.
    RestingLaneSpins,
    /// The broker's count of deliveries decides which message has no attempt left.
    TrustsTheBrokersCount,
    /// Keys are remembered as committed although another server answers now (A43).
    RemembersOverServers,
    /// A dead letter that was settled too late gets its attempts anew when it is redelivered (J64).
    LateDeadLettersBeginAnew,
    /// A dead letter whose row was written without an answer gets its attempts anew when it is redelivered (J78).
    UnansweredRowsAreForgotten,
    /// A dead letter that is redelivered waits for its turn under an open breaker before it is set aside again (J64).
    LateDeadLettersWait,
    /// A worker takes the first server that it sees for the one that knows its consumer (J63).
    TrustsTheFirstServer,
    /// Destinations and tenants are interned once, also where another server answers that lacks them (J63).
    DeclaresOnce,
    /// A server that has lost the consumer's row while its tenants are interned there ends the worker (J63).
    RefusesLostTenants,
    /// A revocation gives back the messages of assignments that stay, too (E10).
    RevocationsTakeAll,
    /// A revocation gives back the messages before settled ones, which then come again (E10).
    RevocationsFinishNothing,
    /// A revocation is answered while messages of its assignments run (E10).
    RevocationsDoNotWait,
    /// Messages of a lost assignment run once more where their unit failed meanwhile (E41).
    LossesMissTheUnit,
    /// The id of an event is drawn, so that a second run by the same cause makes another event (O17).
    RandomId,
    /// An event is noted as published before it is (O2).
    MarksFirst,
    /// A relay reads on from the last number that it saw (O5).
    ScansById,
    /// An event is one by its key alone, so that what one message tells a second destination under that key is lost (O15).
    PkIdOnly,
    /// An event whose confirmation did not come counts as published (O2).
    SilenceConfirms,
    /// One confirmed event of a batch confirms all of them (O2).
    OneConfirmsAll,
    /// Events behind one that failed are sent all the same (O24).
    SendsFollowers,
    /// A relay knows an event that is under way by its number alone (J70).
    UnderWayByNumber,
    /// A result is written in a second transaction, after the commit of its effect (V1).
    ResultInSecondTx,
    /// A call has its answer before its commit, whatever comes of that (W17).
    AnswersBeforeCommit,
    /// A worker does not obey an operator who pauses its consumer (J74).
    IgnoresPauses,
    /// A dead letter whose publication was refused counts as published (J75).
    RefusedIsPublished,
    /// A panic of a function that finds tenant, key or hash is not caught (D11).
    CatchesNothing,
    /// A payload that cannot be hashed counts as an empty one (J86).
    UnhashedIsEmpty,
    /// A message whose key cannot be found gets one made up (J86).
    MakesKeysUp,
    /// The key of a call to another service is derived from the message's place at the broker, and not from its key.
    DerivesByPlace,
    /// A lane waits for a while before it takes fewer messages than make a batch.
    WaitsForFullBatches,
    /// A message is acknowledged before its row in the inbox is committed (N2).
    AcknowledgesBeforeInbox,
    /// The inbox is read on from the last number, and rows that were committed late are never seen (N14).
    ReadsInboxByNumber,
    /// A row that is due is ended before its message's effect is committed (C18).
    EndsRowsBeforeCommit,
    /// A message is acknowledged before its row is committed, as which it waits for a later try.
    SettlesBeforeTheRow,
    /// Each later try of a message that fails counts for the breaker, and not the message once.
    LaterTriesOpenTheBreaker,
    /// Each later try is the first attempt, so that a message that always fails has no end.
    LaterTriesStartOver,
    /// A message runs although one before it in its ordering key waits for a later try (C26).
    SkipsTheParkedCheck,
    /// A row that waits again does not keep those waiting that were taken with it (C27).
    RunsFollowersOfARowThatFailed,
}

#[cfg(idem_bugs)]
impl Bug {
    /// Every bug.
    pub const ALL: [Self; 59] = [
        Self::AcknowledgesBeforeCommit,
        Self::UnknownIsCommitted,
        Self::RemembersBeforeCommit,
        Self::ZeroRowsAreADuplicate,
        Self::ConflictIsADuplicate,
        Self::FoldsOverTenants,
        Self::SuccessesCount,
        Self::CountsBeforeTheClaim,
        Self::LostCountsCount,
        Self::CountsInMemory,
        Self::ExhaustedWithoutClaim,
        Self::OutagesCharge,
        Self::HaltsTheTenant,
        Self::JunkOpensTheBreaker,
        Self::OpenBreakerRetries,
        Self::DeadLetterWithoutRow,
        Self::FollowersOvertake,
        Self::SetsAsideLaterWithoutClaim,
        Self::LostConnectionsNeedNoClaim,
        Self::KillersLoseSettlements,
        Self::KillersGoBeforeTheirTurn,
        Self::RestingLaneSpins,
        Self::TrustsTheBrokersCount,
        Self::RemembersOverServers,
        Self::LateDeadLettersBeginAnew,
        Self::UnansweredRowsAreForgotten,
        Self::LateDeadLettersWait,
        Self::TrustsTheFirstServer,
        Self::DeclaresOnce,
        Self::RefusesLostTenants,
        Self::RevocationsTakeAll,
        Self::RevocationsFinishNothing,
        Self::RevocationsDoNotWait,
        Self::LossesMissTheUnit,
        Self::RandomId,
        Self::MarksFirst,
        Self::ScansById,
        Self::PkIdOnly,
        Self::SilenceConfirms,
        Self::OneConfirmsAll,
        Self::SendsFollowers,
        Self::UnderWayByNumber,
        Self::ResultInSecondTx,
        Self::AnswersBeforeCommit,
        Self::IgnoresPauses,
        Self::RefusedIsPublished,
        Self::CatchesNothing,
        Self::UnhashedIsEmpty,
        Self::MakesKeysUp,
        Self::DerivesByPlace,
        Self::WaitsForFullBatches,
        Self::AcknowledgesBeforeInbox,
        Self::ReadsInboxByNumber,
        Self::EndsRowsBeforeCommit,
        Self::SettlesBeforeTheRow,
        Self::LaterTriesOpenTheBreaker,
        Self::LaterTriesStartOver,
        Self::SkipsTheParkedCheck,
        Self::RunsFollowersOfARowThatFailed,
    ];
}

#[cfg(idem_bugs)]
impl Bug {
    /// The bug of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
    }
}

#[cfg(idem_bugs)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

#[cfg(idem_bugs)]
static PLANTED_EVERYWHERE: std::sync::OnceLock<Bug> = std::sync::OnceLock::new();

/// Plants a bug in whatever runs on this thread from now on, in place of another; `None` takes it out again.
#[cfg(idem_bugs)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Plants a bug in all threads of this process, for as long as it lives. Only the first one is planted.
#[cfg(idem_bugs)]
pub fn plant_everywhere(bug: Bug) {
    PLANTED_EVERYWHERE.get_or_init(|| bug);
}

/// Whether this bug is planted.
#[cfg(idem_bugs)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug) || PLANTED_EVERYWHERE.get() == Some(&bug)
}

/// Without the flag no bug is planted.
#[cfg(not(idem_bugs))]
#[inline(always)]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}
