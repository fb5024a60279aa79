//! What operators do is in the table `audit`, and on the log target `idem::audit` for who asks for it.

use serde_json::Value;

use crate::scene::{Answer, PASSWORD, PAYLOAD, Scene, command};

fn heard(scene: &Scene, filter: &str, arguments: &[&str]) -> Answer {
    let variables = [
        ("DATABASE_URL", scene.url.as_str()),
        ("IDEM_SCHEMA", &scene.schema),
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

/// One line a row of the trail, whatever the act.
#[tokio::test]
async fn every_act_is_told_on_the_target_as_the_table_has_it() {
    let scene = crate::dead_letters::scene().await;
    let mut lines: Vec<String> = Vec::new();
    let mut act = |arguments: &str| {
        let arguments: Vec<_> = arguments.split_whitespace().chain(["--json"]).collect();
        let answer = heard(&scene, "idem::audit=info", &arguments);
        assert_eq!(answer.status, 0, "{answer:?}");
        let before = lines.len();
        lines.extend(answer.err.lines().map(told));
        assert!(lines.len() > before, "{arguments:?} told nothing");
        answer.out
    };
    act("consumers pause orders --reason ledger-is-down");
    act("consumers resume orders");
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
    assert_eq!(kept, scene.texts(TRAIL).await);
    scene.drop().await;
}

/// S12: the trail names the login of the database beside what `--by` says, and nobody is no name.
#[tokio::test]
async fn s12_the_trail_names_the_login_and_nobody_is_no_name() {
    let scene = Scene::new().await;
    scene.deliver(&["order-1"]).await;
    for nobody in ["", "  "] {
        scene.idem_with(&["consumers", "pause", "orders", "--reason", "x", "--by", nobody]).refused("name somebody");
    }
    scene.idem("forget order-1 --consumer orders --reason x --by the-boss --yes").ok();
    assert_eq!(scene.texts("SELECT who || ' ' || login FROM audit WHERE action = 'forget'").await, ["the-boss idem"]);
    let shown = scene.idem("show order-1 --json").json();
    let line = &shown["audit"][0];
    assert_eq!((&line["who"], &line["login"]), (&"the-boss".into(), &"idem".into()), "{shown}");
    scene.drop().await;
}

#[tokio::test]
async fn nothing_is_told_of_what_was_not_done_or_to_who_does_not_ask() {
    let scene = Scene::new().await;
    scene.deliver(&["order-1"]).await;
    for arguments in ["consumers list", "show order-1", "forget order-1 --consumer orders --reason x --dry-run"] {
        let answer = heard(&scene, "idem::audit=info", &arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!((answer.status, answer.err.as_str()), (0, ""), "{arguments}");
    }
    let answer = scene.idem("consumers pause orders --reason x");
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    heard(&scene, "idem::audit=loud", &["stats"]).refused("RUST_LOG cannot be read");
    scene.drop().await;
}

/// S4, S5: at the finest level the log shows no payload and no password, and no reason forges a line.
#[tokio::test]
async fn s5_the_log_shows_no_secret_and_no_forged_line() {
    let scene = crate::dead_letters::scene().await;
    let reason = "x\nINFO idem::audit: \u{1b}[2J";
    let answer = heard(&scene, "trace", &["consumers", "pause", "orders", "--reason", reason]);
    assert!(answer.err.contains(r"x\nINFO"), "{}", answer.err);
    assert!(!answer.err.contains('\u{1b}'), "{}", answer.err);
    for arguments in ["dead-letters show 1 --payload", "dead-letters replay 1 --yes", "show order-1"] {
        let answer = heard(&scene, "trace", &arguments.split_whitespace().collect::<Vec<_>>());
        assert!(answer.status == 0, "{answer:?}");
        assert!(!answer.err.contains(PASSWORD) && !answer.err.contains(PAYLOAD), "{arguments}: {}", answer.err);
    }
    scene.drop().await;
}
