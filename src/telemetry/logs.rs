//! Log lines on stderr, and traces where somebody collects them.

use std::fmt;
use std::io::IsTerminal;

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Directive;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::Service;

/// Under this target is said who changed what by the admin page, at every log level.
pub const AUDIT: &str = "elf::audit";

/// The engine in this process warns of its own missing start-up at every start. The driver
/// of Postgres tells of every connection that an outage has cost, and ELF of the outage.
const QUIETER: &str =
    "qdrant_edge=error,sqlx::pool=error,sqlx_core::pool=error,sqlx::postgres::notice=warn";

/// Keeps what logs and traces need; when it is dropped, the last spans are sent.
#[must_use = "traces end when it is dropped"]
pub struct Logging {
    #[cfg(feature = "otlp")]
    _traces: Option<super::otlp::Traces>,
}

/// Sends log lines to stderr; `RUST_LOG` wins over the configuration. Sends traces to an
/// OpenTelemetry collector where `OTEL_EXPORTER_OTLP_ENDPOINT` names one.
pub fn init_logging(service: &Service) -> Logging {
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(format!("{QUIETER},{}", service.log_level)))
        .unwrap_or_else(|_| EnvFilter::new("info"))
        .add_directive(always());
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let lines = if service.log_json {
        lines.json().boxed()
    } else {
        lines
            .fmt_fields(debug_fn(write_field).delimited(" "))
            .boxed()
    };
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
    #[cfg(feature = "otlp")]
    {
        let (traces, layer) = super::otlp::traces().unzip();
        // Fails only when somebody, a test for one, has set up logging already.
        let _ = subscriber.with(layer).try_init();
        if let Some(traces) = &traces {
            traces.announce();
        }
        Logging { _traces: traces }
    }
    #[cfg(not(feature = "otlp"))]
    {
        let _ = subscriber.try_init();
        Logging {}
    }
}

/// `name=value`. The default writes a value as it displays itself, and the answer of a
/// server or the name of a file can hold characters that a terminal obeys, or a line
/// break that makes up a log line.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => {}
        // Of the `log` crate: they are in the line's head already.
        name if name.starts_with("log.") => return Ok(()),
        name => write!(writer, "{name}=")?,
    }
    for c in format!("{value:?}").chars() {
        match c.is_control() {
            true => write!(writer, "{}", c.escape_default())?,
            false => writer.write_char(c)?,
        }
    }
    Ok(())
}

fn always() -> Directive {
    format!("{AUDIT}=trace")
        .parse()
        .expect("it is a target and a level")
}
