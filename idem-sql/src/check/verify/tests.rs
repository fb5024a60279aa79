use super::*;

fn sound() -> SchemaFacts {
    SchemaFacts {
        schema: SchemaName::default(),
        migrations_table: true,
        version: POSTGRES_MIGRATIONS.last().map(|newest| newest.version),
        oldest_worker: Some("0.1.0".to_owned()),
        table_kind: Some("table".to_owned()),
        columns: COLUMNS.map(str::to_owned).to_vec(),
        indexes: vec!["index (expires_at) valid".to_owned(), "unique (consumer, key_id) valid".to_owned()],
        seal_triggers: SEALED.iter().map(|(table, _)| format!("{table} enabled")).collect(),
        suppressors: Vec::new(),
        functions: FUNCTIONS.map(str::to_owned).to_vec(),
        missing_privileges: Vec::new(),
        triggers_fire: true,
        sequences_behind: Vec::new(),
    }
}

/// Breaks one fact and expects one problem whose text holds all of `words`.
#[track_caller]
fn one_problem(breaks: impl FnOnce(&mut SchemaFacts), words: &[&str]) {
    let mut facts = sound();
    breaks(&mut facts);
    let problems = verify_schema(&facts).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(!problems[0].cure.is_empty());
    for word in words {
        assert!(problems[0].to_string().contains(word), "{word:?} in {}", problems[0]);
    }
}

#[test]
fn a_sound_schema_is_taken() {
    assert_eq!(verify_schema(&sound()), Ok(()));
    let mut facts = sound();
    facts.columns.push("note text collate default".to_owned());
    facts.indexes.push("index (processed_at) valid".to_owned());
    assert_eq!(verify_schema(&facts), Ok(()), "columns and plain indexes of the user's own do no harm");
}

#[test]
fn a_missing_or_old_schema_names_the_migration() {
    one_problem(|facts| *facts = SchemaFacts::default(), &["holds no migration", "Run `idem migrate up`"]);
    // The command would make its own default schema, and the worker would say the same again.
    let other = SchemaFacts { schema: SchemaName::new("other").unwrap(), ..SchemaFacts::default() };
    one_problem(|facts| *facts = other, &["holds no migration", "Run `idem migrate up --schema other`"]);
    one_problem(
        |facts| facts.version = Some(0),
        &["version 0", &format!("needs {}", POSTGRES_MIGRATIONS.len()), "idem migrate"],
    );
    one_problem(|facts| facts.table_kind = None, &["missing although", "backup"]);
}

#[test]
fn j12_a_newer_schema_is_taken_only_if_it_takes_this_release() {
    let next = u32::try_from(POSTGRES_MIGRATIONS.len()).expect("few") + 1;
    let named = format!("version {next}");
    let newer = |oldest: Option<&str>| {
        let oldest = oldest.map(str::to_owned);
        move |facts: &mut SchemaFacts| (facts.version, facts.oldest_worker) = (Some(next), oldest)
    };
    let mut facts = sound();
    newer(Some(env!("CARGO_PKG_VERSION")))(&mut facts);
    assert_eq!(verify_schema(&facts), Ok(()));
    one_problem(
        newer(Some("999.0.0")),
        &[&named, &format!("up to {}", POSTGRES_MIGRATIONS.len()), "999.0.0", env!("CARGO_PKG_VERSION")],
    );
    for unreadable in [None, Some(""), Some("x"), Some("0.1"), Some("0.1.0.0")] {
        one_problem(newer(unreadable), &[&named]);
    }
}

/// C5 and C6: partitions by time let a key in twice at their border, and there may be none for now.
#[test]
fn c5_c6_a_table_that_forgets_is_refused() {
    for kind in ["unlogged table", "partitioned table", "no table"] {
        one_problem(|facts| facts.table_kind = Some(kind.to_owned()), &[kind, "ordinary"]);
    }
}

