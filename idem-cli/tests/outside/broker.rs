//! A topic or queue on the servers that tests share, by commonly available tools.

use std::{path::Path, process::Output};

use tokio::process::Command;

/// A topic or queue.
pub(crate) struct Queue {
    broker: &'static str,
    name: String,
    /// Where the broker, or its API over HTTP, is.
    url: String,
}

impl Queue {
    /// Makes it.
    pub(crate) async fn make(broker: &'static str, name: &str) -> Self {
        let variable = match broker {
            "kafka" => "IDEM_KAFKA_BROKERS",
            "rabbitmq" => "IDEM_AMQP_MANAGEMENT_URL",
            _ => "IDEM_SQS_URL",
        };
        let url = std::env::var(variable).unwrap_or_else(|_| panic!("{variable}: see ./servers"));
        let queue = Self { broker, name: name.to_owned(), url };
        match broker {
            "kafka" => queue.topic(&["create"]).await,
            "rabbitmq" => {
                queue
                    .manage(
                        "PUT",
                        &format!("queues/%2f/{name}"),
                        r#"{"durable": true, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": -1}}"#,
                    )
                    .await;
            }
            _ => queue.curl(&[&queue.url, "-d", "Action=CreateQueue", "-d", &format!("QueueName={name}")]).await,
        }
        queue
    }

    pub(crate) async fn publish(&self, payload: &str) {
        match self.broker {
            "kafka" => self.topic(&["send", "1", payload]).await,
            "rabbitmq" => {
                let body = serde_json::json!({
                    "routing_key": self.name, "properties": { "delivery_mode": 2 },
                    "payload_encoding": "string", "payload": payload,
                });
                self.manage("POST", "exchanges/%2f/amq.default/publish", &body.to_string()).await;
            }
            _ => {
                let body = format!("MessageBody={payload}");
                self.curl(&[&self.queue_url(), "-d", "Action=SendMessage", "--data-urlencode", &body]).await;
            }
        }
    }

    pub(crate) async fn remove(&self) {
        match self.broker {
            "kafka" => self.topic(&["delete"]).await,
            "rabbitmq" => self.manage("DELETE", &format!("queues/%2f/{}", self.name), "").await,
            _ => self.curl(&[&self.queue_url(), "-d", "Action=DeleteQueue"]).await,
        }
    }

    /// The worker's flags in place of its file.
    pub(crate) fn flags(&self) -> Vec<String> {
        let flags: &[&str] = match self.broker {
            "kafka" => &["--topic", "--group"],
            "rabbitmq" => &["--queue"],
            _ => &[],
        };
        flags.iter().flat_map(|flag| [(*flag).to_owned(), self.name.clone()]).collect()
    }

    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        match self.broker {
            "kafka" => vec![("KAFKA_BROKERS", self.url.clone())],
            "rabbitmq" => vec![
                ("AMQP_URL", std::env::var("IDEM_AMQP_URL").expect("IDEM_AMQP_URL: see ./servers")),
                ("AMQP_MANAGEMENT_URL", self.url.clone()),
            ],
            _ => vec![
                ("SQS_QUEUE_URL", self.queue_url()),
                ("AWS_ENDPOINT_URL", self.url.clone()),
                ("AWS_REGION", "eu-central-1".to_owned()),
                ("AWS_ACCESS_KEY_ID", "x".to_owned()),
                ("AWS_SECRET_ACCESS_KEY", "x".to_owned()),
            ],
        }
    }

    fn queue_url(&self) -> String {
        format!("{}/000000000000/{}", self.url.trim_end_matches('/'), self.name)
    }

    /// The example's program, which stands in for Kafka's own tools.
    async fn topic(&self, arguments: &[&str]) {
        let program = Path::new(env!("CARGO_BIN_EXE_idem")).with_file_name("topic-kafka");
        let mut command = Command::new(&program);
        let output = command.args([&self.url, &self.name]).args(arguments).output().await;
        let output =
            output.unwrap_or_else(|error| panic!("{}: {error}; cargo build -p kafka-worker", program.display()));
        succeeded(&output);
    }

    async fn manage(&self, method: &str, path: &str, body: &str) {
        self.curl(&["-u", "guest:guest", "-X", method, &format!("{}/api/{path}", self.url), "-d", body]).await;
    }

    async fn curl(&self, arguments: &[&str]) {
        succeeded(&Command::new("curl").arg("-fsS").args(arguments).output().await.unwrap());
    }
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
