//! The databases that a worker runs on: opens the one that the settings name, and prepares its tables where that is asked for.

/// The engine on each broker of this crate, compiled here: the trait's own would be compiled in each application.
#[cfg(any(feature = "dynamodb", feature = "postgres", feature = "sqlite", feature = "tokio-postgres"))]
macro_rules! compiled_here {
    () => {
        #[cfg(feature = "kafka")]
        #[inline(never)]
        fn run_on_kafka(
            program: crate::program::Program<crate::service::Parts<crate::kafka::Kafka, Self::Store>>,
            arguments: Vec<std::ffi::OsString>,
        ) -> crate::exit::Exit {
            crate::run::run::<crate::kafka::Kafka, Self>(program, arguments)
        }

        #[cfg(feature = "amqp")]
        #[inline(never)]
        fn run_on_amqp(
            program: crate::program::Program<crate::service::Parts<crate::amqp::Amqp, Self::Store>>,
            arguments: Vec<std::ffi::OsString>,
        ) -> crate::exit::Exit {
            crate::run::run::<crate::amqp::Amqp, Self>(program, arguments)
        }

        #[cfg(feature = "sqs")]
        #[inline(never)]
        fn run_on_sqs(
            program: crate::program::Program<crate::service::Parts<crate::sqs::Sqs, Self::Store>>,
            arguments: Vec<std::ffi::OsString>,
        ) -> crate::exit::Exit {
            crate::run::run::<crate::sqs::Sqs, Self>(program, arguments)
        }

        #[cfg(feature = "http")]
        #[inline(never)]
        fn serve(
            program: crate::program::Program<crate::http::Parts<Self::Store>>,
            arguments: Vec<std::ffi::OsString>,
        ) -> crate::exit::Exit {
            crate::http::run::<Self>(program, arguments)
        }
    };
}

#[cfg(feature = "dynamodb")]
mod dynamodb;
pub(crate) mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

pub use self::open::{Database, DatabaseSettings};
