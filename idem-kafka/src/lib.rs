#![doc = include_str!("lib.md")]

mod attach;
mod commit;
mod config;
mod context;
mod dead_letter;
mod error;
#[cfg(feature = "msk-iam")]
mod msk_iam;
mod offsets;
mod poll;
mod quiet;
mod rebalance;
mod record;
mod source;
mod state;
mod tokens;
mod troubles;
mod watchdog;

pub use idem_core as core;

#[cfg(feature = "msk-iam")]
pub use self::msk_iam::MskIam;
pub use self::{
    config::{KafkaOptions, LaneBy, Reset},
    dead_letter::KafkaPublisher,
    source::KafkaSource,
    state::KafkaHandle,
    tokens::{Token, TokenSource},
};
