//! OpenTelemetry: traces and metrics go to a collector over OTLP, where `OTEL_EXPORTER_OTLP_ENDPOINT` names one.

mod instruments;

use std::{
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use idem_core::telemetry::{TraceContext, Tracing, trace_with};
use opentelemetry::{
    Context,
    metrics::{Meter, MeterProvider as _},
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _},
};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider, trace::SdkTracerProvider};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

pub(crate) use self::instruments::{count, histogram, measure};

/// The spans that are exported: idem's, and those of the application from INFO on. What the exporter itself does would export itself.
const SPANS: &str = "info,idem::spans=debug,opentelemetry=off,opentelemetry_sdk=off,opentelemetry-otlp=off,opentelemetry_otlp=off,\
     opentelemetry_http=off,hyper=off,hyper_util=off,reqwest=off,rustls=off";

/// How long the end of the process waits for the last spans and metrics to be taken.
const LAST_WITHIN: Duration = Duration::from_secs(5);

/// The name of this library, by which a backend groups what it records.
const SCOPE: &str = "idem";

static EXPORTING: OnceLock<Exporting> = OnceLock::new();

#[derive(Debug)]
struct Exporting {
    tracer: Option<SdkTracerProvider>,
    meter: Option<SdkMeterProvider>,
}

/// A variable that says something.
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether this signal, `TRACES` or `METRICS`, is exported.
fn exports(signal: &str) -> bool {
    let is_none = |name: &str| set(name).is_some_and(|value| value.eq_ignore_ascii_case("none"));
    let has_endpoint = || {
        set("OTEL_EXPORTER_OTLP_ENDPOINT").or_else(|| set(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))).is_some()
    };
    let is_off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    !is_off && !is_none(&format!("OTEL_{signal}_EXPORTER")) && has_endpoint()
}

/// Whether metrics go to a collector.
pub(crate) fn takes_metrics() -> bool {
    meter().is_some()
}

/// What metrics are recorded with, where they go to a collector.
fn meter() -> Option<Meter> {
    Some(EXPORTING.get()?.meter.as_ref()?.meter(SCOPE))
}

/// Starts the exporters that the variables of OpenTelemetry ask for. Their threads are their own, so this comes before the runtime.
///
/// # Errors
/// One line, where an endpoint or the protocol cannot be used.
pub(crate) fn start() -> Result<(), String> {
    let (traces, metrics) = (exports("TRACES"), exports("METRICS"));
    if !traces && !metrics {
        return Ok(());
    }
    // Where a program's libraries bring another provider too, none is the default, and the client would panic.
    drop(rustls::crypto::ring::default_provider().install_default());
    let refused = |signal: &str, error: &dyn std::error::Error| {
        format!(
            "{signal} cannot be exported: {error}. OTEL_EXPORTER_OTLP_ENDPOINT is a URL such as http://collector:4318, and \
             OTEL_EXPORTER_OTLP_PROTOCOL http/protobuf"
        )
    };
    let mut exporting = Exporting { tracer: None, meter: None };
    if traces {
        let exporter = SpanExporter::builder().with_http().build().map_err(|error| refused("traces", &error))?;
        let provider = SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(exporter);
        exporting.tracer = Some(provider.build());
    }
    if metrics {
        let exporter = MetricExporter::builder().with_http().build().map_err(|error| refused("metrics", &error))?;
        let provider = SdkMeterProvider::builder().with_resource(resource()).with_periodic_exporter(exporter);
        exporting.meter = Some(provider.build());
    }
    trace_with(Tracing {
        continues: |span, sender| {
            // It fails only for a span that is not exported.
            drop(span.set_parent(Context::new().with_remote_span_context(remote(sender))));
        },
        links: |span, sender| span.add_link(remote(sender)),
        context,
    });
    // A second start in one process keeps the exporters of the first.
    drop(EXPORTING.set(exporting));
    Ok(())
}

/// Whose signals these are: as the variables say it, else the program's name.
fn resource() -> Resource {
    let attributes = set("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = set("OTEL_SERVICE_NAME").is_some()
        || attributes.split(',').any(|pair| pair.trim_start().starts_with("service.name="));
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name()?.to_str());
    match program.filter(|_| !is_named) {
        Some(program) => Resource::builder().with_service_name(program.to_owned()).build(),
        None => Resource::builder().build(),
    }
}

/// The part of the subscriber that exports spans.
pub(crate) fn layer<S>() -> Option<impl Layer<S>>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let tracer = EXPORTING.get()?.tracer.as_ref()?.tracer(SCOPE);
    let filter: Targets = SPANS.parse().unwrap_or_default();
    Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(filter))
}

fn remote(sender: &TraceContext) -> SpanContext {
    let (trace, span) = (TraceId::from(sender.trace_id), SpanId::from(sender.span_id));
    SpanContext::new(trace, span, TraceFlags::new(sender.flags), true, TraceState::NONE)
}

fn context(span: &Span) -> Option<TraceContext> {
    let context = span.context();
    let span = context.span();
    let own = span.span_context();
    let (trace, id) = (own.trace_id().to_bytes(), own.span_id().to_bytes());
    TraceContext::new(u128::from_be_bytes(trace), u64::from_be_bytes(id), own.trace_flags().to_u8())
}

/// Sends what is left, at the end of the process. A collector that does not answer costs it five seconds at most.
pub(crate) fn end() {
    let Some(Exporting { tracer, meter }) = EXPORTING.get() else { return };
    let (tracer, meter) = (tracer.clone(), meter.clone());
    let (done, is_done) = mpsc::channel();
    let sending = thread::Builder::new().name("otel".to_owned()).spawn(move || {
        // Errors are logged by the exporter.
        drop(tracer.map(|tracer| tracer.shutdown_with_timeout(LAST_WITHIN)));
        drop(meter.map(|meter| meter.shutdown()));
        let _ = done.send(());
    });
    if sending.is_ok() {
        let _ = is_done.recv_timeout(LAST_WITHIN);
    }
}
