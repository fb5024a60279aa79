#![doc = include_str!("mod.md")]

mod answer;
mod ask;
mod clock;
mod ended;
mod intent;
mod judge;
mod meaning;
mod prepare;
mod profile;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retries;
mod send;
mod window;

#[cfg(feature = "reqwest")]
pub use self::reqwest::Reqwest;
pub use self::{
    answer::Answer,
    ended::{Ended, Indeterminate, KeyState, KeyStateKind, Refusal, Undecided},
    intent::Intent,
    meaning::Meaning,
    prepare::PrepareRequestError,
    profile::{KeyPlace, Profile},
    retries::Retries,
    send::IdempotentClient,
};
