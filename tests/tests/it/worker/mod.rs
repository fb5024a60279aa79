//! Workers with failing messages, misbehaving brokers and intervening operators. The store and
//! the broker are those of the test kit, so that each fault comes when a test says so; effects are read back from the
//! store.

mod assignments;
mod attempts;
mod cache;
mod captured;
mod clocks;
mod control;
mod dead_letters;
mod due;
mod evidence;
mod failures;
mod fixture;
mod flushing;
mod kinds;
mod limits;
mod order;
mod outages;
mod panics;
mod reasons;
mod security;
mod settling;
mod start;
mod stopping;
mod telemetry;
mod types;
mod unkeepable;
mod waits;
