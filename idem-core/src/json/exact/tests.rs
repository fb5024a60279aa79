use proptest::prelude::*;

use super::*;

fn canonical(json: &str) -> Result<String, String> {
    let mut out = String::new();
    exact(json.as_bytes())?.write(&mut out);
    Ok(out)
}

#[test]
fn a_value_has_one_form_whatever_it_is_written_like() {
    let golden = [
        (
            " { \"b\" : [ 1 , 2.50 , true , null ] , \"a\\u0062\" : \"x\\/\\u00e9\" } ",
            r#"{"ab":"x/é","b":[1,25e-1,true,null]}"#,
        ),
        ("{}", "{}"),
        ("[ ]", "[]"),
        ("[[],{}, {\"a\":[]}]", "[[],{},{\"a\":[]}]"),
        ("\"\\\\\\\"\"", r#""\\\"""#),
        ("false", "false"),
        ("-0", "0"),
        ("0e999999999999999999999", "0"),
        ("-0.0E-7", "0"),
        ("100", "1e2"),
        ("1E+2", "1e2"),
        ("1.50", "15e-1"),
        ("0.0015", "15e-4"),
        ("-1e400", "-1e400"),
        ("9007199254740993", "9007199254740993"),
    ];
    for (json, form) in golden {
        assert_eq!(canonical(json).as_deref(), Ok(form), "{json}");
    }
}

/// C10: numbers that share a double differ, at every place where they used to be called equal.
#[test]
fn c10_decimals_that_share_a_double_differ() {
    for (one, other) in [
        ("0.123456789012345678", "0.123456789012345679"),
        ("1000000.000000000000000001", "1000000"),
        ("9007199254740991.4", "9007199254740991.0"),
        ("4503599627370497.3", "4503599627370497.4"),
        ("0.1", "0.1000000000000000055"),
        ("9007199254740993", "9007199254740992"),
        ("1e-400", "0"),
        ("1e400", "1e401"),
    ] {
        assert_ne!(canonical(one).unwrap(), canonical(other).unwrap(), "{one} {other}");
    }
}

/// C11: an object in the form that `serde_json` gives to a number is an object.
#[test]
fn c11_an_object_that_imitates_a_number_is_an_object() {
    let imitation = r#"{"a":{"$serde_json::private::Number":"5"}}"#;
    assert_eq!(canonical(imitation).as_deref(), Ok(imitation));
    let raw = r#"{"$serde_json::private::RawValue":"5"}"#;
    assert_eq!(canonical(raw).as_deref(), Ok(raw));
}

/// S10: text that has no single meaning, or is no JSON, is refused; the error does not quote it (S4).
#[test]
fn s10_what_has_no_single_form_is_refused() {
    for json in [
        r#"{"a":1,"a":2}"#,
        r#"{"x":[{"b":1,"\u0062":1}]}"#,
        r#"{"a":1,}"#,
        "[1 2]",
        "{\"a\" 1}",
        "01",
        "+1",
        "1.",
        ".5",
        "1e",
        "--1",
        "NaN",
        "tru",
        "nulL",
        "{} {}",
        "",
        " ",
        "\"canary",
        r#""canary\ud800""#,
        r#"{"\udc00":1}"#,
        "1e9223372036854775808",
        "10e9223372036854775807",
        "\u{feff}{}",
    ] {
        let problem = canonical(json).expect_err(json);
        assert!(!problem.contains("canary"), "{problem}");
    }
    assert!(exact(b"\"\xff\"").is_err() && exact(b"{\"\xff\":1}").is_err() && exact(b"[1]\xff").is_err());
    assert!(
        exact("[".repeat(65).as_bytes()).is_err()
            && canonical(&format!("{}{}", "[".repeat(64), "]".repeat(64))).is_ok()
    );
}

/// One spelling of `digits` x 10^`power`: with zeros at both ends, the point anywhere, and the rest in the exponent.
fn spelled(digits: i64, power: i64, zeros: (usize, usize), point: usize, exponent: &str) -> String {
    let sign = if digits < 0 { "-" } else { "" };
    let all = format!("{}{}", digits.unsigned_abs(), "0".repeat(zeros.1));
    let point = point.min(all.len());
    let (whole, fraction) = all.split_at(all.len() - point);
    let power = power - i64::try_from(zeros.1).unwrap() + i64::try_from(point).unwrap();
    let whole = if whole.is_empty() { "0" } else { whole };
    // JSON knows no zero before other digits, but zeros behind the point.
    let fraction = if fraction.is_empty() { String::new() } else { format!(".{fraction}{}", "0".repeat(zeros.0)) };
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        rest => rest,
    };
    let plus = if power >= 0 && exponent.len() > 1 { "+" } else { "" };
    format!("{sign}{whole}{fraction}{}{plus}{power}", &exponent[..1])
}

/// The value in units of 10^-30, which is exact for all that is drawn below.
fn value(digits: i64, power: i64) -> i128 {
    i128::from(digits) * 10_i128.pow(u32::try_from(power + 12).unwrap())
}

proptest! {
    /// C10: two numbers have one form if and only if they are equal, however they are written.
    #[test]
    fn c10_numbers_have_one_form_if_and_only_if_they_are_equal(
        digits in prop_oneof![-9_999_999_i64..9_999_999, -20_i64..20],
        power in -12_i64..12,
        step in prop_oneof![Just(0_i64), -2_i64..3],
        shift in prop_oneof![Just(0_i64), -1_i64..2],
        zeros in (0_usize..4, 0_usize..4),
        point in 0_usize..12,
        exponent in prop_oneof![Just("e"), Just("E"), Just("e+"), Just("E+")],
    ) {
        let plain = canonical(&format!("{digits}e{power}")).unwrap();
        prop_assert_eq!(&plain, &canonical(&spelled(digits, power, zeros, point, exponent)).unwrap());
        let (others, other_power) = (digits + step, (power + shift).clamp(-12, 11));
        let other = canonical(&spelled(others, other_power, zeros, point, exponent)).unwrap();
        prop_assert_eq!(plain == other, value(digits, power) == value(others, other_power));
    }

    /// Every tree has one form, and it is the one that its own form has; every other reader takes it for the same value.
    #[test]
    fn the_form_of_a_form_is_itself(json in "[\\[\\]{},:\"\\\\a-c0-2.eE+ -]{0,24}") {
        if let Ok(form) = canonical(&json) {
            prop_assert_eq!(canonical(&form), Ok(form));
            prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&json).is_ok());
        }
    }

    /// No bytes make it panic.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = exact(&bytes);
    }
}
