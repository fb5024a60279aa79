//! A collector of OpenTelemetry on a socket: it keeps the spans and metrics that processes send over OTLP/HTTP.
//!
//! ```
//! use idem_testkit::collector::Collector;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let collector = Collector::start().await?;
//! // `OTEL_EXPORTER_OTLP_ENDPOINT` of a worker.
//! assert!(collector.endpoint().starts_with("http://127.0.0.1:"));
//! assert!(collector.spans().is_empty());
//! # Ok(())
//! # }
//! ```

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{AnyValue, KeyValue, any_value::Value},
    metrics::v1::{Metric, metric::Data, number_data_point},
    resource::v1::Resource,
};
use prost::Message as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Names and values, the values as text.
pub type Attributes = BTreeMap<String, String>;

/// A span that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectedSpan {
    /// Its name, such as `process orders`.
    pub name: String,
    /// The trace, in hexadecimal.
    pub trace_id: String,
    /// Its own id, in hexadecimal.
    pub span_id: String,
    /// Its parent's id; empty at the root of a trace.
    pub parent_id: String,
    /// The ids of the spans that it is linked to.
    pub links: Vec<String>,
    /// What is known of it.
    pub attributes: Attributes,
    /// Whose it is: `service.name`.
    pub service: String,
}

/// The last value of a metric with some attributes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CollectedPoint {
    /// The metric's name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// What is known of the value.
    pub attributes: Attributes,
    /// The value; of a histogram how many there were.
    pub value: f64,
    /// Whose it is: `service.name`.
    pub service: String,
}

#[derive(Debug, Default)]
struct State {
    spans: Vec<CollectedSpan>,
    points: BTreeMap<(String, String, Attributes), CollectedPoint>,
}

/// A collector, which ends when it is dropped.
#[derive(Debug)]
pub struct Collector {
    endpoint: String,
    state: Arc<Mutex<State>>,
    _server: JoinSet<()>,
}

impl Collector {
    /// Starts one on a free port of this machine.
    ///
    /// # Errors
    /// Where the system gives no port.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let (state, mut server) = (Arc::<Mutex<State>>::default(), JoinSet::new());
        let shared = Arc::clone(&state);
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(converse(stream, Arc::clone(&shared)));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { endpoint, state, _server: server })
    }

    /// Its URL, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The spans so far, in the order in which they came.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        locked(&self.state).spans.clone()
    }

    /// The last value of each metric so far.
    #[must_use]
    pub fn points(&self) -> Vec<CollectedPoint> {
        locked(&self.state).points.values().cloned().collect()
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, until its client has enough.
async fn converse(stream: TcpStream, state: Arc<Mutex<State>>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some((path, body)) = request(&mut stream).await? {
        let is_taken = match &*path {
            "/v1/traces" => {
                ExportTraceServiceRequest::decode(&*body).map(|request| take_spans(&state, request)).is_ok()
            }
            "/v1/metrics" => {
                ExportMetricsServiceRequest::decode(&*body).map(|request| take_metrics(&state, request)).is_ok()
            }
            _ => false,
        };
        // An answer without a field has no bytes.
        let status = if is_taken { "200 OK" } else { "400 Bad Request" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// Path and body of the next request; `None` at the end of the connection.
async fn request(stream: &mut BufReader<TcpStream>) -> io::Result<Option<(String, Vec<u8>)>> {
    let (mut path, mut length, mut line) = (String::new(), 0, String::new());
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let text = line.trim_end();
        if text.is_empty() {
            break;
        }
        if path.is_empty() {
            path = text.split(' ').nth(1).unwrap_or_default().to_owned();
        } else if let Some((name, value)) = text.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some((path, body)))
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(Value::IntValue(value)) => value.to_string(),
        Some(Value::DoubleValue(value)) => value.to_string(),
        other => format!("{other:?}"),
    }
}

fn attributes(pairs: Vec<KeyValue>) -> Attributes {
    pairs.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}

fn service(resource: Option<Resource>) -> String {
    attributes(resource.map(|resource| resource.attributes).unwrap_or_default())
        .remove("service.name")
        .unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn take_spans(state: &Mutex<State>, request: ExportTraceServiceRequest) {
    let mut state = locked(state);
    for of_resource in request.resource_spans {
        let service = service(of_resource.resource);
        for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            state.spans.push(CollectedSpan {
                name: span.name,
                trace_id: hex(&span.trace_id),
                span_id: hex(&span.span_id),
                parent_id: hex(&span.parent_span_id),
                links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                attributes: attributes(span.attributes),
                service: service.clone(),
            });
        }
    }
}

fn take_metrics(state: &Mutex<State>, request: ExportMetricsServiceRequest) {
    let mut state = locked(state);
    for of_resource in request.resource_metrics {
        let service = service(of_resource.resource);
        for metric in of_resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
            let (name, unit) = (metric.name.clone(), metric.unit.clone());
            for (attributes, value) in values(metric) {
                let point = CollectedPoint {
                    name: name.clone(),
                    unit: unit.clone(),
                    attributes: attributes.clone(),
                    value,
                    service: service.clone(),
                };
                state.points.insert((service.clone(), name.clone(), attributes), point);
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a test counts no further")]
fn values(metric: Metric) -> Vec<(Attributes, f64)> {
    let number = |value: Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsInt(value)) => value as f64,
        Some(number_data_point::Value::AsDouble(value)) => value,
        None => f64::NAN,
    };
    let numbers = |points: Vec<opentelemetry_proto::tonic::metrics::v1::NumberDataPoint>| {
        points.into_iter().map(|point| (attributes(point.attributes), number(point.value))).collect()
    };
    match metric.data {
        Some(Data::Sum(sum)) => numbers(sum.data_points),
        Some(Data::Gauge(gauge)) => numbers(gauge.data_points),
        Some(Data::Histogram(histogram)) => {
            histogram.data_points.into_iter().map(|point| (attributes(point.attributes), point.count as f64)).collect()
        }
        _ => Vec::new(),
    }
}
