//! The crash matrix: a consumer runs as a process of its own against a broker that outlives it, is killed without
//! unwinding at every failpoint, and started again. Afterwards every effect is there exactly once, every message is
//! settled, and every dead letter is kept and published. The ids are those of `docs/internals/failure-modes.md`.
//!
//! | id | where it is here |
//! |---|---|
//! | A1 | kills at `recv`, `begin`, `claimed`, `handler_mid`, `handler_done`, `guard`: the claim is gone with the rollback |
//! | A2 | kills at `commit_sent`, `commit_ok`, `ack_sent`: the redelivery is a duplicate |
//! | A3 | kills at `ack_ok`, and the action `error` at `ack_sent`: an acknowledgement that was lost |
//! | A5, A6 | the action `error` at `commit_sent` and `commit_ok`: an unknown commit is resolved by claiming again |
//! | B13, B16 | each wave has conflicts and copies, in one batch and over several |
//! | C4 | kills at `clean_chunk`, between two steps of cleanup |
//! | C7 | [`replay`]: dead letters that are replayed while the consumer is killed run once |
//! | D1, D7, D10 | kills at `rollback` and `isolate`: failing messages within batches; the order within an account |
//! | D4 | [`poison`]: a message that ends the process is set aside after its attempts, and harms no neighbour |
//! | G8 | kills at `dead_letter_sent`, `dead_letter_ok`: kept and published before the original is settled |
//! | J1, J2 | SIGTERM at any moment, kills at `drain` after one; SIGKILL at any moment |
//! | J10 | each wave has messages without a key and with two |
//! | O36 | [`relays`]: a relay is killed at its failpoints, or stands still for twice its deadline |
//! | O13 | [`restored`]: a dump of the database is restored, and the messages since then come again |
//! | V13 | [`answers`]: processes ask for the same operations, and die |
//! | J12 | [`rolling`]: workers of two releases on two schemas, side by side |
//!
//! `IDEM_SEED` makes a run's choices again: messages, order, where the kills land. `IDEM_CRASH_KILLS` is how many
//! kills each failpoint gets, 2 unless set; with 1, as in `./test`, the seed draws a third of the rows, each a store, a mode and a
//! failpoint, and of those of [`poison`] and [`replay`]. `IDEM_CRASH_ONLY` runs the rows whose name holds it, such as
//! `postgres-batch-commit_ok`. The consumers' logs are in `tmp/crash` of the target folder; they and the database stay where a row
//! fails.

mod answers;
mod fixture;
mod ledger;
mod matrix;
mod mild;
mod poison;
mod relays;
mod replay;
mod restored;
mod rolling;
mod tokio_postgres;
mod wave;

use idem_core::failpoint;

/// The failpoints that a consumer passes. A relay's are those of [`relays`].
fn points() -> impl Iterator<Item = &'static str> {
    failpoint::ALL.iter().copied().filter(|point| !failpoint::OF_A_RELAY.contains(point))
}

/// How often a consumer is killed at each failpoint: `IDEM_CRASH_KILLS`, 2 unless set.
fn kills() -> u64 {
    let text = std::env::var("IDEM_CRASH_KILLS").unwrap_or_else(|_| "2".to_owned());
    text.trim().parse().unwrap_or_else(|_| panic!("IDEM_CRASH_KILLS={text:?} is no whole number"))
}

/// Whether a row runs.
fn is_chosen(name: &str) -> bool {
    match std::env::var("IDEM_CRASH_ONLY") {
        Ok(only) => name.contains(&only),
        Err(_) => kills() > 1 || idem_testkit::rng(&format!("{name} is chosen")).u8(..3) == 0,
    }
}
