#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attach;
mod commit;
mod context;
mod error;
mod events;
mod lag;
mod message;
#[cfg(feature = "msk-iam")]
mod msk_iam;
mod offsets;
mod open_transactions;
mod options;
mod poll;
mod publisher;
mod quiet;
mod rebalance;
mod refusal;
mod repeated;
mod source;
mod state;
mod tokens;
mod watchdog;

#[cfg(any(fuzzing, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;

pub use idem_core;

#[cfg(feature = "msk-iam")]
pub use self::msk_iam::MskIam;
pub use self::{
    options::{KafkaOptions, LaneBy, Reset},
    publisher::KafkaPublisher,
    source::KafkaSource,
    state::KafkaHandle,
    tokens::{Token, TokenSource},
};
