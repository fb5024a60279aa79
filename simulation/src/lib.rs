//! idem's own workers in a world without chance. `./sim` builds and runs it.
//!
//! A life is a few processes with the real worker, consumer and cleanup, on one thread, under a clock that only moves when
//! every task waits. Store and broker are those of the testkit. Everything that may be one way or another is drawn from the
//! life's seed: messages, settings, what handlers do, delays, lost connections and answers, deaths between two polls,
//! revocations, operators. So a seed runs the same life again, event by event, on every machine with the same toolchain.
//!
//! | file | what it is |
//! |---|---|
//! | `scenario`, `draw`, `rare` | a life as plain data, and how it is drawn |
//! | `life`, `world`, `process` | runs it: the time line, what outlives the processes, the processes |
//! | `disaster` | disasters of the store as a whole: failovers, restores, another clock, records that are forgotten |
//! | `handler`, `identify` | the user's code: its handler, and the functions that find tenant, key and hash |
//! | `source` | the connection to the broker, which checks what is settled at that moment |
//! | `group`, `member` | several partitions: the group that shares them, and a process as its member, with the state of `idem-kafka` |
//! | `telling` | the outputs: events and the answers of calls, as plain data |
//! | `receivers`, `calls` | where events go, and who asks for something to be done once |
//! | `journal` | the events of a life, their hash, and the breaches of promises |
//! | `bounds`, `oracle` | how long things may take, and the conditions that must hold at the end |
//! | `shrink` | a smaller life that breaks the same promise |
//! | `teeth` | planted bugs, each of which must be found |
#![warn(clippy::iter_over_hash_type)]

mod bounds;
mod calls;
mod disaster;
mod draw;
mod group;
mod handler;
mod identify;
mod journal;
mod life;
mod lives;
mod member;
mod oracle;
mod process;
mod rare;
mod receivers;
mod scenario;
mod shrink;
mod source;
pub mod teeth;
mod telling;
mod world;

// The state of the adapter for Kafka is the real one, which needs no client library. Its own tests stay there.
#[allow(dead_code, unreachable_pub, reason = "the adapter uses all of it")]
#[path = "../../idem-kafka/src/offsets.rs"]
mod offsets;
#[allow(dead_code, unreachable_pub, reason = "the adapter uses all of it")]
#[path = "../../idem-kafka/src/state.rs"]
mod state;

pub use self::{
    journal::{Breach, Mixer, Rule},
    life::{Report, Way, live},
    lives::{Broken, Lives, Sum, Until},
    scenario::{Behaviour, Content, Event, Finds, Partitions, Protocol, Scenario, Theme, Unidentified},
    shrink::shrink,
    telling::{Operation, Receiver, Telling, Told},
};

/// Panics of handlers are part of a life: nothing is printed for them.
pub fn silence_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<handler::UsersOwn>() {
            life::panicked(panic);
            print(panic);
        }
    }));
}
