//! A RabbitMQ with settings of its own, by `./servers`: one for all tests that need it, gone with the last of them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, Mutex, PoisonError, Weak},
};

const SET: &str = "amqp-own";

/// Away from the ports of the shared servers.
const PORT_OFFSET: u32 = 500;

static RUNNING: Mutex<Weak<OwnServer>> = Mutex::new(Weak::new());

/// The largest message that it takes.
pub(crate) const MESSAGE_MAX: usize = 1 << 20;

/// Deliveries time out after ten seconds on it, messages are small, and it has doors with TLS, with a certificate for
/// 127.0.0.1. The broker's wants one of its client too.
pub(crate) struct OwnServer {
    /// Where the certificates are.
    folder: PathBuf,
}

impl OwnServer {
    pub(crate) async fn up() -> Arc<Self> {
        tokio::task::spawn_blocking(|| {
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            running.upgrade().unwrap_or_else(|| {
                let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(SET);
                certificates(&folder);
                let server = Arc::new(Self { folder });
                server.servers(&["up", "rabbitmq"]);
                *running = Arc::downgrade(&server);
                server
            })
        })
        .await
        .unwrap()
    }

    pub(crate) fn url(&self) -> String {
        self.servers(&["url", "rabbitmq"]).trim().to_owned()
    }

    /// `host:port` of the broker's door with TLS, and of its management API's.
    pub(crate) fn tls() -> [String; 2] {
        [25_676, 25_677].map(|port| format!("127.0.0.1:{}", port + outer_offset() + PORT_OFFSET))
    }

    /// The text of `NAME.pem`: `ca` signed the certificates of the broker and of `client`, and `stranger` nothing.
    pub(crate) fn authority(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(format!("{name}.pem"))).unwrap()
    }

    /// Runs `rabbitmqctl`.
    pub(crate) async fn control(self: &Arc<Self>, arguments: &'static [&'static str]) {
        let server = Arc::clone(self);
        tokio::task::spawn_blocking(move || server.servers(&[&["rabbitmqctl"], arguments].concat())).await.unwrap();
    }

    fn servers(&self, arguments: &[&str]) -> String {
        let [broker, management] = Self::tls();
        let management_port = management.rsplit_once(':').unwrap().1;
        let file = |name: &str| self.folder.join(name).display().to_string();
        let (certificate, key) = (file("broker.pem"), file("key.pem"));
        let conf = [
            "consumer_timeout = 10000".to_owned(),
            format!("listeners.ssl.default = {broker}"),
            format!("ssl_options.certfile = {certificate}"),
            format!("ssl_options.keyfile = {key}"),
            format!("ssl_options.cacertfile = {}", file("ca.pem")),
            "ssl_options.verify = verify_peer".to_owned(),
            "ssl_options.fail_if_no_peer_cert = true".to_owned(),
            format!("max_message_size = {MESSAGE_MAX}"),
            "management.ssl.ip = 127.0.0.1".to_owned(),
            format!("management.ssl.port = {management_port}"),
            format!("management.ssl.certfile = {certificate}"),
            format!("management.ssl.keyfile = {key}"),
        ];
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../servers"))
            .args(arguments)
            .env("IDEM_SERVERS_SET", SET)
            .env("IDEM_PORT_OFFSET", (outer_offset() + PORT_OFFSET).to_string())
            .env("IDEM_RABBITMQ_CONF", conf.join("\n"))
            .output();
        text(&output.unwrap())
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // Another test may have taken it over meanwhile.
        if running.strong_count() == 0 {
            self.servers(&["down", "--purge"]);
        }
    }
}

fn outer_offset() -> u32 {
    std::env::var("IDEM_PORT_OFFSET").ok().and_then(|offset| offset.parse().ok()).unwrap_or(0)
}

/// Two authorities, and a certificate that the first has signed.
fn certificates(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let script = "for name in ca stranger; do
            openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=$name -keyout $name-key.pem -out $name.pem
        done
        echo subjectAltName=IP:127.0.0.1 >names
        openssl req -newkey rsa:2048 -nodes -subj /CN=broker -keyout key.pem -out request.pem
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile names -out broker.pem
        openssl req -newkey rsa:2048 -nodes -subj /CN=client -keyout client-key.pem -out request.pem
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile names -out client.pem";
    text(&Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap());
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
