//! Log lines on stderr, and traces to an OpenTelemetry collector.

use std::fmt;
use std::io::IsTerminal;

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::Service;

/// The target of audit lines: changes by the admin page and the command line, with the peer or
/// the user. They are written at every log level, but for a command whose user reads its report.
pub const AUDIT: &str = "elf::audit";

/// The embedded engine warns at every start that its server parts were not started. The Postgres
/// driver logs every connection that an outage breaks; ELF logs the outage itself.
const QUIETER: &str =
    "qdrant_edge=error,sqlx::pool=error,sqlx_core::pool=error,sqlx::postgres::notice=warn";

/// Who reads the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A log, or who watches a process that goes on.
    Log,
    /// A person who waits for the report of a command: what the command did is in the report.
    Terminal,
}

/// Keeps the trace exporter. Dropping it sends the last spans.
#[must_use = "traces end when it is dropped"]
pub struct Logging {
    #[cfg(feature = "otlp")]
    _traces: Option<super::otlp::Traces>,
}

/// Sends log lines to stderr; `RUST_LOG` overrides the configuration. Sends traces to an
/// OpenTelemetry collector where `OTEL_EXPORTER_OTLP_ENDPOINT` names one.
pub fn init_logging(service: &Service, reader: Reader) -> Logging {
    let (level, audit) = match reader {
        Reader::Terminal if service.log_level == "info" => ("warn", "off"),
        Reader::Terminal => (service.log_level.as_str(), "off"),
        Reader::Log => (service.log_level.as_str(), "trace"),
    };
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(format!("{QUIETER},{level}")))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let wanted = filter.max_level_hint();
    let filter = filter
        .add_directive(always(&format!("{AUDIT}={audit}")))
        // It logs each request, and its arguments too: texts of notes.
        .add_directive(always("rmcp=error"));
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
        // Fails only if the process has a subscriber already, as in a test.
        let _ = subscriber.with(layer).try_init();
        limit_log_records(wanted);
        if let Some(traces) = &traces {
            traces.announce();
        }
        Logging { _traces: traces }
    }
    #[cfg(not(feature = "otlp"))]
    {
        let _ = subscriber.try_init();
        limit_log_records(wanted);
        Logging {}
    }
}

/// Turns off records of the `log` crate above the level that the operator wants. The directives of
/// every log line raise the level of all to `trace`. The tokenizer makes a record of that level for
/// every character, and to ask the filter for each took half of a worker's time.
fn limit_log_records(wanted: Option<LevelFilter>) {
    let level = wanted.and_then(|level| level.to_string().parse().ok());
    log::set_max_level(level.unwrap_or(log::LevelFilter::Trace));
}

/// Writes `name=value` with control characters escaped. The default format does not escape them:
/// the answer of a server or a file name could send an escape sequence to a terminal, or forge
/// a log line with a line break.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => {}
        // Fields of the `log` crate, which the head of the line shows already.
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

/// What no setting of the log changes.
fn always(directive: &str) -> Directive {
    directive
        .parse()
        .expect("the directive is a target and a level")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_libraries_are_off_above_the_level_of_the_logs() {
        limit_log_records(Some(LevelFilter::INFO));
        assert_eq!(log::max_level(), log::LevelFilter::Info);
        limit_log_records(None);
        assert_eq!(log::max_level(), log::LevelFilter::Trace);
    }
}
