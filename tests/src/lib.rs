//! The code that the tests share with the consumers that they start and kill; the tests are in `tests/it`.

pub mod asker;
pub mod plan;
pub mod told;