/// Failures B8 and B9: a nullable key part lets a key in twice, a lossy collation takes two keys for one.
#[test]
fn b9_other_columns_are_refused_one_by_one() {
    for (at, wanted) in COLUMNS.iter().enumerate() {
        let nullable = wanted.trim_end_matches(" not null").to_owned();
        one_problem(|facts| facts.columns[at].clone_from(&nullable), &[wanted, &nullable]);
        one_problem(|facts| drop(facts.columns.remove(at)), &["lacks", wanted]);
    }
    let folding = "idempotency_key text collate case_insensitive not null";
    one_problem(|facts| facts.columns[6] = folding.to_owned(), &["case_insensitive", "collate C"]);
}

#[test]
fn b21_indexes_must_be_there_valid_and_in_order() {
    one_problem(|facts| drop(facts.indexes.remove(0)), &["expires_at", "missing", "CREATE INDEX"]);
    one_problem(|facts| drop(facts.indexes.remove(1)), &["(consumer, key_id)", "missing", "PRIMARY KEY"]);
    for state in ["invalid", "partial", "deferrable"] {
        one_problem(|facts| facts.indexes[1] = format!("unique (consumer, key_id) {state}"), &[state, "PRIMARY KEY"]);
        one_problem(|facts| facts.indexes[0] = format!("index (expires_at) {state}"), &[state, "CREATE INDEX"]);
    }
    one_problem(|facts| facts.indexes[1] = "index (consumer, key_id) valid".to_owned(), &["missing"]);
    let mut swapped = sound();
    swapped.indexes[1] = "unique (key_id, consumer) valid".to_owned();
    assert_eq!(verify_schema(&swapped).unwrap_err().len(), 2);
    let mut spare = sound();
    spare.indexes.insert(0, "unique (consumer, key_id) invalid".to_owned());
    assert_eq!(verify_schema(&spare), Ok(()), "a leftover of CREATE INDEX CONCURRENTLY beside a valid one");
}

#[test]
fn b7_another_unique_index_is_refused() {
    one_problem(
        |facts| facts.indexes.push("unique (idempotency_key) valid".to_owned()),
        &["(idempotency_key)", "Drop it"],
    );
}

#[test]
fn b6_what_swallows_rows_is_refused() {
    for suppressor in
        ["trigger audit_rows on processed_messages", "rule r on units", "row level security on processed_messages"]
    {
        one_problem(|facts| facts.suppressors.push(suppressor.to_owned()), &[suppressor, "swallow"]);
    }
}

#[test]
fn a12_the_seal_must_be_armed() {
    for (at, (table, which)) in SEALED.into_iter().enumerate() {
        for state in ["disabled", "not deferred", "altered"] {
            one_problem(|facts| facts.seal_triggers[at] = format!("{table} {state}"), &[state, table]);
        }
        one_problem(
            |facts| drop(facts.seal_triggers.remove(at)),
            &["missing", table, &format!("FOR EACH ROW {which}EXECUTE")],
        );
    }
    one_problem(|facts| facts.triggers_fire = false, &["session_replication_role"]);
}

#[test]
fn functions_and_privileges_are_named() {
    for (at, function) in FUNCTIONS.iter().enumerate() {
        one_problem(|facts| drop(facts.functions.remove(at)), &[function, "idem migrate"]);
    }
    one_problem(
        |facts| facts.missing_privileges = vec!["INSERT on units".to_owned()],
        &["INSERT on units", "idem_worker"],
    );
}

#[test]
fn every_problem_is_reported_at_once() {
    let mut facts = sound();
    facts.seal_triggers.pop();
    facts.suppressors.push("rule r on units".to_owned());
    assert_eq!(verify_schema(&facts).unwrap_err().len(), 2);
}

#[test]
fn cures_are_told_once() {
    let problem = |problem: &str, cure: &str| SchemaProblem { problem: problem.to_owned(), cure: cure.to_owned() };
    let refusal = SchemaProblem::refusal(&[problem("1", "a"), problem("2", "b"), problem("3", "a")]);
    assert!(matches!(refusal, StoreError::Schema { problem, cure } if problem == "1; 2; 3" && cure == "a. b"));
}
