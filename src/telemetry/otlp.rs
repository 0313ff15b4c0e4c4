//! Traces to an OpenTelemetry collector, over OTLP/gRPC. Endpoint, headers and sampling
//! are configured by the variables of the OpenTelemetry specification
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// The trace exporter. Dropping it sends the spans that are still buffered.
pub struct Traces {
    provider: Result<SdkTracerProvider, String>,
    endpoint: String,
}

/// The layer that sends spans.
type Sender<S> = Box<dyn Layer<S> + Send + Sync>;

/// A layer that sends the spans of ELF; `None` if no endpoint is set.
pub fn traces<S>() -> Option<(Traces, Option<Sender<S>>)>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let endpoint =
        set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"))?;
    let exporter = match exporter(&endpoint, set) {
        Ok(exporter) => exporter,
        Err(error) => {
            let provider = Err(error);
            return Some((Traces { provider, endpoint }, None));
        }
    };
    let name = set("OTEL_SERVICE_NAME").unwrap_or_else(|| "elf".into());
    let resource = Resource::builder().with_service_name(name).build();
    let provider = SdkTracerProvider::builder()
        .with_resource(resource)
        .with_batch_exporter(exporter)
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("elf"))
        // ELF's spans only: the exporter's own requests make spans too, and exporting those would
        // make more.
        .with_filter(Targets::new().with_target("elf", tracing::Level::DEBUG))
        .boxed();
    let provider = Ok(provider);
    Some((Traces { provider, endpoint }, Some(layer)))
}

fn exporter(endpoint: &str, set: impl Fn(&str) -> Option<String>) -> Result<SpanExporter, String> {
    let mut exporter = SpanExporter::builder().with_tonic();
    if endpoint.starts_with("https://") {
        exporter = exporter.with_tls_config(tls(set)?);
    }
    exporter.build().map_err(|error| error.to_string())
}

/// TLS with the authorities and the client certificate that the specification's variables name,
/// else with the system's authorities. The exporter reads the other variables itself, but not
/// these.
fn tls(set: impl Fn(&str) -> Option<String>) -> Result<ClientTlsConfig, String> {
    let file = |name: &str| {
        let path = set(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
            .or_else(|| set(&format!("OTEL_EXPORTER_OTLP_{name}")));
        path.map(|path| std::fs::read(&path).map_err(|error| format!("{path}: {error}")))
            .transpose()
    };
    let mut config = match file("CERTIFICATE")? {
        Some(authorities) => {
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities))
        }
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let (Some(certificate), Some(key)) = (file("CLIENT_CERTIFICATE")?, file("CLIENT_KEY")?) {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    Ok(config)
}

impl Traces {
    /// Logs the endpoint, or why no traces are sent.
    pub fn announce(&self) {
        let endpoint = &self.endpoint;
        match &self.provider {
            Ok(_) => tracing::info!(endpoint, "sending traces"),
            Err(error) => tracing::error!(
                endpoint,
                error,
                "failed to start traces; check the OTEL_EXPORTER_OTLP_… variables"
            ),
        }
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Ok(provider) = &self.provider
            && let Err(error) = provider.shutdown()
        {
            tracing::debug!(%error, "failed to send the last spans");
        }
    }
}
