//! Requests that share transactions: each keeps its own effects and settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use idem_core::{BoxError, Effects, Tx, telemetry};
use idem_http::{HttpError, Idempotency, IdempotencyBuilder};
use idem_schema::SchemaName;
use idem_testkit::{Fault, Operation};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::watch;

use super::{
    grounds::{Ground, Memory, Postgres, Sqlite, TokioPostgres},
    support::{Handler, Route, Runs, Seen, answer, builder, request, request_of, send},
};

pub(super) type Sending = Pin<Box<dyn Future<Output = Seen> + Send>>;

/// A place where handlers wait until the test lets them go on.
#[derive(Clone)]
pub(super) struct Gate(Arc<(watch::Sender<usize>, watch::Sender<bool>)>);

impl Gate {
    pub(super) fn new() -> Self {
        Self(Arc::new((watch::Sender::new(0), watch::Sender::new(false))))
    }

    async fn pass(&self) {
        self.0.0.send_modify(|arrived| *arrived += 1);
        self.0.1.subscribe().wait_for(|open| *open).await.unwrap();
    }

    pub(super) async fn arrived(&self, count: usize) {
        self.0.0.subscribe().wait_for(|arrived| *arrived >= count).await.unwrap();
    }

    pub(super) fn open(&self) {
        self.0.1.send_replace(true);
    }
}

/// A route whose requests share transactions on one connection: the requests that come while one runs are in the next one. The
/// handler writes the body as an effect; a request with `x-held` then waits at the gate that it names.
pub(super) struct Service<G: Ground> {
    pub(super) ground: G,
    pub(super) idempotency: Idempotency<G::Store>,
    pub(super) route: Route<G>,
    pub(super) runs: Arc<Runs>,
    pub(super) gates: Gates,
    pub(super) units: Snapshotter,
    /// The key and the body of the request that is held while others come.
    pub(super) first: &'static str,
}

/// That of the first request, and that of the last.
pub(super) type Gates = [Gate; 2];

pub(super) fn gates() -> Gates {
    [Gate::new(), Gate::new()]
}

impl<G: Ground> Service<G> {
    pub(super) async fn new() -> Self {
        Self::with(|builder| builder.wait_for_owner(Duration::from_secs(20))).await
    }

    async fn with(settings: impl FnOnce(IdempotencyBuilder<G::Store>) -> IdempotencyBuilder<G::Store>) -> Self {
        let ground = G::new().await;
        let recorder = DebuggingRecorder::new();
        let build = || settings(builder(&ground).lanes(1)).build().unwrap();
        let idempotency = metrics::with_local_recorder(&recorder, build);
        idempotency.start().await.unwrap();
        let (runs, gates) = (Arc::<Runs>::default(), gates());
        let route = route::<G>(&idempotency, &runs, &gates);
        Self { ground, idempotency, route, runs, gates, units: recorder.snapshotter(), first: "first" }
    }

    /// How many requests were in each unit so far, since this was asked last.
    fn units(&self) -> Vec<usize> {
        let all = self.units.snapshot().into_vec();
        let sizes = all.into_iter().find(|(key, ..)| key.key().name() == telemetry::BATCH_SIZE.name);
        let Some((.., DebugValue::Histogram(sizes))) = sizes else { return Vec::new() };
        sizes.into_iter().map(|size| size.into_inner() as usize).collect()
    }

    pub(super) fn begun(&self) -> usize {
        self.runs.begun()
    }

    /// Sends one request, which is held in its handler, and then the others, which come while it runs.
    pub(super) async fn held(&self, others: impl IntoIterator<Item = Request<Full<Bytes>>>) -> Vec<Sending> {
        let first = begun(send::<G>(&self.route, held(request(self.first, self.first), 0))).await;
        self.gates[0].arrived(1).await;
        let mut all = vec![first];
        for other in others {
            all.push(begun(send::<G>(&self.route, other)).await);
        }
        all
    }

    /// Lets the handler go on, and answers all but the first request.
    pub(super) async fn answered(&self, all: Vec<Sending>) -> Vec<Seen> {
        self.gates[0].open();
        let mut seen = Vec::new();
        for one in all {
            seen.push(one.await);
        }
        assert_eq!(seen.remove(0).status, 201, "the first request ran alone");
        seen
    }

    pub(super) async fn together(&self, others: impl IntoIterator<Item = Request<Full<Bytes>>>) -> Vec<Seen> {
        let all = self.held(others).await;
        self.answered(all).await
    }

