use super::*;

const CLASSES: [ErrorClass; 5] = [
    ErrorClass::RunUnitAgain,
    ErrorClass::Transient,
    ErrorClass::Permanent,
    ErrorClass::Infrastructure,
    ErrorClass::Fatal,
];

fn everything_seen() -> Vec<Seen> {
    let plain = [
        Seen::ConnectionLost,
        Seen::DatabaseAnswers,
        Seen::DatabaseDown,
        Seen::Contended,
        Seen::Held,
        Seen::NoWinner,
        Seen::CommitUnanswered,
    ];
    let of_class: [fn(ErrorClass) -> Seen; 3] = [Seen::Failed, Seen::StoreFailed, Seen::BookkeepingFailed];
    plain.into_iter().chain(of_class.into_iter().flat_map(|seen| CLASSES.map(seen))).collect()
}

fn everything_known() -> Vec<Known> {
    let mut all = Vec::new();
    for (attempt, later) in [(0, 0), (1, 0), (5, 0), (5, 2), (6, 2), (7, 2)] {
        for again in [0, AGAIN_MAX] {
            for lost in 0..=OUTAGES_MAX {
                for waited_long in [false, true] {
                    all.push(Known { attempt, attempts_max: 5, later, again, lost, waited_long });
                }
            }
        }
    }
    all
}

/// The facts known, in the words of the table.
fn parts(known: &Known) -> [&'static str; 4] {
    let attempt = match (known.attempt, known.later) {
        (0, _) => "in a batch",
        (1, _) => "attempt 1 of 5",
        (_, 0) => "attempt 5 of 5",
        (5, _) => "attempt 5 of 5 and 2 later",
        (6, _) => "attempt 6 of 5 and 2 later",
        _ => "attempt 7 of 5 and 2 later",
    };
    [
        attempt,
        if known.again < AGAIN_MAX { "first time" } else { "again and again" },
        match known.lost {
            0 => "first loss",
            1 => "lost before",
            _ => "lost twice before",
        },
        if known.waited_long { "waited long" } else { "waits" },
    ]
}

/// The parts of the facts known that make a difference to the action.
fn that_matter(answers: &[([&'static str; 4], Action)]) -> Vec<usize> {
    let differ = |part: usize| {
        answers.iter().any(|(known, action)| {
            let others = answers.iter().filter(|(other, _)| (0..4).all(|at| at == part || other[at] == known[at]));
            others.into_iter().any(|(_, other)| other != action)
        })
    };
    (0..4).filter(|part| differ(*part)).collect()
}

/// D20: every combination of facts known and failures seen, in as few lines as possible. A person has agreed to `table.txt`.
#[test]
fn d20_the_table_of_what_follows_a_failure() {
    let mut table = Vec::<String>::new();
    for seen in everything_seen() {
        let answers: Vec<_> = everything_known().iter().map(|known| (parts(known), after(known, seen))).collect();
        let matter = that_matter(&answers);
        for (known, action) in answers {
            let when: String = matter.iter().map(|part| format!(", {}", known[*part])).collect();
            let line = format!("{seen:?}{when}: {action:?}");
            if !table.contains(&line) {
                table.push(line);
            }
        }
    }
    let agreed: Vec<&str> = include_str!("table.txt").lines().collect();
    for (number, line) in table.iter().enumerate() {
        assert_eq!(agreed.get(number), Some(&line.as_str()), "line {} of policy/table.txt", number + 1);
    }
    assert_eq!(agreed.len(), table.len(), "lines of policy/table.txt");
}

/// D20: nothing runs for ever: a message that runs alone and fails in one way again and again is set aside, waits
/// visibly, or stops the worker.
#[test]
fn d20_a_message_that_is_charged_ends() {
    for (seen, later) in everything_seen().into_iter().flat_map(|seen| [(seen, 0), (seen, 4)]) {
        let mut known = Known { attempts_max: 5, later, ..Known::default() };
        for _ in 0..30 {
            match after(&known, seen) {
                Action::RunAgain => known.again += 1,
                Action::RunAlone | Action::Retry | Action::Later(_) => {
                    (known.attempt, known.again) = (known.attempt + 1, 0)
                }
                Action::AwaitTheDatabase | Action::Wait(_) => known.lost += 1,
                Action::ClaimAgain | Action::AskTheDatabase | Action::DeadLetter | Action::Stop => {}
            }
        }
        let last = after(&known, seen);
        assert!(known.attempt <= 5 + later, "{seen:?}: {known:?}");
        assert!(!matches!(last, Action::RunAlone | Action::Retry | Action::Later(_)), "{seen:?}: {last:?}");
    }
}
