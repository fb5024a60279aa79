//! Operators' actions are in the table `audit`, and on the log target `idem::audit` if it is enabled.

use serde_json::Value;

use crate::fixture::{Answer, Fixture, PASSWORD, PAYLOAD, command};

fn heard(fixture: &Fixture, filter: &str, arguments: &[&str]) -> Answer {
    let variables = [
        ("DATABASE_URL", fixture.url.as_str()),
        ("IDEM_SCHEMA", &fixture.schema),
        ("IDEM_OPERATOR", "ada"),
        ("RUST_LOG", filter),
    ];
    command(&variables, arguments)
}

/// A line as the trail has it: who did what to which key, and of which consumer.
fn told(line: &str) -> String {
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["target"], &line["level"]), (&"idem::audit".into(), &"INFO".into()), "{line}");
    let fields = ["who", "action", "idem.consumer", "idem.key", "details"].map(|field| line[field].as_str());
    fields.into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

const TRAIL: &str = "\
SELECT concat_ws(' ', who, action, c.name, idempotency_key, nullif(details, ''))
FROM audit AS a LEFT JOIN consumers AS c ON c.id = a.consumer WHERE who = 'ada' ORDER BY a.id";

/// One line a row of the trail, for every act.
#[tokio::test]
async fn every_act_is_told_on_the_target_as_the_table_has_it() {
    let fixture = crate::dead_letters::fixture().await;
    let mut lines: Vec<String> = Vec::new();
    let mut act = |arguments: &str| {
        let arguments: Vec<_> = arguments.split_whitespace().chain(["--json"]).collect();
        let answer = heard(&fixture, "idem::audit=info", &arguments);
        assert_eq!(answer.status, 0, "{answer:?}");
        let before = lines.len();
        lines.extend(answer.err.lines().map(told));
        assert!(lines.len() > before, "{arguments:?} told nothing");
        answer.out
    };
    act("consumers pause orders --reason ledger-is-down");
    act("consumers resume orders");
    act("show order-3");
    act("dead-letters show 1");
    act("dead-letters show 1 --payload");
    act("dead-letters replay 1 --yes");
    act("dead-letters replay 3 --new-key order-3b --yes");
    act("dead-letters drop 2 --because test-data --yes");
    let forgotten: Value =
        serde_json::from_str(&act("forget order-3 --consumer orders --reason bad-deploy --yes")).unwrap();
    let batch = forgotten["messages"][0].as_str().unwrap().rsplit(' ').next().unwrap().to_owned();
    act(&format!("forgotten restore {batch} --yes"));
    act("retention set orders 24h --existing --yes");
    act("consumers rebind orders --yes");
    act("erase order-1 --reason art-17 --yes");
    // The erasure has blanked the key in the lines of the trail that were there.
    let kept: Vec<_> = lines.iter().map(|line| line.replace(" order-1 ", " ")).collect();
    assert_eq!(kept, fixture.texts(TRAIL).await);
    fixture.drop().await;
}

/// S12: the trail names the login of the database beside the name in `--by`, which may not be empty.
#[tokio::test]
async fn s12_the_trail_names_the_login_and_nobody_is_no_name() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    for nobody in ["", "  "] {
        fixture.idem_with(&["consumers", "pause", "orders", "--reason", "x", "--by", nobody]).refused("name somebody");
    }
    fixture.idem("forget order-1 --consumer orders --reason x --by the-boss --yes").ok();
    assert_eq!(fixture.texts("SELECT who || ' ' || login FROM audit WHERE action = 'forget'").await, ["the-boss idem"]);
    let shown = fixture.idem("show order-1 --json").json();
    let line = &shown["audit"][0];
    assert_eq!((&line["who"], &line["login"]), (&"the-boss".into(), &"idem".into()), "{shown}");
    fixture.drop().await;
}

