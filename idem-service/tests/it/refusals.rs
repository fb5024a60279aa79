//! Errors that end a worker with status 2: wrong settings, and refusals by a server. One clear line, at
//! once.

use idem_core::Message;
use idem_testkit::memory::QueueOptions;

use crate::{place::Place, process::Worker};

const GOOD: &str = "--database-url sqlite:///nowhere/x --consumer ledger --socket /nowhere";

#[tokio::test]
async fn a_wrong_setting_is_one_line_that_names_it_and_the_cure() {
    for (arguments, line) in [
        (
            "",
            "--socket (or the variable MEMORY_SOCKET) and --database-url (or the variable DATABASE_URL) and --consumer \
              (or the variable IDEM_CONSUMER) must be given",
        ),
        ("--lane 2", "the flag --lane is unknown; did you mean --lanes?"),
        ("--xyz", "the flag --xyz is unknown; --help-all lists those that there are"),
        ("--lanes two", "--lanes is \"two\", but it must be a whole number from 1 to 1024"),
        ("--lanes", "--lanes needs a value"),
        ("--lanes 1 --lanes 2", "--lanes is given more than once"),
        ("--migrate --check", "--migrate cannot be given together with --check"),
        ("--lanes 2", "--lanes is 2, but this store has a single writer: use 1"),
        ("--lanes 0", "--lanes is \"0\", but it must be a whole number from 1 to 1024"),
        ("--migrate=yes", "--migrate takes no value"),
        ("--retention 7", "--retention is \"7\", but write a number and one of the units ms, s, m, h, d"),
        ("--retention 5s", "--retention is \"5s\", but it must be from 1m to 3650d, or forever"),
        ("--key header", "--key is \"header\", but it must be header:NAME, json:/POINTER, record-key"),
        ("--schema Idem", "--schema is \"Idem\", but"),
        ("--on-conflict drop", "--on-conflict is \"drop\", but it must be one of dead-letter, acknowledge, halt"),
        ("--dead-letter-breaker maybe", "--dead-letter-breaker is \"maybe\", but it must be on or off"),
        ("--attempts 0", "--attempts is \"0\", but it must be a whole number from 1 to 1000"),
        ("--in-flight 50", "--in-flight is 50, but it must be from one batch to 10,000,000"),
        ("--payload-max 0", "--payload-max is 0, but it must be from 1 byte to 256 MiB"),
        ("--payload-max 1MB", "--payload-max is \"1MB\", but it must be a number of bytes, or one with a unit"),
        (
            "--dead-letter-payload-max 1GiB",
            "--dead-letter-payload-max is 1073741824, but it must be from 0 bytes to 256 MiB",
        ),
        ("--dead-letters-bytes-max 1", "--dead-letters-bytes-max is 1, but it must be at least 1 KiB"),
        ("--dead-letters-bytes-max none", "--dead-letters-bytes-max is \"none\", but it must be a number of bytes"),
        ("--on-unkeepable lose", "--on-unkeepable is \"lose\", but it must be one of hold, halt"),
        ("--batch 0", "--batch is \"0\", but it must be a whole number from 1 to 10000"),
        ("--busy-timeout 1h", "--busy-timeout is 1h, but it must be from 1 ms to 5 minutes"),
        ("--handler-deadline 13h", "--handler-deadline is 13h, but it must be from 1 ms to 12 hours"),
        ("--until-idle 13h", "--until-idle is 13h, but it must be from 1 ms to 12 hours"),
        ("--drain 13h", "--drain is 13h, but it must be at most 12 hours"),
        ("--startup-timeout 13h", "--startup-timeout is 13h, but it must be at most 12 hours"),
        ("--consumer=", "--consumer is \"\", but it must have 1 to 100 bytes"),
        ("--store tokio-postgres", "--store tokio-postgres needs a --database-url of PostgreSQL: leave it out"),
        ("--handlers pipelined", "--handlers is Concurrency::Pipelined, but this store does not share its transaction"),
        ("--admin nowhere:x", "--admin is \"nowhere:x\", which cannot be listened on"),
        ("--queue=", "--queue is empty, but it must be the name of a queue"),
        ("--log-format xml", "--log-format is \"xml\", but it must be one of text, json"),
        ("purchases", "there is an argument that belongs to no flag (it is not shown)"),
    ] {
        let place = Place::new().await;
        let worker = match arguments {
            "" => Worker::bare(""),
            _ => Worker::bare(&format!("--database-url {} --socket {} {arguments}", place.url(), place.socket())),
        };
        let worker = if arguments.is_empty() || arguments.starts_with("--consumer") {
            worker
        } else {
            worker.argument("--consumer=ledger")
        };
        let ended = worker.run().await.with(2);
        assert!(ended.why().starts_with(line), "{arguments}\n{}\n{line}", ended.why());
        assert_eq!(ended.log.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{}", ended.log);
        place.remove();
    }
}

/// Delays of later tries that no store keeps, or that outlive what is kept of the message.
#[tokio::test]
async fn delays_of_later_tries_are_refused_with_their_bounds() {
    for (arguments, line) in [
        ("--retry-later 30", "--retry-later is \"30\", but write a number and one of the units ms, s, m, h, d"),
        (
            "--retry-later 1s,1s,1s,1s,1s,1s,1s,1s,1s",
            "--retry-later is \"1s,1s,1s,1s,1s,1s,1s,1s,1s\", but it must be at most 8 times",
        ),
        ("--retry-later 1ms", "--retry-later is 1ms, but each delay must be from 1 s to 24 hours"),
        (
            "--retry-later 1h,2h --retention 5h",
            "--retry-later is 1h,2h, but the delays together must be at most half of the retention",
        ),
    ] {
        let place = Place::new().await;
        let given = format!("--database-url {} --socket {} --consumer ledger {arguments}", place.url(), place.socket());
        let ended = Worker::bare(&given).run().await.with(2);
        assert!(ended.why().starts_with(line), "{arguments}\n{}\n{line}", ended.why());
        place.remove();
    }
}

#[tokio::test]
async fn a_wrong_setting_is_told_at_once_also_while_nothing_can_be_reached() {
    for wrong in [
        "--lanes 0",
        "--batch 0",
        "--busy-timeout 1h",
        "--handlers pipelined",
        "--handlers pipelined --batch-handler --store tokio-postgres",
    ] {
        let nowhere = "--database-url postgres://idem@127.0.0.1:1/idem --consumer ledger --socket /nowhere";
        let ended = Worker::bare(&format!("{nowhere} {wrong}")).run().await.with(2);
        assert!(ended.why().starts_with(wrong.split(' ').next().unwrap()), "{}", ended.why());
        assert!(!ended.log.contains("cannot be reached"), "{}", ended.log);
    }
}

#[tokio::test]
async fn a_database_of_another_kind_is_refused_without_its_url() {
    for url in ["mysql://u:canary@h/x", "canary", "", "POSTGRES://u:canary@h/x"] {
        let ended = Worker::bare("--consumer c --socket /nowhere").variable("DATABASE_URL", url).run().await.with(2);
        assert!(ended.why().contains("--database-url must begin with postgres://"), "{}", ended.why());
        assert!(!ended.log.contains("canary"), "{}", ended.log);
    }
}

#[tokio::test]
async fn an_unknown_variable_is_refused_and_a_known_one_is_not() {
    for (name, hint) in [
        ("IDEM_CONSUMMER", "did you mean IDEM_CONSUMER?"),
        ("IDEM_LANE", "did you mean IDEM_LANES?"),
        ("MEMORY_LANES", "did you mean IDEM_LANES?"),
        ("MEMORY_SOCKETS", "did you mean MEMORY_SOCKET?"),
    ] {
        let ended = Worker::bare(GOOD).variable(name, "x").run().await.with(2);
        assert!(ended.why().contains(name) && ended.why().contains(hint), "{}", ended.why());
    }
    let ended = Worker::bare(GOOD).variable("MEMORY_SERVICE_HOST", "x").argument("--store=tokio-postgres").run().await;
    assert!(ended.with(2).why().contains("--store"));
    // J35: another program's.
    let foreign = Worker::bare(GOOD).variable("MEMORY_HEAP_OPTS", "canary").argument("--store=tokio-postgres");
    let log = foreign.run().await.with(2).log;
    assert!(log.contains("WARN") && log.contains("MEMORY_HEAP_OPTS") && !log.contains("canary"), "{log}");
}

#[tokio::test]
async fn each_variable_is_read_and_its_flag_wins() {
    for (name, flag, value, other) in [
        ("IDEM_CONSUMER", "--consumer", "one", "other"),
        ("IDEM_SCHEMA", "--schema", "one", "other"),
        ("IDEM_RETENTION", "--retention", "3d", "4d"),
        ("IDEM_ADMIN", "--admin", "127.0.0.1:1", "127.0.0.1:2"),
        ("MEMORY_SOCKET", "--socket", "/one", "/other"),
        ("MEMORY_QUEUE", "--queue", "one", "other"),
        ("IDEM_QUEUE", "--queue", "one", "other"),
        ("IDEM_LANES", "--lanes", "2", "3"),
    ] {
        // It ends once it has logged its settings.
        let worker = || {
            let worker = Worker::bare("--store tokio-postgres --database-url sqlite://x").variable(name, value);
            let worker = if name == "IDEM_CONSUMER" { worker } else { worker.variable("IDEM_CONSUMER", "c") };
            if name == "MEMORY_SOCKET" { worker } else { worker.variable("MEMORY_SOCKET", "/s") }
        };
        let log = worker().run().await.with(2).log;
        assert!(log.contains(&format!("{flag}={value}")), "{log}");
        let log = worker().argument(flag).argument(other).run().await.with(2).log;
        assert!(log.contains(&format!("{flag}={other}")) && !log.contains(&format!("{flag}={value}")), "{log}");
    }
    let place = Place::new().await;
    let settings = format!("--consumer c --socket {} --until-idle 50ms --migrate", place.socket());
    Worker::bare(&settings).variable("DATABASE_URL", &place.url()).run().await.with(0);
    let wrong = Worker::bare(&settings).variable("DATABASE_URL", "mysql://x");
    wrong.argument("--database-url").argument(&place.url()).run().await.with(0);
    place.remove();
}

#[tokio::test]
async fn what_a_server_refuses_ends_it_at_once() {
    let place = Place::new().await;
    let (url, socket) = (place.url(), place.socket());
    let ended = Worker::bare(&format!("--database-url {url} --socket {socket} --consumer ledger")).run().await.with(2);
    assert!(ended.why().contains("schema"), "no tables: {}", ended.why());
    let ended = Worker::at(&place, "--queue absent").run().await.with(2);
    assert!(ended.why().contains("absent"), "no such queue: {}", ended.why());

    Worker::at(&place, "--until-idle 50ms").run().await.with(0);
    place.broker.create("other", QueueOptions::default()).unwrap();
    let ended = Worker::at(&place, "--queue other").run().await.with(2);
    assert!(ended.why().contains("consumer ledger is bound to source"), "{}", ended.why());
    let ended = Worker::at(&place, "--key message-id").run().await.with(2);
    assert!(ended.why().contains("consumer ledger is bound to key rules"), "{}", ended.why());
    place.remove();
}

#[tokio::test]
async fn the_key_comes_from_where_the_flags_say() {
    let place = Place::new().await;
    let payload = r#"{"customer":"1","day":"1997-01-01","cds":1,"cents":1,"id":"from-body"}"#;
    place.orders.publish(Message::new(payload).with_header("order", "from-header")).unwrap();
    place.orders.publish(Message::new(payload)).unwrap();
    Worker::at(&place, "--key header:order --key json:/id --until-idle 50ms").run().await.with(0);
    assert_eq!(place.purchases().await, ["from-body", "from-header"]);
    place.remove();
}

#[tokio::test]
async fn help_and_version_are_answers() {
    let ended = Worker::bare("--help").run().await.with(0);
    assert!(ended.output.starts_with("Consumes messages; their handlers' writes"), "{}", ended.output);
    for text in ["--database-url", "DATABASE_URL", "--socket", "[default: 20s]", "IDEM_LANES"] {
        assert!(ended.output.contains(text), "{text} is not in\n{}", ended.output);
    }
    assert!(!ended.output.contains("--payload-max"), "{}", ended.output);
    let all = Worker::bare("--help-all").run().await.with(0).output;
    assert!(all.contains("--payload-max") && all.contains("IDEM_PAYLOAD_MAX"), "{all}");
    assert!(Worker::bare("--version").run().await.with(0).output.starts_with("worker "));
}
