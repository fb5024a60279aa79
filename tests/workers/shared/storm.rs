//! A storm over two connections under load. The tests of workers whose connections go through a proxy include this file.

use std::{ops::Range, time::Duration};

use idem_testkit::{proxy::Proxy, seed};

/// Cuts, freezes and delays both at random for as many seconds, while `send` is handed `each` purchases a second. Answers
/// how many were sent, of which the first are sent already. The faults of the end last.
pub(crate) async fn storm(
    proxies: [&Proxy; 2],
    seconds: i64,
    each: i64,
    mut sent: i64,
    send: impl AsyncFn(Range<i64>),
) -> i64 {
    let mut rng = fastrand::Rng::with_seed(seed());
    let load = async {
        for _ in 0..seconds {
            send(sent..sent + each).await;
            sent += each;
            // The storm lasts for so many of them.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = proxies[0].storm(rng.fork()) => {}
        () = proxies[1].storm(rng.fork()) => {}
        () = load => {}
    }
    sent
}
