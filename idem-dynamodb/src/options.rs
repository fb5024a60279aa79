//! The settings of a store, and the client that a URL describes.

use std::{fmt, sync::Arc, time::Duration};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_smithy_http_client::{Builder, tls};
use idem_core::{
    ConfigError,
    copies::{Copies, FastPath},
};
use percent_encoding::percent_decode_str;

use crate::{client::Requests, copies::Near, store::DynamoStore};

/// The scheme of the URL of a store.
const SCHEME: &str = "dynamodb:";

/// A URL's form, for the texts of errors.
const FORM: &str = "it must have the form dynamodb:TABLE, or dynamodb:TABLE?endpoint=URL&region=NAME";

/// The settings of a [`DynamoStore`].
#[derive(Clone)]
#[must_use]
pub struct DynamoOptions {
    client: Client,
    table: String,
    pub(crate) limits: Limits,
    copies: Option<Arc<dyn Copies>>,
    copies_plain: bool,
}

/// The times of a store, and whether its cleaner scans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) lease: Duration,
    pub(crate) commit: Duration,
    pub(crate) attempt: Duration,
    pub(crate) scans: bool,
}

impl fmt::Debug for DynamoOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client prints its credentials' provider and its endpoint.
        f.debug_struct("DynamoOptions")
            .field("table", &self.table)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl DynamoOptions {
    /// One table, over a client of the caller's: region, credentials, endpoint and HTTP are its own. Retries and time-outs are idem's.
    pub(crate) fn new(client: Client, table: String) -> Self {
        let limits = Limits {
            lease: Duration::from_secs(5),
            commit: Duration::from_secs(8),
            attempt: Duration::from_secs(3),
            scans: false,
        };
        Self { client, table, limits, copies: None, copies_plain: false }
    }

    /// How long a claim keeps other workers away after its worker died. Defaults to 5 s; from 100 ms to 12 h.
    ///
    /// It saves work, and guards nothing: a handler that takes longer may have a twin beside it, and the transaction of one of them
    /// commits. Set it to what most handlers need.
    pub fn lease(mut self, time: Duration) -> Self {
        self.limits.lease = time;
        self
    }

    /// How long a commit without an answer is repeated before its outcome counts as unknown. Defaults to 8 s; from 100 ms to 5 minutes, and
    /// shorter than [`commit_timeout`](idem_core::consumer::DedupConsumerBuilder::commit_timeout) of the consumer.
    pub fn commit_within(mut self, time: Duration) -> Self {
        self.limits.commit = time;
        self
    }

    /// How long one request may take. Defaults to 3 s; from 10 ms to 1 minute.
    pub fn request_timeout(mut self, time: Duration) -> Self {
        self.limits.attempt = time;
        self
    }

    /// Has the [cleaner](idem_core::cleanup::Cleanup) read the whole table for what has expired. Off by default: DynamoDB removes expired items by
    /// itself, and a scan costs half a read unit for each 4 KB of the table.
    pub fn scans(mut self, yes: bool) -> Self {
        self.limits.scans = yes;
        self
    }

    /// Keeps copies of records in this cache, such as `RedisCopies` of idem-redis: a duplicate with a copy takes no request to DynamoDB.
    ///
    /// The copies decide nothing. A cache that is slow, empty, stale or another store's costs time.
    pub fn copies(mut self, copies: impl Copies) -> Self {
        self.copies = Some(Arc::new(copies));
        self
    }

    /// Whether results that are not encrypted may be copied. Off by default: such a result is read from the table, by one request, and only
    /// encrypted results are copied.
    pub fn copies_plain(mut self, yes: bool) -> Self {
        self.copies_plain = yes;
        self
    }

    /// The store. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ConfigError`] with field, value and rule.
    pub fn build(self) -> Result<DynamoStore, ConfigError> {
        let (ms, second) = (Duration::from_millis(1), Duration::from_secs(1));
        let spans = [
            ("lease", self.limits.lease, 100 * ms, 12 * 3600 * second, "it must be from 100 ms to 12 hours"),
            ("commit_within", self.limits.commit, 100 * ms, 300 * second, "it must be from 100 ms to 5 minutes"),
            ("request_timeout", self.limits.attempt, 10 * ms, 60 * second, "it must be from 10 ms to 1 minute"),
        ];
        for (field, value, min, max, rule) in spans {
            if value < min || value > max {
                return Err(ConfigError::span(field, value, rule));
            }
        }
        check_table(&self.table)?;
        let near = self.copies.map(|copies| Near::new(FastPath::new(copies, self.copies_plain)));
        Ok(DynamoStore::new(Requests::new(&self.client, self.table, self.limits, near)))
    }

    /// The options of a URL, over a client with the configuration that the AWS SDK finds; see [`DynamoStore::connect`].
    ///
    /// # Errors
    /// [`ConfigError`] where the URL has another form, or there is no region.
    pub async fn of_url(url: &str) -> Result<Self, ConfigError> {
        let Place { table, endpoint, region } = Place::parse(url)?;
        let tls = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
        let http = Builder::new().tls_provider(tls).build_https();
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        if let Some(endpoint) = endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        let config = loader.load().await;
        if config.region().is_none_or(|region| region.as_ref().is_empty()) {
            let rule = "there is no AWS region: set AWS_REGION, the region of the profile, or ?region= in the URL";
            return Err(ConfigError::new("database URL", SCHEME, rule));
        }
        Ok(Self::new(Client::new(&config), table))
    }
}

