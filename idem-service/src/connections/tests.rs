//! Which connection goes, by a clock that leaps.

use std::sync::Mutex;

use super::*;

/// Connections that end only when they are closed, and their names in the order in which they were.
struct Port {
    open: Connections,
    closed: Arc<Mutex<Vec<usize>>>,
    waits: Vec<Arc<Waits>>,
}

struct Closed(usize, Arc<Mutex<Vec<usize>>>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0);
    }
}

impl Port {
    fn new(max: usize) -> Self {
        Self { open: Connections::new(max, metrics::Counter::noop()), closed: Arc::default(), waits: Vec::new() }
    }

    async fn connect(&mut self) {
        self.open.room().await;
        let closed = Closed(self.waits.len(), Arc::clone(&self.closed));
        self.open.serve(|waits| {
            self.waits.push(waits);
            async move {
                let _closed = closed;
                std::future::pending().await
            }
        });
        sleep(Duration::from_millis(1)).await;
    }

    fn closed(&self) -> Vec<usize> {
        self.closed.lock().unwrap().clone()
    }
}

/// W173: the one that has waited longest for its client goes. One that works for its client stays, however old it is.
#[tokio::test(start_paused = true)]
async fn w173_the_one_that_waited_longest_for_its_client_goes() {
    let mut port = Port::new(3);
    for _ in 0..3 {
        port.connect().await;
    }
    port.waits[0].works(true);
    port.connect().await;
    assert_eq!(port.closed(), [1], "0 works");
    // A request was answered, and the wait for the next one begins.
    port.waits[0].begin();
    sleep(Duration::from_millis(1)).await;
    port.connect().await;
    port.connect().await;
    assert_eq!(port.closed(), [1, 2, 3], "the others are older than the wait of 0");
    port.connect().await;
    assert_eq!(port.closed(), [1, 2, 3, 0]);
    assert_eq!(port.open.open.len(), 3);
}

/// W173: a new connection waits while all of them work, and takes the place of the first that waits or ends.
#[tokio::test(start_paused = true)]
async fn w173_one_more_waits_while_all_of_them_work() {
    let mut port = Port::new(200);
    for _ in 0..200 {
        port.connect().await;
        port.waits.last().unwrap().works(true);
    }
    assert!(tokio::time::timeout(Duration::from_secs(3_600), port.open.room()).await.is_err(), "there is no room");
    port.waits[150].begin();
    port.connect().await;
    assert_eq!(port.closed(), [150]);
}