#[tokio::test]
async fn nothing_is_told_of_what_was_not_done_or_to_who_does_not_ask() {
    let fixture = Fixture::new().await;
    fixture.deliver(&["order-1"]).await;
    for arguments in ["consumers list", "dead-letters list", "forget order-1 --consumer orders --reason x --dry-run"] {
        let answer = heard(&fixture, "idem::audit=info", &arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{arguments}");
    }
    let answer = fixture.idem("consumers pause orders --reason x");
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    heard(&fixture, "idem::audit=loud", &["stats"]).refused("RUST_LOG cannot be read");
    fixture.drop().await;
}

/// S4, S5: at the finest level the log shows no payload and no password, and no reason forges a line.
#[tokio::test]
async fn s5_the_log_shows_no_secret_and_no_forged_line() {
    let fixture = crate::dead_letters::fixture().await;
    let reason = "x\nINFO idem::audit: \u{1b}[2J";
    let answer = heard(&fixture, "trace", &["consumers", "pause", "orders", "--reason", reason]);
    assert!(answer.err.contains(r"x\nINFO"), "{}", answer.err);
    assert!(!answer.err.contains('\u{1b}'), "{}", answer.err);
    for arguments in ["dead-letters show 1 --payload", "dead-letters replay 1 --yes", "show order-1"] {
        let answer = heard(&fixture, "trace", &arguments.split_whitespace().collect::<Vec<_>>());
        assert!(answer.status == 0, "{answer:?}");
        assert!(!answer.err.contains(PASSWORD) && !answer.err.contains(PAYLOAD), "{arguments}: {}", answer.err);
    }
    fixture.drop().await;
}

/// S30: a person who reads the facts of a key stands in the trail, by the login and the time of the server; and an
/// erased key does not come back because it is looked up.
#[tokio::test]
async fn s30_who_reads_a_key_stands_in_the_trail() {
    let fixture = crate::dead_letters::fixture().await;
    fixture.idem("show order-1 --consumer orders").ok();
    fixture.idem("dead-letters show 1").ok();
    fixture.idem("dead-letters show 1 --payload --by eve").ok();
    let read = "\
        SELECT concat_ws(' ', who, login, action, c.name, idempotency_key, (at > now() - interval '1 hour' AND at <= now())::text)
        FROM audit AS a LEFT JOIN consumers AS c ON c.id = a.consumer WHERE action LIKE 'read-%' ORDER BY a.id";
    let read = fixture.texts(read).await;
    let of = |who_what: &str| format!("{who_what} orders order-1 true");
    assert_eq!(
        read,
        [of("ada idem read-key"), of("ada idem read-dead-letter"), of("eve idem read-payload")],
        "who, login, action, consumer, key, whether at the server's time"
    );
    let shown = fixture.idem("show order-1 --json").json();
    let actions: Vec<_> =
        shown["audit"].as_array().unwrap().iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["read-payload", "read-dead-letter"], "looks at the key do not hide what was done");

    fixture.idem("show order-9").ok();
    fixture.idem("erase order-1 --reason art-17 --yes").ok();
    fixture.idem("show order-1").ok();
    assert_eq!(
        fixture.texts("SELECT count(*) FROM audit WHERE idempotency_key IN ('order-1', 'order-9')").await,
        ["0"]
    );
    let last = "SELECT (details = 'key id ' || key_id('order-1'))::text FROM audit ORDER BY id DESC LIMIT 1";
    assert_eq!(fixture.texts(last).await, ["true"], "the id is enough for who has to find it");
    fixture.drop().await;
}

/// S31: without a note in the trail nothing is shown, and the refusal names the cure.
#[tokio::test]
async fn s31_what_cannot_be_noted_is_not_shown() {
    let fixture = crate::dead_letters::fixture().await;
    let login = format!("{}_reader", fixture.schema);
    fixture.run(&format!("CREATE ROLE {login} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {login};
        GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {login}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {login}",
        schema = fixture.schema)).await;
    let reader = fixture.url.replace("idem:", &format!("{login}:"));
    for arguments in ["show order-1", "dead-letters show 1", "dead-letters show 1 --payload"] {
        let variables = [("DATABASE_URL", reader.as_str()), ("IDEM_SCHEMA", &fixture.schema)];
        let answer = command(&variables, &arguments.split_whitespace().collect::<Vec<_>>());
        assert!(answer.err.contains("nothing is shown"), "{answer:?}");
        answer.refused("lacks a right on idem's tables: use one in idem_migrator");
    }
    assert_eq!(fixture.texts("SELECT count(*) FROM audit WHERE action LIKE 'read-%'").await, ["0"]);
    fixture.run(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
    fixture.drop().await;
}
