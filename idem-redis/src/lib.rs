#![doc = include_str!("lib.md")]

mod copies;

pub use idem_core;

pub use self::copies::RedisCopies;
