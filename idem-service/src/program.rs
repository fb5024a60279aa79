//! What an application hands to the engine: its parts, or the function that makes them of its own settings. No broker and no
//! client of a database is in it, so that a crate that makes one compiles neither.

use std::{ffi::OsString, fmt, future::Future, pin::Pin, process::ExitCode};

use clap::{ArgMatches, Command};
use idem_core::BoxError;

use crate::exit::Exit;

/// idem's version.
const IDEM: &str = env!("CARGO_PKG_VERSION");

/// Reads the application's own settings.
type Read<P> = Box<dyn FnOnce(&ArgMatches) -> Result<Build<P>, clap::Error> + Send>;

/// Makes the parts, once the log is written.
pub(crate) type Build<P> = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Result<P, BoxError>> + Send>> + Send>;

/// An application short of its settings, whose parts are `P`.
#[doc(hidden)]
pub struct Program<P> {
    /// The program's own file where it is not known yet.
    name: Option<&'static str>,
    version: Option<&'static str>,
    /// Adds the application's own flags.
    pub(crate) flags: fn(Command) -> Command,
    pub(crate) read: Read<P>,
}

impl<P> fmt::Debug for Program<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("name", &self.name).field("version", &self.version).finish_non_exhaustive()
    }
}

impl<P: Send + 'static> Program<P> {
    pub(crate) fn of(name: &'static str, version: Option<&'static str>, parts: P) -> Self {
        let build: Build<P> = Box::new(|| Box::pin(std::future::ready(Ok(parts))));
        Self { name: Some(name), version, flags: |command| command, read: Box::new(|_| Ok(build)) }
    }
}

impl<P> Program<P> {
    /// The application's version, else idem's.
    pub(crate) fn version(&self) -> &'static str {
        self.version.unwrap_or(IDEM)
    }

    /// What `--version` prints after the name: the application's version, where it has one, and idem's.
    pub(crate) fn shown_version(&self) -> &'static str {
        match self.version {
            Some(version) => format!("{version} (idem {IDEM})").leak(),
            None => concat!("(idem ", env!("CARGO_PKG_VERSION"), ")"),
        }
    }

    /// The name in `--help` and `--version`.
    pub(crate) fn name(&self, arguments: &[OsString]) -> &'static str {
        let of_file = || {
            let path = std::path::Path::new(arguments.first()?);
            Some(path.file_stem()?.to_string_lossy().into_owned().leak() as &str)
        };
        self.name.or_else(of_file).unwrap_or("worker")
    }
}

/// What is made of its own settings: a worker or a service over HTTP.
#[doc(hidden)]
pub trait Application: Sized + 'static {
    /// What the engine takes of it.
    type Parts: Send + 'static;

    /// Its parts.
    fn into_parts(self) -> Self::Parts;

    /// Runs it to its end.
    fn run_program(program: Program<Self::Parts>, arguments: Vec<OsString>) -> Exit;
}

/// A [`Service`](crate::Service) or an `HttpService` that is made once its own settings are read; see
/// [`Service::from_args`](crate::Service::from_args).
#[must_use]
pub struct FromArgs<T: Application> {
    program: Program<T::Parts>,
}

impl<T: Application> fmt::Debug for FromArgs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromArgs").field("program", &self.program).finish()
    }
}

impl<T: Application> FromArgs<T> {
    pub(crate) fn new<A, F, R>(build: F) -> Self
    where
        A: clap::Args + Send + 'static,
        F: FnOnce(A) -> R + Send + 'static,
        R: Future<Output = Result<T, BoxError>> + Send + 'static,
    {
        let read: Read<T::Parts> = Box::new(|matches| {
            let own = A::from_arg_matches(matches)?;
            Ok(Box::new(|| Box::pin(async move { build(own).await.map(T::into_parts) })))
        });
        Self { program: Program { name: None, version: None, flags: A::augment_args, read } }
    }

    /// The application's version, which `--version` prints and which is noted with each record. Defaults to idem's.
    pub fn version(mut self, version: &'static str) -> Self {
        self.program.version = Some(version);
        self
    }

    /// As [`Service::run`](crate::Service::run).
    #[must_use]
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os()).into()
    }

    /// As [`Service::run_with`](crate::Service::run_with).
    pub fn run_with(self, arguments: impl IntoIterator<Item = OsString>) -> Exit {
        T::run_program(self.program, arguments.into_iter().collect())
    }
}
