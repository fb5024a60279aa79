//! A real browser, driven over its own pipe: no driver and no WebSocket in between. The tests of every worker include this file.

#![allow(dead_code, reason = "not every worker's tests use all of it")]

use std::{io::ErrorKind, path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::unix::pipe::{OpenOptions, Receiver, Sender},
    process::{Child, Command},
};

/// Only a browser that hangs needs longer.
const LONG: Duration = Duration::from_secs(60);

/// How a page is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) is_dark: bool,
}

/// Chromium, with one page in which no script may run.
pub(crate) struct Browser {
    process: Child,
    to: Sender,
    from: BufReader<Receiver>,
    session: Option<String>,
    calls: u64,
    /// The events that the browser sent by itself.
    events: Vec<Value>,
}

impl Browser {
    /// Starts it with its files in this folder.
    pub(crate) async fn start(folder: &Path) -> Self {
        let (to, from) = (folder.join("to-browser"), folder.join("from-browser"));
        let made = Command::new("mkfifo").args([&to, &from]).status().await;
        assert!(made.unwrap().success(), "no pipes in {}", folder.display());
        // For both directions, so that opening does not wait for a peer.
        let mut open = OpenOptions::new();
        let (sender, receiver) = (open.read_write(true).open_sender(&to).unwrap(), open.open_receiver(&from).unwrap());
        let process = Command::new("sh")
            .args(["-c", r#"exec chromium "$@" 3<"$TO" 4>"$FROM""#, "sh"])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
            .args(["--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.join("browser").display()))
            .envs([("TO", &to), ("FROM", &from)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut browser =
            Self { process, to: sender, from: BufReader::new(receiver), session: None, calls: 0, events: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" })).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
        for domain in ["Page.enable", "Log.enable"] {
            browser.call(domain, json!({})).await;
        }
        browser
    }

    /// Loads a page as it is looked at, and waits until everything of it is there.
    pub(crate) async fn open(&mut self, url: &str, look: Look) {
        let Look { width, height, is_dark } = look;
        let device = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", device).await;
        let scheme = if is_dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media).await;
        self.events.retain(|event| event["method"] != "Page.loadEventFired");
        self.call("Page.navigate", json!({ "url": url })).await;
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.said().await;
            self.events.push(event);
        }
    }

    /// The value of an expression in the page.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        self.call("Runtime.evaluate", asked).await["result"]["value"].clone()
    }

    /// The part of the page that is seen without scrolling, as a PNG.
    pub(crate) async fn screenshot(&mut self) -> Vec<u8> {
        let asked = json!({ "format": "png" });
        decoded(self.call("Page.captureScreenshot", asked).await["data"].as_str().expect("a picture"))
    }

    /// The browser's complaints, such as a resource that the page's policy forbids.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        self.events.iter().filter(|event| event["method"] == "Log.entryAdded").collect()
    }

    /// Ends it, so that nothing writes to its folder any more.
    pub(crate) async fn close(mut self) {
        self.session = None;
        self.call("Browser.close", json!({})).await;
        tokio::time::timeout(LONG, self.process.wait()).await.expect("the browser ends").unwrap();
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{call}\0").as_bytes()).await.unwrap();
        loop {
            let mut said = self.said().await;
            if said["id"] == self.calls {
                assert!(said["error"].is_null(), "{method}: {said}");
                return said["result"].take();
            }
            self.events.push(said);
        }
    }

    async fn said(&mut self) -> Value {
        let mut said = Vec::new();
        let read = tokio::time::timeout(LONG, self.from.read_until(0, &mut said)).await;
        read.expect("the browser answers").unwrap();
        serde_json::from_slice(said.strip_suffix(&[0]).unwrap_or(&said)).unwrap()
    }
}

/// The bytes of a text in base64, which is what the browser answers with.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for digit in text.bytes().map_while(digit) {
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count).to_le_bytes()[0]);
        }
    }
    bytes
}

/// Fails, and says how to mend it, where there is no browser.
pub(crate) async fn is_installed() {
    let version = Command::new("chromium").arg("--version").stderr(Stdio::null()).output().await;
    if let Err(error) = version {
        assert_ne!(error.kind(), ErrorKind::NotFound, "chromium is missing: apt-get install -y chromium");
        panic!("chromium does not start: {error}");
    }
}