/// 3 to 255 of the characters that DynamoDB takes.
fn check_table(table: &str) -> Result<(), ConfigError> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if (3..=255).contains(&table.len()) && table.bytes().all(is_name) {
        return Ok(());
    }
    let rule = "a table of DynamoDB has 3 to 255 of the characters a-z, A-Z, 0-9, _, - and .";
    Err(ConfigError::new("table", format!("{table:?}"), rule))
}

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    table: String,
    endpoint: Option<String>,
    region: Option<String>,
}

impl Place {
    fn parse(url: &str) -> Result<Self, ConfigError> {
        // Never the URL itself: an endpoint may have a password.
        let refused = |shown: &str| ConfigError::new("database URL", shown, FORM);
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| refused("of another scheme"))?;
        let (table, query) = rest.split_once('?').map_or((rest, None), |(table, query)| (table, Some(query)));
        check_table(table)?;
        let mut place = Self { table: table.to_owned(), endpoint: None, region: None };
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| refused("with a setting without a value"))?;
            let value =
                percent_decode_str(value).decode_utf8().map_err(|_| refused("with a value that is not UTF-8"))?;
            let setting = match name {
                "endpoint" => &mut place.endpoint,
                "region" => &mut place.region,
                _ => return Err(refused("with a setting other than endpoint and region")),
            };
            if value.is_empty() || setting.replace(value.into_owned()).is_some() {
                return Err(refused("with a setting that is empty or there twice"));
            }
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_table_and_two_settings() {
        let of = |table: &str, endpoint: Option<&str>, region: Option<&str>| {
            Ok(Place {
                table: table.to_owned(),
                endpoint: endpoint.map(str::to_owned),
                region: region.map(str::to_owned),
            })
        };
        assert_eq!(Place::parse("dynamodb:purchases"), of("purchases", None, None));
        let url = "dynamodb:a.b?endpoint=http://localhost:28000&region=eu-central-1";
        assert_eq!(Place::parse(url), of("a.b", Some("http://localhost:28000"), Some("eu-central-1")));
        assert_eq!(Place::parse("dynamodb:abc?endpoint=http%3A%2F%2Fh"), of("abc", Some("http://h"), None));
        for wrong in [
            "purchases",
            "dynamodb:",
            "dynamodb:a b c",
            "dynamodb:abc?x=1",
            "dynamodb:abc?region=",
            "dynamodb:abc?region",
        ] {
            let error = Place::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("dynamodb:TABLE") || error.contains("3 to 255"), "{wrong}: {error}");
        }
        let secret = Place::parse("dynamodb:abc?endpoint=http://u:secret@h&endpoint=x").unwrap_err();
        assert!(!format!("{secret} {secret:?}").contains("secret"));
    }
}