    /// Sends each request again, and compares.
    async fn assert_repeats(&self, requests: impl IntoIterator<Item = Request<Full<Bytes>>>, seen: &[Seen]) {
        let begun = self.begun();
        for (request, first) in requests.into_iter().zip(seen) {
            let again = send::<G>(&self.route, request).await;
            assert_eq!((again.status, &again.body, again.is_replayed()), (first.status, &first.body, Some(true)));
            assert_eq!(again.header("location"), first.header("location"));
        }
        assert_eq!(self.begun(), begun, "a repeat runs nothing");
    }
}

pub(super) fn route<G: Ground>(idempotency: &Idempotency<G::Store>, runs: &Arc<Runs>, gates: &Gates) -> Route<G> {
    let (runs, gates) = (Arc::clone(runs), gates.clone());
    let handler: Handler<G::Store> = Box::new(move |request, tx| {
        let (runs, gates) = (Arc::clone(&runs), gates.clone());
        Box::pin(async move {
            runs.one_begun();
            let body = String::from_utf8(request.body().to_vec()).unwrap();
            G::pay(tx, body.clone()).await.map_err(|error: BoxError| HttpError::from(error))?;
            if let Some(number) = request.headers().get("x-held") {
                gates[usize::from(number == "1")].pass().await;
            }
            if body == "hang" {
                std::future::pending::<()>().await;
            }
            answer(&body)
        })
    });
    idempotency.route("/t", handler).shares_units(16).unwrap()
}

pub(super) fn held(mut request: Request<Full<Bytes>>, gate: u16) -> Request<Full<Bytes>> {
    request.headers_mut().insert("x-held", gate.into());
    request
}

/// A request that has its place: on one thread, every task that is ready has had its turn once this one has yielded.
async fn begun(mut sending: Sending) -> Sending {
    for _ in 0..10 {
        let polled = std::future::poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
        assert!(polled.is_pending(), "it waits for the one that is held");
        tokio::task::yield_now().await;
    }
    sending
}

/// Requests of these bodies, each under a key of its own.
fn requests(bodies: &[&str]) -> Vec<Request<Full<Bytes>>> {
    bodies.iter().enumerate().map(|(number, body)| request(&format!("k-{number}"), body)).collect()
}

pub(super) fn statuses(seen: &[Seen]) -> Vec<u16> {
    seen.iter().map(|seen| seen.status).collect()
}

/// The transactions that wrote the records of each tenant; none on a store without numbers for them.
async fn transactions<G: Ground>(ground: &G) -> BTreeMap<String, BTreeSet<String>> {
    let mut of = BTreeMap::<String, BTreeSet<String>>::new();
    for (key, transaction) in ground.transactions().await {
        of.entry(key.split(' ').next().unwrap().to_owned()).or_default().insert(transaction);
    }
    of
}

pub(crate) async fn w80_requests_that_come_together_share_a_transaction<G: Ground>() {
    let service = Service::<G>::new().await;
    let bodies: Vec<String> = (0..20).map(|number| format!("body-{number:02}")).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let seen = service.together(requests(&bodies)).await;
    // No request waits for company: the first one ran at once. At most 16 share a transaction.
    assert_eq!(service.units(), [1, 16, 4]);
    assert_eq!(statuses(&seen), [201; 20]);
    assert!(seen.iter().all(|seen| seen.is_replayed() == Some(false)));
    let answers: BTreeSet<&Bytes> = seen.iter().map(|seen| &seen.body).collect();
    assert_eq!(answers.len(), 20, "each has its own answer");
    assert_eq!(service.ground.paid().await, [&bodies[..], &["first"]].concat());
    for transactions in transactions(&service.ground).await.into_values() {
        assert_eq!(transactions.len(), 3, "of 21 records");
    }
    service.assert_repeats(requests(&bodies), &seen).await;
}

/// An answer is given after the commit of the whole transaction, and not when its own handler has ended.
pub(crate) async fn w80_no_answer_comes_before_the_commit<G: Ground>() {
    let service = Service::<G>::new().await;
    let mut all = service.held([request("a", "one"), request("b", "two"), held(request("c", "three"), 1)]).await;
    service.gates[0].open();
    assert_eq!(all.remove(0).await.status, 201);
    // The handlers of the first two have ended by now, and the third one's has not.
    service.gates[1].arrived(1).await;
    assert_eq!(service.begun(), 4);
    let mut waiting = Vec::new();
    for one in all {
        waiting.push(begun(one).await);
    }
    assert_eq!(service.ground.paid().await, ["first"]);
    service.gates[1].open();
    for one in waiting {
        assert_eq!(one.await.status, 201);
    }
    assert_eq!(service.units(), [1, 3]);
    assert_eq!(service.ground.paid().await, ["first", "one", "three", "two"]);
}

