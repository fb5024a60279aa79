//! The commands on SQLite.

use crate::scene::command;

#[test]
fn on_sqlite_what_makes_sense_works_and_the_rest_refuses_by_name() {
    let file = std::env::temp_dir().join(format!("idem-cli-{:016x}.db", fastrand::u64(..)));
    let url = format!("sqlite://{}", file.display());
    let idem = |arguments: &str| {
        let variables = [("DATABASE_URL", url.as_str()), ("IDEM_OPERATOR", "ada")];
        command(&variables, &arguments.split_whitespace().collect::<Vec<_>>())
    };
    assert_ne!(idem("cleanup").status, 0, "a mistyped name makes no file");
    assert!(!file.exists());
    assert!(idem("migrate up").ok().contains("migration 1 was applied"));
    assert!(idem("migrate up").ok().contains("up to date"));
    assert!(idem("doctor").ok().contains("All is well"));
    let preview = idem("cleanup --dry-run --json").json();
    assert_eq!(preview["rows"][0]["table"], "processed_messages", "{preview}");
    assert!(idem("cleanup").ok().contains("audit"));
    assert!(idem("dead-letters list --consumer orders").ok().contains("no dead letters"));
    idem("dead-letters replay 99 --yes").refused("there is no such dead letter");
    for refused in [
        "show order-1",
        "forget order-1 --consumer orders --reason x",
        "stats",
        "import --from t --consumer orders",
        "erase order-1 --reason x",
    ] {
        let name = refused.split_once(' ').map_or(refused, |(name, _)| name);
        idem(refused).refused(&format!("`idem {name}` in this form is for PostgreSQL"));
    }
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
}
