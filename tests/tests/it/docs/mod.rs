//! Checks the documentation and the files in `deploy/` against the programs and the database.

mod consumers;
mod deploy;
mod getting_started;
mod new;
mod pages;
mod programs;
