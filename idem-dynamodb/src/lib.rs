#![doc = include_str!("lib.md")]

mod bookkeeping;
mod bugs;
mod claim;
mod cleaner;
mod client;
mod clock;
mod commit;
mod copies;
mod error;
mod item;
mod operators;
mod options;
mod reasons;
mod record;
mod store;
mod table;
mod tx;
mod unit;

pub use aws_sdk_dynamodb;
pub use idem_core;

pub use self::{
    bookkeeping::DynamoBookkeeping,
    error::DynamoError,
    operators::{HeldKey, HeldLetter, HeldRecord, ListedConsumer, TrailLine},
    options::DynamoOptions,
    store::DynamoStore,
    tx::{DynamoTx, Item, Write},
    unit::DynamoUnit,
};
