//! The table of all statuses in the guide's page on HTTP, row by row.

use axum::{
    Router,
    extract::Path,
    response::{IntoResponse as _, Response},
    routing::post,
};
use http::{Request, StatusCode};
use http_body_util::Full;
use idem_http::{IdempotentTx, TxError};
use tower::ServiceExt as _;

use super::{
    grounds::{Ground, Memory},
    support::{Seen, builder},
};

const GUIDE: &str = include_str!("../../../../docs/guide/http.md");

/// The treatment of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fate {
    is_refused: bool,
    has_effect: bool,
    is_kept: bool,
}

/// A cell of the table, as it holds in this build.
fn fate(cell: &str) -> Fate {
    let mut parts = cell.splitn(2, "; in release builds ");
    let (first, in_release) = (parts.next().unwrap(), parts.next());
    let text = if cfg!(debug_assertions) { first } else { in_release.unwrap_or(first) };
    let kinds = ["refused", "committed, kept", "rolled back, kept", "rolled back"];
    let kind = kinds.into_iter().find(|kind| text.strip_suffix(", counted").unwrap_or(text) == *kind);
    let kind = kind.unwrap_or_else(|| panic!("the cell {cell:?}"));
    Fate { is_refused: kind == "refused", has_effect: kind.starts_with("committed"), is_kept: kind.ends_with("kept") }
}

/// The row of a status: as it is, after `refuse`, after `discard`. Each status has one.
fn row(status: u16) -> [Fate; 3] {
    let includes = |range: &str| {
        let mut ends = range.trim().split('-').map(|end| end.parse::<u16>());
        let (Some(Ok(first)), last) = (ends.next(), ends.next()) else { return false };
        (first..=last.map_or(first, Result::unwrap)).contains(&status)
    };
    let rows = GUIDE.lines().filter_map(|line| {
        let cells: Vec<_> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let of_this = cells.len() == 4 && cells[0].split(',').any(includes);
        of_this.then(|| [fate(cells[1]), fate(cells[2]), fate(cells[3])])
    });
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 1, "{status} stands in one row");
    rows[0]
}

/// Checks the first answer, and the answer to its repeat.
fn check(what: &str, status: u16, fate: Fate, first: &Seen, again: &Seen) {
    let answered = if fate.is_refused { 500 } else { status };
    assert_eq!((first.status, again.status), (answered, answered), "{what}: {first:?}");
    if fate.is_refused {
        assert!(first.json()["type"].as_str().unwrap().ends_with("#response-refused"), "{what}");
    }
    let replayed = fate.is_kept.then_some(true);
    assert_eq!((first.is_replayed(), again.is_replayed()), (replayed.map(|_| false), replayed), "{what}");
    for (name, by_first, by_again) in
        [("idempotency-expires", fate.is_kept, fate.is_kept), ("idempotency-processed-at", false, fate.is_kept)]
    {
        assert_eq!(
            (first.header(name).is_some(), again.header(name).is_some()),
            (by_first, by_again),
            "{what}: {name}"
        );
        let is_ours = |seen: &Seen| seen.headers.get_all(name).iter().all(|at| !at.as_bytes().starts_with(b"2999"));
        assert!(is_ours(first) && is_ours(again), "{what}: {name} is of the handler's");
    }
    assert_eq!(first.body == again.body, fate.is_kept || fate.is_refused, "{what}: each run has a body of its own");
    // Only where it may pass, and another try runs, it is said when to come again.
    let comes_again = matches!(first.status, 502..=504).then_some("1");
    assert_eq!(first.header("retry-after"), comes_again, "{what}");
}

/// A handler of axum: it answers with a status, after it has used its transaction, refused or discarded, or done none of these.
async fn answers(
    Path((form, status)): Path<(String, u16)>,
    mut tx: IdempotentTx<<Memory as Ground>::Store>,
) -> Result<Response, TxError> {
    if form != "untouched" {
        let text = format!("{form} {status}");
        Memory::pay(&mut tx.tx(), text).await?;
    }
    match form.as_str() {
        "refused" => tx.refuse(),
        "discarded" => tx.discard(),
        _ => {}
    }
    Ok((StatusCode::from_u16(status).unwrap(), fastrand::u64(..).to_string()).into_response())
}

#[tokio::test]
async fn w15_every_status_is_treated_as_the_guide_says() {
    let ground = Memory::new().await;
    let payments = builder(&ground).build().unwrap();
    let app = Router::new().route("/{form}/{status}", post(answers)).layer(payments.layer());
    let mut paid = Vec::new();
    for status in 100..600 {
        let [used, refused, not_kept] = row(status);
        let untouched = if (400..500).contains(&status) { not_kept } else { Fate { has_effect: false, ..used } };
        for (form, fate) in [("used", used), ("refused", refused), ("discarded", not_kept), ("untouched", untouched)] {
            let what = format!("{form} {status}");
            let sent = || {
                let request = Request::post(format!("/{form}/{status}")).header("authorization", "Bearer acme");
                let request = request.header("idempotency-key", format!("{form}-{status}"));
                app.clone().oneshot(request.body(Full::from("")).unwrap())
            };
            let first = Seen::of(sent().await.unwrap()).await;
            let again = Seen::of(sent().await.unwrap()).await;
            check(&what, status, fate, &first, &again);
            paid.extend(fate.has_effect.then_some(what));
        }
    }
    paid.sort();
    assert_eq!(ground.paid().await, paid, "what is committed");
}
