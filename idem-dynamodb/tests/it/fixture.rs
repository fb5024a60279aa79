//! Tables of a test's own, on the server.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use idem_core::{DedupConsumer, Effects, Handler, HandlerError, Message, Tx};
use idem_dynamodb::{
    DynamoOptions, DynamoStore, Item,
    aws_sdk_dynamodb::{
        Client, Config,
        config::{BehaviorVersion, Credentials, Region},
        types::{AttributeValue, Put, Update},
    },
};
use idem_testkit::proxy::dynamodb::DynamoProxy;

/// Where the server answers.
pub(crate) fn url() -> String {
    std::env::var("IDEM_DYNAMODB_URL").unwrap_or_else(|_| "http://127.0.0.1:28000".to_owned())
}

/// A name that no other test has, in this run or another.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Process ids are used again; a hasher's seed does not.
    let seed = RandomState::new().build_hasher().finish();
    format!("idem-{what}-{count}-{seed:016x}")
}

pub(crate) fn client(endpoint: &str) -> Client {
    let credentials = Credentials::new("test", "test", None, None, "test");
    let config = Config::builder().behavior_version(BehaviorVersion::latest()).credentials_provider(credentials);
    let config = config.http_client(aws_smithy_http_client::Builder::new().build_http());
    Client::from_conf(config.region(Region::new("eu-central-1")).endpoint_url(endpoint).build())
}

/// A table of its own, behind a proxy. The lease is long beside what a case takes, so that none ends by chance.
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) proxy: DynamoProxy,
    pub(crate) store: Arc<DynamoStore>,
    /// Past the proxy.
    pub(crate) client: Client,
}

impl Table {
    pub(crate) async fn new(what: &str) -> Self {
        Self::with(what, |options| options).await
    }

    pub(crate) async fn with(what: &str, set: impl FnOnce(DynamoOptions) -> DynamoOptions) -> Self {
        let (name, proxy) = (unique(what), DynamoProxy::start(&url()).await.unwrap());
        let store = set(options(&proxy, &name)).build().unwrap();
        store.migrate().await.unwrap();
        Self { name, proxy, store: Arc::new(store), client: client(&url()) }
    }

    /// The same table from another process.
    pub(crate) fn another(&self) -> Arc<DynamoStore> {
        Arc::new(options(&self.proxy, &self.name).build().unwrap())
    }

    /// Every item, in no order.
    pub(crate) async fn items(&self) -> Vec<Item> {
        let (mut items, mut from) = (Vec::new(), None);
        loop {
            let scan = self.client.scan().table_name(&self.name).consistent_read(true);
            let page = scan.set_exclusive_start_key(from).send().await.unwrap();
            items.extend(page.items.unwrap_or_default());
            from = page.last_evaluated_key;
            if from.is_none() {
                return items;
            }
        }
    }

    /// Those whose partition begins so.
    pub(crate) async fn items_of(&self, prefix: &str) -> Vec<Item> {
        let mut items = self.items().await;
        items.retain(|item| string(item, "pk").starts_with(prefix));
        items.sort_by_key(|item| (string(item, "pk").to_owned(), string(item, "sk").to_owned()));
        items
    }

    pub(crate) async fn drop(self) {
        self.client.delete_table().table_name(&self.name).send().await.unwrap();
    }

    /// A consumer whose handler is [`Buy`].
    pub(crate) fn buys(&self) -> DedupConsumer<DynamoStore> {
        let builder = DedupConsumer::builder(Arc::clone(&self.store), "purchases");
        builder.handler(Buy).effects(Effects::InTransaction).build().unwrap()
    }

    /// What the customer has: purchases counted, and purchases that are there.
    pub(crate) async fn ledger(&self, customer: &str) -> (i64, usize) {
        let items = self.items_of(&format!("customer#{customer}")).await;
        let total = items.iter().find(|item| string(item, "sk") == "total");
        (total.map_or(0, |item| number(item, "purchases")), items.len() - usize::from(total.is_some()))
    }
}

fn options(proxy: &DynamoProxy, name: &str) -> DynamoOptions {
    DynamoStore::of(client(proxy.endpoint()), name).lease(Duration::from_secs(60)).scans(true)
}

pub(crate) fn string<'a>(item: &'a Item, name: &str) -> &'a str {
    item.get(name).and_then(|value| value.as_s().ok()).map_or("", String::as_str)
}

pub(crate) fn number(item: &Item, name: &str) -> i64 {
    item.get(name).and_then(|value| value.as_n().ok()).and_then(|number| number.parse().ok()).unwrap_or_default()
}

pub(crate) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn at(pk: &str, sk: &str) -> Item {
    Item::from([("pk".to_owned(), text(pk)), ("sk".to_owned(), text(sk))])
}

/// A purchase of the customer that the payload names: a relative change of a total, and an item of its own, so that a double effect would
/// show twice.
pub(crate) struct Buy;

impl Handler<DynamoStore> for Buy {
    async fn handle(&self, message: &Message, tx: &mut Tx<'_, DynamoStore>) -> Result<(), HandlerError> {
        let customer = String::from_utf8_lossy(message.payload().map_or(b"", |payload| payload)).into_owned();
        buy(tx, &customer)?;
        Ok(())
    }
}

pub(crate) fn buy(tx: &mut Tx<'_, DynamoStore>, customer: &str) -> Result<(), HandlerError> {
    let (mut tx, partition) = (tx.connection(), format!("customer#{customer}"));
    let total = Update::builder()
        .table_name(tx.table())
        .set_key(Some(at(&partition, "total")))
        .update_expression("ADD purchases :one")
        .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
        .build()?;
    let purchase = Put::builder().table_name(tx.table()).set_item(Some(at(&partition, &unique("purchase")))).build()?;
    tx.write(total);
    tx.write(purchase);
    Ok(())
}
