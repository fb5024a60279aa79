//! Headers and requests of HTTP clients.

use idem_http::{
    Fingerprint,
    fuzzing::{Asked, differs, key_in},
};

/// W5: any value of `Idempotency-Key` is a key as a whole or none: nothing of it is cut or passed over, so that two values with
/// one key are two notations of it, in quotes and bare. A value that is read strictly is read the same by all.
pub fn http_key(value: &[u8]) {
    let (key, strict) = (key_in(value, false), key_in(value, true));
    assert!(strict.is_none() || strict == key, "{key:?} and {strict:?}");
    let Some(key) = key else { return };
    assert!((1..=255).contains(&key.len()), "{} bytes", key.len());
    assert!(key.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{key:?} is not printable");
    let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(key_in(quoted.as_bytes(), true).as_ref(), Some(&key), "as the draft writes it");
    let value = value.trim_ascii();
    let notation = if value.starts_with(b"\"") { quoted.as_bytes() } else { key.as_bytes() };
    assert_eq!(notation, value, "nothing is passed over");
}

/// W4, W27: two requests have one fingerprint only if path, query, media type, subject and body are the same, and the reported
/// difference is true. Parameters and letter case of the media type do not count, and for canonical JSON no blanks do. The
/// input is the five parts, a line each, and the body behind them.
pub fn http_fingerprint(input: &[u8]) {
    let mut parts = input.splitn(5, |byte| *byte == b'\n');
    let [path, query, content_type, subject, body] = [0; 5].map(|_| parts.next().unwrap_or_default());
    let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
    let asked = Asked {
        path: format!("/{}", text(path)),
        query: text(query),
        content_type: content_type.to_vec(),
        subject: text(subject),
        body: body.to_vec(),
    };
    type Change<'c> = &'c dyn Fn(&mut Asked);
    let raw = Fingerprint::raw();
    let Some(print) = asked.print(&raw) else { return };
    let with = |change: Change<'_>| {
        let mut other = asked.clone();
        change(&mut other);
        other.print(&raw)
    };
    let others: [(&str, Change<'_>); 5] = [
        ("path", &|other| other.path.push('x')),
        ("query", &|other| other.query.push('x')),
        ("type", &|other| other.content_type.insert(0, b'x')),
        ("subject", &|other| other.subject.push('x')),
        ("body", &|other| other.body.push(b'x')),
    ];
    for (part, change) in others {
        let Some(other) = with(change) else { continue };
        assert_ne!(other, print, "another {part}");
        // Three bytes of a part are compared, so that once in millions the difference goes unnoticed.
        assert!(differs(&other, &print).is_none_or(|told| told == part), "another {part}");
    }
    if let Some(first) = asked.body.first().copied() {
        let moved = with(&|other| {
            other.body.remove(0);
            other.subject.push(char::from(first));
        });
        assert_ne!(moved, Some(print), "what ends one part does not begin the next");
    }
    assert_eq!(with(&|other| other.content_type.extend_from_slice(b"; charset=utf-8")), Some(print));
    assert_eq!(with(&|other| other.content_type.make_ascii_uppercase()), Some(print));
    let jcs = Fingerprint::jcs();
    if let Some(canonical) = asked.print(&jcs) {
        let spaced = Asked { body: [b" ", body, b"\n"].concat(), ..asked.clone() };
        assert_eq!(spaced.print(&jcs), Some(canonical), "blanks around JSON");
        assert_ne!(canonical, print, "another rule gives another fingerprint");
    }
}