pub(crate) async fn w81_tenants_and_routes_share_no_transaction<G: Ground>() {
    let service = Service::<G>::new().await;
    let of = |tenant: &str, key: &str| request_of(tenant, key, key);
    let mut patch = of("acme", "e");
    *patch.method_mut() = http::Method::PATCH;
    let others = [of("globex", "a"), of("acme", "b"), of("globex", "c"), of("acme", "d"), patch];
    assert_eq!(statuses(&service.together(others).await), [201; 5]);
    let mut units = service.units();
    units.sort_unstable();
    assert_eq!(units, [1, 1, 2, 2]);
    let of = transactions(&service.ground).await;
    if let (Some(acme), Some(globex)) = (of.get("4:acme"), of.get("6:globex")) {
        assert_eq!((acme.len(), globex.len()), (3, 1), "{of:?}");
        assert!(acme.is_disjoint(globex), "{of:?}");
    }
    assert_eq!(service.ground.paid().await, ["a", "b", "c", "d", "e", "first"]);
}

pub(crate) async fn w82_a_refusal_takes_back_its_own_effects_alone<G: Ground>() {
    let service = Service::<G>::new().await;
    let bodies = ["one", "final", "two", "declined", "final", "three"];
    let seen = service.together(requests(&bodies)).await;
    assert_eq!(statuses(&seen), [201, 422, 201, 402, 422, 201]);
    assert_eq!((service.units(), service.begun()), (vec![1, 6], 7), "nobody ran again for a refusal");
    assert_eq!(service.ground.paid().await, ["declined", "first", "one", "three", "two"]);
    service.assert_repeats(requests(&bodies), &seen).await;
}

pub(crate) async fn w83_a_neighbours_failure_is_its_own<G: Ground>() {
    for failing in ["error", "panic", "not kept", "status 500", "status 401", "large"] {
        let service = Service::<G>::with(|builder| builder.response_bytes_max(1_000)).await;
        let bodies = ["one", failing, "two", "final"];
        let seen = service.together(requests(&bodies)).await;
        let own = statuses(&seen);
        assert_eq!((own[0], own[2], own[3]), (201, 201, 422), "{failing}: {seen:?}");
        let expected = if failing == "not kept" { 400..401 } else { 500..504 };
        assert!(expected.contains(&own[1]), "{failing}: {seen:?}");
        // All of them ran alone, and at most once more.
        assert_eq!(service.units(), [1, 4, 1, 1, 1, 1], "{failing}");
        assert_eq!(service.ground.paid().await, ["first", "one", "two"], "{failing}");
        let (repeats, kept) = (requests(&bodies).into_iter(), seen.into_iter());
        let (repeats, kept): (Vec<_>, Vec<_>) =
            repeats.zip(kept).enumerate().filter(|(place, _)| *place != 1).map(|(_, both)| both).unzip();
        service.assert_repeats(repeats, &kept).await;
    }
}

pub(crate) async fn w83_a_neighbour_that_does_not_end_is_cut_off<G: Ground>() {
    let service = Service::<G>::with(|builder| builder.handler_deadline(Duration::from_secs(2))).await;
    let bodies = ["one", "hang", "two"];
    let seen = service.together(requests(&bodies)).await;
    assert_eq!(statuses(&seen), [201, 503, 201], "{seen:?}");
    assert_eq!(service.ground.paid().await, ["first", "one", "two"]);
    service.assert_repeats([request("k-0", "one")], &seen[..1]).await;
}

pub(crate) async fn w84_a_client_that_is_gone_takes_nobody_with_it<G: Ground>() {
    let service = Service::<G>::new().await;
    let bodies = ["one", "two", "three"];
    let mut all = service.held(requests(&bodies)).await;
    // The one that would lead, and the one whose handler runs.
    drop(all.remove(1));
    drop(all.remove(0));
    service.gates[0].open();
    let mut seen = Vec::new();
    for one in all {
        seen.push(one.await);
    }
    assert_eq!(statuses(&seen), [201, 201]);
    let gone = send::<G>(&service.route, request("k-0", "one")).await;
    assert_eq!((gone.status, gone.is_replayed()), (201, Some(true)), "{gone:?}");
    let first = send::<G>(&service.route, request("first", "first")).await;
    assert_eq!((first.status, first.is_replayed()), (201, Some(true)), "{first:?}");
    assert_eq!(service.ground.paid().await, ["first", "one", "three", "two"]);
    assert_eq!((service.begun(), service.units()[..2].to_vec()), (4, vec![1, 3]));
}

