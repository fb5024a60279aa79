use std::collections::BTreeSet;

use super::*;

fn table() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    SQLSTATES.lines().map(|line| {
        let mut fields = line.split('\t');
        (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap())
    })
}

/// Failure J15: every code that PostgreSQL documents was given its class by hand, none by its first two characters.
#[test]
fn j15_every_code_of_the_table_has_its_class() {
    assert_eq!(table().map(|(code, ..)| code).collect::<BTreeSet<_>>().len(), table().count());
    assert!(table().count() >= 264);
    for (code, name, class) in table() {
        assert_eq!(class_of(code, "", None).to_string(), class, "{code} {name}");
        assert!(code == "0A000" || class_of_table(code).is_some(), "{code} {name} is not written out");
    }
}

/// The other direction: a code that only the function knows would be a typing error.
#[test]
fn j15_the_function_knows_no_code_that_the_table_lacks() {
    let known: BTreeSet<_> = table().map(|(code, ..)| code).collect();
    let alphabet = || (b'0'..=b'9').chain(b'A'..=b'Z').map(char::from);
    let classes: BTreeSet<_> = known.iter().map(|code| &code[..2]).collect();
    for class in classes {
        for a in alphabet() {
            for b in alphabet() {
                for c in alphabet() {
                    let code = format!("{class}{a}{b}{c}");
                    assert!(class_of_table(&code).is_none() || known.contains(code.as_str()), "{code}");
                }
            }
        }
    }
}

#[test]
fn j15_unknown_codes_get_what_is_promised() {
    for code in ["08XYZ", "53999", "58999", "57P99", "F0999"] {
        assert_eq!(class_of(code, "", None), ErrorClass::Infrastructure, "{code}");
    }
    for (code, class) in [("40999", ErrorClass::RunUnitAgain), ("22999", ErrorClass::Permanent)] {
        assert_eq!(class_of(code, "", None), class, "{code}");
    }
    for code in ["", "4", "é", "éé", "23999", "42999", "57999", "ZZZZZ", "99999", "08", "a very long text"] {
        let class = class_of(code, "", None);
        let expected = if code == "08" { ErrorClass::Infrastructure } else { ErrorClass::Transient };
        assert_eq!(class, expected, "{code}");
    }
}

#[test]
fn a27_a_cached_plan_runs_again_in_every_language() {
    let english = "cached plan must not change result type";
    assert_eq!(class_of("0A000", english, None), ErrorClass::RunUnitAgain);
    let german = "gecachter Plan darf den Ergebnistyp nicht ändern";
    assert_eq!(class_of("0A000", german, Some("RevalidateCachedQuery")), ErrorClass::RunUnitAgain);
    assert_eq!(class_of("0A000", "SELECT FOR UPDATE is not allowed", Some("parseCheck")), ErrorClass::Permanent);
}

#[test]
fn a27_what_a_deploy_takes_away_for_a_moment_is_infrastructure() {
    for code in ["42P01", "42703", "42883", "3F000", "42501"] {
        assert_eq!(class_of(code, "", None), ErrorClass::Infrastructure, "{code}");
    }
}

#[test]
fn a10_a_code_at_commit_is_a_rollback_unless_the_connection_went_with_it() {
    for code in ["23505", "40001", "40P01", "22012", "25P02", "25P03", "53100", "57014", UNSEALED_COMMIT] {
        assert_eq!(commit_outcome(code), CommitOutcome::RolledBack, "{code}");
    }
    for code in
        ["08000", "08003", "08006", "08007", "08P01", "40003", "57P01", "57P02", "57P03", "57P05", "", "?", "io error"]
    {
        assert_eq!(commit_outcome(code), CommitOutcome::Unknown, "{code}");
    }
}

/// A28: a person is told which parameter was refused and what to do, and nothing else of the message.
#[test]
fn a28_a_refused_parameter_is_named_and_no_value() {
    let told = |code: &str, message: &str| refused_parameter(code, message).map(|error| error.to_string());
    for (code, message, problem, cure) in [
        (
            "08P01",
            "unsupported startup parameter: extra_float_digits",
            "a pooler before the server refuses the parameter extra_float_digits",
            "add extra_float_digits to its ignore_startup_parameters; a program",
        ),
        (
            "08P01",
            "unsupported startup parameter in options: statement_timeout",
            "refuses the parameter statement_timeout that",
            "add statement_timeout to its ignore_startup_parameters",
        ),
        ("08P01", "unsupported startup parameter: s3cr3t!", "refuses a parameter that", "add its name to"),
        (
            "42704",
            "unrecognized configuration parameter \"idem.x\"",
            "the server refuses the parameter idem.x",
            "Take it",
        ),
        (
            "22023",
            "invalid value for parameter \"work_mem\": \"s3cr3t\"",
            "refuses the parameter work_mem",
            "a value that",
        ),
        ("22023", "s3cr3t", "the server refuses a parameter", "Take it out"),
    ] {
        let text = told(code, message).unwrap_or_default();
        assert!(text.contains(problem) && text.contains(cure) && !text.contains("s3cr3t"), "{message}: {text}");
    }
    assert_eq!(told("08P01", "invalid message format"), None);
    assert_eq!(told("28P01", "unsupported startup parameter: x"), None);
}

/// In a handler it is the transaction that is read only, and hardly ever the server.
#[test]
fn a12_a_write_behind_the_transaction_is_told_as_such() {
    let text = describe_report("25006", None, None, None);
    assert!(text.contains("a handler has ended idem's transaction with COMMIT or ROLLBACK"), "{text}");
    assert!(text.contains("the server is a standby"), "{text}");
}
