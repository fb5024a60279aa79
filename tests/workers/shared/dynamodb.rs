//! A table of a test's own on a server of DynamoDB's protocol, with the ledger in it. The tests of the workers that run on DynamoDB
//! include this file.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    types::AttributeValue,
};

use super::database::{Ledger, until};

/// An item, by the names of its attributes.
pub(crate) type Item = std::collections::HashMap<String, AttributeValue>;

const REGION: &str = "eu-central-1";

/// The variables by which a worker is let in.
pub(crate) const LET_IN: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "test"),
    // The SDK must not ask the machine for its identity.
    ("AWS_EC2_METADATA_DISABLED", "true"),
];

pub(crate) struct Table {
    /// Of the table, the consumer, and the test's topics and queues.
    pub(crate) name: String,
    /// For `--database-url`.
    pub(crate) url: String,
    /// Of the server.
    pub(crate) server: String,
    client: Client,
    folder: PathBuf,
    workers: AtomicU32,
}

impl Table {
    /// A name that no other test has. The first worker makes the table.
    pub(crate) fn new(label: &str) -> Self {
        let name = format!("idem_{label}_{:08x}", fastrand::u32(..));
        let server = std::env::var("IDEM_DYNAMODB_URL").unwrap_or_else(|_| "http://127.0.0.1:28000".to_owned());
        let credentials = Credentials::new("test", "test", None, None, "test");
        let config = Config::builder().behavior_version(BehaviorVersion::latest()).credentials_provider(credentials);
        let config = config.http_client(aws_smithy_http_client::Builder::new().build_http());
        let client = Client::from_conf(config.region(Region::new(REGION)).endpoint_url(&server).build());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&folder).expect("a folder for logs");
        let url = url(&name, &server);
        Self { name, url, server, client, folder, workers: AtomicU32::new(0) }
    }

    /// For `--database-url`, at another address of the server.
    pub(crate) fn url_at(&self, endpoint: &str) -> String {
        url(&self.name, endpoint)
    }

    /// Where the next worker's log goes.
    pub(crate) fn next_log(&self) -> PathBuf {
        self.folder.join(format!("worker-{}.log", self.workers.fetch_add(1, Ordering::Relaxed)))
    }

    /// The items whose partition begins so; none while there is no table.
    pub(crate) async fn items(&self, prefix: &str) -> Vec<Item> {
        let (mut items, mut from) = (Vec::new(), None);
        loop {
            let scan = self.client.scan().table_name(&self.name).consistent_read(true);
            let scan = scan.filter_expression("begins_with(pk, :prefix)");
            let scan = scan.expression_attribute_values(":prefix", AttributeValue::S(prefix.to_owned()));
            let page = match scan.set_exclusive_start_key(from).send().await {
                Ok(page) => page,
                Err(error) if error.as_service_error().is_some_and(|error| error.is_resource_not_found_exception()) => {
                    return Vec::new();
                }
                Err(error) => panic!("the server answers: ./servers up dynamodb: {error:?}"),
            };
            items.extend(page.items.unwrap_or_default());
            from = page.last_evaluated_key;
            if from.is_none() {
                return items;
            }
        }
    }

    /// What is in the ledger.
    pub(crate) async fn ledger(&self) -> Ledger {
        let (mut keys, mut purchases, mut cents, mut by_customer) = (BTreeSet::new(), 0, 0, (0, 0));
        for item in self.items("customer#").await {
            let sort = text(&item, "sk");
            if sort == "total" {
                by_customer.0 += number(&item, "purchases");
                by_customer.1 += number(&item, "cents");
            } else {
                purchases += 1;
                cents += number(&item, "cents");
                keys.insert(sort.split('#').nth(1).unwrap_or_default().to_owned());
            }
        }
        Ledger { purchases, keys: i64::try_from(keys.len()).expect("a count"), cents, by_customer }
    }

    /// Waits until so many purchases are there.
    pub(crate) async fn until_purchases(&self, wanted: i64) {
        until(&format!("{wanted} purchases of {}", self.name), async || self.ledger().await.purchases >= wanted).await;
    }

    /// Reasons of dead letters, and how many there are of each.
    pub(crate) async fn dead_letters(&self) -> BTreeMap<String, i64> {
        let mut reasons = BTreeMap::new();
        for item in self.items(&format!("dead#{}", self.name)).await {
            *reasons.entry(text(&item, "reason").to_owned()).or_default() += number(&item, "copies");
        }
        reasons
    }

    /// Removes the table; that of a test that fails stays.
    pub(crate) async fn remove(self) {
        self.client.delete_table().table_name(&self.name).send().await.expect("the table goes");
        std::fs::remove_dir_all(&self.folder).expect("the logs go");
    }
}

fn url(table: &str, endpoint: &str) -> String {
    format!("dynamodb:{table}?endpoint={endpoint}&region={REGION}")
}

pub(crate) fn text<'a>(item: &'a Item, name: &str) -> &'a str {
    item.get(name).and_then(|value| value.as_s().ok()).map_or("", String::as_str)
}

pub(crate) fn number(item: &Item, name: &str) -> i64 {
    item.get(name).and_then(|value| value.as_n().ok()).and_then(|number| number.parse().ok()).unwrap_or_default()
}