/// The same key twice at once, and for another request, among others and over two instances.
pub(crate) async fn w85_one_key_in_one_group_is_one_operation<G: Ground>() {
    let service = Service::<G>::new().await;
    let others = [request("k", "one"), request("k", "one"), request("k", "two"), request("l", "three")];
    let seen = service.together(others).await;
    assert_eq!(statuses(&seen), [201, 201, 422, 201], "{seen:?}");
    assert_eq!((&seen[0].body, seen[1].is_replayed()), (&seen[1].body, Some(true)));
    assert_eq!(service.ground.paid().await, ["first", "one", "three"]);
    assert_eq!(service.begun(), 3);
    // Another instance, whose transaction of several meets a key of this one's.
    let there = builder(&service.ground).lanes(1).wait_for_owner(Duration::from_secs(20)).build().unwrap();
    there.start().await.unwrap();
    let gates = gates();
    let there = Service { route: route::<G>(&there, &service.runs, &gates), gates, first: "again", ..service };
    let again = there.together([request("k", "one"), request("m", "four"), request("l", "other")]).await;
    assert_eq!((statuses(&again), &again[0].body), (vec![201, 201, 422], &seen[0].body));
    assert_eq!(there.ground.paid().await, ["again", "first", "four", "one", "three"]);
}

/// The answer to the commit of several is lost, on either side of it: each finds out, and there is one effect of each.
#[tokio::test]
async fn w85_a_lost_answer_to_the_commit_of_several_is_resolved() {
    for fault in [Fault::AnswerLost, Fault::ConnectionLost] {
        let service = Service::<Memory>::new().await;
        let bodies = ["one", "final", "two"];
        let mut others = requests(&bodies);
        let last = others.pop().unwrap();
        others.push(held(last, 1));
        let all = service.held(others).await;
        service.gates[0].open();
        // The commit of the first request is over by now.
        service.gates[1].arrived(1).await;
        service.ground.store().inject(Operation::Commit, fault);
        service.gates[1].open();
        let seen = service.answered(all).await;
        assert_eq!(statuses(&seen), [201, 422, 201], "{fault:?}: {seen:?}");
        assert_eq!(service.units()[..2], [1, 3], "{fault:?}");
        assert_eq!(service.ground.paid().await, ["first", "one", "two"], "{fault:?}");
        assert_eq!(service.begun(), if fault == Fault::AnswerLost { 4 } else { 7 });
        service.assert_repeats(requests(&bodies), &seen).await;
    }
}

#[tokio::test]
async fn w86_what_may_not_share_is_refused_as_it_is_built() {
    let ground = Memory::new().await;
    let refused = |settings: IdempotencyBuilder<_>, max: usize| {
        let route = settings.build().unwrap().route("/t", |_, _| Box::pin(async { panic!("it ran") }));
        route.shares_units(max).err().map(|error| (error.field, error.value))
    };
    for max in [0, 1, 17] {
        assert_eq!(refused(builder(&ground), max), Some(("shares_units", max.to_string())));
    }
    assert_eq!((refused(builder(&ground), 2), refused(builder(&ground), 16)), (None, None));
    let outside = builder(&ground).engine(|engine| engine.effects(Effects::Outside));
    assert_eq!(refused(outside, 16), Some(("shares_units", "set".to_owned())));
    let of_one = builder(&ground).engine(idem_core::DedupConsumerBuilder::units_of_one);
    assert_eq!(refused(of_one, 16), Some(("shares_units", "set".to_owned())));
}

/// A ground whose handlers can set something for their transactions.
pub(crate) trait Settings: Ground {
    fn schema(&self) -> &SchemaName;
    /// Answers what [`ASK`] asks for, and then runs [`SET`].
    fn ask_and_set<'a>(tx: &'a mut Tx<'_, Self::Store>) -> Asking<'a>;
}

type Asking<'a> = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send + 'a>>;

impl Settings for Postgres {
    fn schema(&self) -> &SchemaName {
        &self.schema
    }

    fn ask_and_set<'a>(tx: &'a mut Tx<'_, Self::Store>) -> Asking<'a> {
        Box::pin(async move {
            let answer = sqlx::query_scalar(ASK).fetch_one(tx.connection()).await?;
            sqlx::raw_sql(SET).execute(tx.connection()).await?;
            Ok(answer)
        })
    }
}

impl Settings for TokioPostgres {
    fn schema(&self) -> &SchemaName {
        &self.schema
    }

    fn ask_and_set<'a>(tx: &'a mut Tx<'_, Self::Store>) -> Asking<'a> {
        Box::pin(async move {
            let answer = tx.connection().query_one(ASK, &[]).await?.try_get(0)?;
            for statement in SET.split(';') {
                tx.connection().execute(statement, &[]).await?;
            }
            Ok(answer)
        })
    }
}

