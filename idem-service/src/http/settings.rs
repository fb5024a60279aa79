//! Applies the settings to the engine's builder.

use std::{fmt, path::PathBuf, sync::Arc};

use idem_core::{Store, outbox::Destination};
use idem_http::{HashSecret, Idempotency, IdempotencyBuilder, Profile};

use super::flags::{HttpFlags, ProfileFlag};

/// The material for routes: `Idempotency-Key` as the settings want it, on the store that they name.
pub struct Opened<S: Store> {
    /// Protects routes: `idempotency.layer()`.
    pub idempotency: Idempotency<S>,
    /// The store, for whatever else the application does with it.
    pub store: Arc<S>,
    database_url: Box<str>,
}

impl<S: Store> Opened<S> {
    /// `--database-url`, for routes that only read and need no transaction of idem's. It may hold a password.
    #[must_use]
    pub fn database_url(&self) -> &str {
        &self.database_url
    }
}

impl<S: Store> fmt::Debug for Opened<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("idempotency", &self.idempotency).finish_non_exhaustive()
    }
}

/// Changes the engine's settings.
pub(super) type Set<S> = Box<dyn FnOnce(IdempotencyBuilder<S>) -> IdempotencyBuilder<S> + Send>;

impl<S: Store> Opened<S> {
    /// # Errors
    /// One line that names the flag.
    pub(super) fn new(
        (name, version): (&str, &'static str),
        store: Arc<S>,
        flags: &HttpFlags,
        destinations: &[Destination],
        set: Vec<Set<S>>,
    ) -> Result<Self, String> {
        let profile = match flags.profile {
            ProfileFlag::Ietf => Profile::ietf(),
            ProfileFlag::Guardia => Profile::guardia(),
            ProfileFlag::Stripe => Profile::stripe(),
        };
        let mut builder = Idempotency::builder(Arc::clone(&store), name)
            .profile(if flags.replay_2xx_as_200 { profile.replay_2xx_as_200() } else { profile })
            .handler_deadline(flags.common.handler_deadline)
            .body_bytes_max(flags.body_max)
            .tenant_requests_max(flags.tenant_requests_max);
        if let Some(wait) = flags.in_progress_wait {
            builder = builder.wait_for_owner(wait);
        }
        if let Some(keys_for) = flags.keys_for {
            builder = builder.keys_for(keys_for);
        }
        if let Some(rate) = flags.tenant_rate_max {
            builder = builder.tenant_rate_max(rate);
        }
        if let Some(lanes) = flags.lanes {
            builder = builder.lanes(lanes);
        }
        for (number, file) in &flags.hash_secret {
            builder = builder.hash_secret(secret(*number, file)?);
        }
        // Of a service that had no secret at first, records are known all the same. A secret of the application's counts as one of the
        // settings.
        builder = builder.plain_hashes();
        let (destinations, answers_for) = (destinations.to_vec(), flags.answers_for);
        builder = builder.engine(move |engine| {
            let engine = engine.version(version).publish_to(destinations);
            match answers_for {
                Some(time) => engine.result_retention(time),
                None => engine,
            }
        });
        let builder = set.into_iter().fold(builder, |builder, set| set(builder));
        let idempotency = builder.build().map_err(|error| match error.field {
            "wait_for_owner" => format!("--in-progress-wait is {}, but {}", error.value, error.rule),
            "hash_secret" => format!("--hash-secret is {}, but {}", error.value, error.rule),
            "body_bytes_max" => format!("--body-max is {}, but {}", error.value, error.rule),
            "keys_for" | "retention" => format!("--keys-for is {}, but {}", error.value, error.rule),
            _ => crate::settings::refused(&error),
        })?;
        if !idempotency.is_keyed() && !flags.plain_hashes {
            tracing::warn!(
                "fingerprints of requests are plain hashes, from which a card's number or another short secret of a body can be \
                 guessed: give --hash-secret 1=FILE, with 32 random bytes or more, the same in all instances, or --plain-hashes \
                 where bodies hold no secret"
            );
        }
        Ok(Self { idempotency, store, database_url: flags.common.database_url.as_str().into() })
    }
}

fn secret(number: u16, file: &PathBuf) -> Result<HashSecret, String> {
    let refused = |why: String| format!("the file {} of --hash-secret {why}", file.display());
    let text = std::fs::read(file).map_err(|error| refused(format!("cannot be read: {error}")))?;
    let secret = HashSecret::new(number, text.trim_ascii());
    secret.map_err(|error| refused(format!("holds a secret that is {}, but {}", error.value, error.rule)))
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        body::Body,
        http::{Request, StatusCode},
        routing::post,
    };
    use clap::{Args as _, Command, FromArgMatches as _};
    use idem_http::IdempotentTx;
    use idem_testkit::MemoryStore;
    use tower::ServiceExt as _;

    use super::*;

    /// W158, W159: a tenant's rate and the status of replays have flags.
    #[tokio::test]
    async fn w158_w159_rate_and_status_of_replays_have_flags() {
        let line = ["service", "--database-url", "sqlite://x", "--tenant-rate-max", "2", "--replay-2xx-as-200"];
        let matches = HttpFlags::augment_args(Command::new("service")).try_get_matches_from(line).unwrap();
        let flags = HttpFlags::from_arg_matches(&matches).unwrap();
        let (set, store): (Set<MemoryStore>, _) = (Box::new(IdempotencyBuilder::single_tenant), MemoryStore::new());
        let opened = Opened::new(("payments", "0"), Arc::new(store), &flags, &[], vec![set]).unwrap();
        let created = async |_: IdempotentTx<MemoryStore>| StatusCode::CREATED;
        let route = Router::new().route("/t", post(created).route_layer(opened.idempotency.layer()));
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let request = Request::post("/t").header("idempotency-key", "k").body(Body::empty()).unwrap();
            statuses.push(route.clone().oneshot(request).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [201, 200, 429]);
    }

    /// W22: the requests that a tenant may have in hand, repeats that wait included, have a flag.
    #[tokio::test]
    async fn w22_a_tenants_requests_have_a_flag() {
        let line = ["service", "--database-url", "sqlite://x", "--tenant-requests-max", "1"];
        let matches = HttpFlags::augment_args(Command::new("service")).try_get_matches_from(line).unwrap();
        let flags = HttpFlags::from_arg_matches(&matches).unwrap();
        let (set, store): (Set<MemoryStore>, _) = (Box::new(IdempotencyBuilder::single_tenant), MemoryStore::new());
        let opened = Opened::new(("payments", "0"), Arc::new(store), &flags, &[], vec![set]).unwrap();
        let waits = async |_: IdempotentTx<MemoryStore>| std::future::pending::<StatusCode>().await;
        let route = Router::new().route("/t", post(waits).route_layer(opened.idempotency.layer()));
        let send = |key| {
            let request = Request::post("/t").header("idempotency-key", key).body(Body::empty()).unwrap();
            route.clone().oneshot(request)
        };
        let one_more = tokio::select! {
            biased;
            _ = send("k") => panic!("it does not end"),
            answered = send("l") => answered.unwrap(),
            () = std::future::ready(()) => panic!("it was let in"),
        };
        assert_eq!(one_more.status(), 429);
    }
}