const SET: &str = "SET TIME ZONE 'Asia/Tokyo'; SET LOCAL statement_timeout = '1h'; SET LOCAL lock_timeout = '1h';
    SET LOCAL search_path = pg_catalog; SET LOCAL app.tenant = 'acme'; SET LOCAL idle_in_transaction_session_timeout = 0;
    SET LOCAL ROLE pg_monitor";
const ASK: &str = "SELECT concat_ws('|', current_setting('timezone'), current_setting('statement_timeout'),
    current_setting('lock_timeout'), current_setting('search_path'), coalesce(current_setting('app.tenant', true), ''), current_user,
    current_setting('idle_in_transaction_session_timeout'), current_setting('default_transaction_read_only'))";

/// The settings of one handler, of transaction or session, are not there for the next one, nor are those of a refused one.
async fn settings_are_put_back<G: Settings>() {
    let ground = G::new().await;
    let idempotency = builder(&ground).lanes(1).build().unwrap();
    idempotency.start().await.unwrap();
    // The role that a handler takes has to write its answer.
    let schema = ground.schema().quoted();
    let grant = format!(
        "GRANT USAGE ON SCHEMA {schema} TO pg_monitor; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO pg_monitor"
    );
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&super::grounds::url()).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(&mut connection).await.unwrap();
    let gate = Gate::new();
    let at_gate = gate.clone();
    let handler: Handler<G::Store> = Box::new(move |request, tx| {
        let gate = at_gate.clone();
        Box::pin(async move {
            let seen = G::ask_and_set(tx).await?;
            if request.headers().contains_key("x-held") {
                gate.pass().await;
            }
            let response = http::Response::new(Bytes::from(seen));
            if **request.body() == *b"final" { Err(HttpError::refused(response)) } else { Ok(response) }
        })
    });
    let route = idempotency.route("/t", handler).shares_units(16).unwrap();
    let first = begun(send::<G>(&route, held(request("first", "first"), 0))).await;
    gate.arrived(1).await;
    let mut all = vec![first];
    for other in requests(&["one", "final", "two"]) {
        all.push(begun(send::<G>(&route, other)).await);
    }
    gate.open();
    let mut seen = Vec::new();
    for one in all {
        let one = one.await;
        assert_eq!(one.status, 200, "{one:?}");
        seen.push(String::from_utf8(one.body.to_vec()).unwrap());
    }
    let transactions: BTreeSet<_> = ground.transactions().await.into_iter().map(|(_, it)| it).collect();
    assert_eq!(transactions.len(), 2);
    assert!(seen[0].ends_with("|35s|on"), "{seen:?}");
    // A handler's setting for its session holds for the next transaction, as without sharing. Within one it does not.
    let (zone, others) = seen[0].split_once('|').unwrap();
    assert_eq!(seen[1], format!("Asia/Tokyo|{}", others), "{seen:?}");
    assert_eq!([&seen[2], &seen[3]], [&seen[0]; 2], "{zone}");
}

#[tokio::test]
async fn w87_settings_are_put_back_on_postgres() {
    settings_are_put_back::<Postgres>().await;
}

#[tokio::test]
async fn w87_settings_are_put_back_on_tokio_postgres() {
    settings_are_put_back::<TokioPostgres>().await;
}

/// Sharing is opt-in: without it each request has its own transaction.
#[tokio::test]
async fn w80_without_it_nothing_is_shared() {
    let ground = Sqlite::new().await;
    let recorder = DebuggingRecorder::new();
    let idempotency = metrics::with_local_recorder(&recorder, || builder(&ground).lanes(1).build().unwrap());
    idempotency.start().await.unwrap();
    let route = super::support::route::<Sqlite>(&idempotency, &Arc::default());
    let mut all = Vec::new();
    for request in requests(&["one", "two", "three"]) {
        all.push(send::<Sqlite>(&route, request));
    }
    let seen = [all.remove(0), all.remove(0), all.remove(0)];
    let [a, b, c] = seen;
    let (a, b, c) = tokio::join!(a, b, c);
    assert_eq!([a.status, b.status, c.status], [201; 3]);
    let all = recorder.snapshotter().snapshot().into_vec();
    let sizes = all.into_iter().find(|(key, ..)| key.key().name() == telemetry::BATCH_SIZE.name);
    let Some((.., DebugValue::Histogram(sizes))) = sizes else { panic!("no unit") };
    assert!(sizes.len() == 3 && sizes.iter().all(|size| size.into_inner() < 1.5), "{sizes:?}");
}
