//! `storage.postgres.dsn`: which parameters of the URL ELF honours, and which it refuses.
//!
//! Parameters are those of libpq. A parameter that asks for something that ELF does not do is
//! refused: without it, ELF might connect to another server than the operator means, or trust it
//! for less. No message repeats a value, because the URL contains a password.

use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;

use reqwest::Url;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// How to connect to Postgres.
#[derive(Debug, Clone)]
pub struct Dsn {
    /// What sqlx connects with.
    pub options: PgConnectOptions,
    /// Files of certificates: their parameter, the variable that stands in for it, and the path.
    files: Vec<(&'static str, &'static str, String)>,
    /// Parameters that change nothing: ELF has its own way.
    pub without_effect: Vec<String>,
}

const ONE_HOST: &str = "names several hosts, and ELF connects to one: write an address that leads to the \
                        primary, such as that of a proxy or a virtual IP";

/// Parameters that name files, the variables that stand in for them, and what the files hold.
const FILES: [(&str, &str, &str); 3] = [
    ("sslrootcert", "PGSSLROOTCERT", "CERTIFICATE"),
    ("sslcert", "PGSSLCERT", "CERTIFICATE"),
    ("sslkey", "PGSSLKEY", "PRIVATE KEY"),
];

impl Dsn {
    /// Reads a URL. The environment variables of libpq stand in for what it leaves out, as far as
    /// sqlx knows them (`PGHOST`, `PGPASSWORD`, `PGPASSFILE`, `PGSSLROOTCERT`, …). The error completes
    /// "storage.postgres.dsn …".
    pub fn parse(text: &str) -> Result<Self, String> {
        let Address { url, has_host } = address(text)?;
        let mut without_effect = Vec::new();
        let mut honoured: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
        for (key, value) in url.query_pairs() {
            match verdict(&key, &value)? {
                Verdict::Honoured => honoured.push((key, value)),
                Verdict::Satisfied => {}
                Verdict::WithoutEffect => without_effect.push(key.into_owned()),
            }
        }
        let value_of = |name: &str| {
            let of_name = honoured.iter().find(|(key, _)| key == name);
            of_name.map(|(_, value)| &**value)
        };
        if value_of("hostaddr").is_some() && (has_host || value_of("host").is_some()) {
            return Err(
                "has a host and hostaddr, and ELF connects to the host: remove hostaddr".into(),
            );
        }
        if value_of("sslcert").is_some() != value_of("sslkey").is_some() {
            return Err("has only one of sslcert and sslkey, which go together".into());
        }
        let mode = value_of("sslmode").map(str::to_owned);
        let trusts_system = value_of("sslrootcert") == Some("system");
        let has_authority = value_of("sslrootcert").is_some();
        if trusts_system && mode.as_deref().is_some_and(|mode| mode != "verify-full") {
            return Err("has sslrootcert=system, which needs sslmode=verify-full".into());
        }
        let files = FILES.iter().filter_map(|(parameter, variable, _)| {
            let of_environment = || {
                std::env::var(variable)
                    .ok()
                    .filter(|value| !value.starts_with("-----"))
            };
            let path = value_of(parameter)
                .map(str::to_owned)
                .or_else(of_environment)?;
            let is_file = !(trusts_system && *parameter == "sslrootcert");
            is_file.then_some((*parameter, *variable, path))
        });
        let files = files.collect();
        honoured.retain(|(key, _)| !(trusts_system && key == "sslrootcert"));

        let mut known = url.clone();
        known.set_query(None);
        if !honoured.is_empty() {
            known.query_pairs_mut().extend_pairs(&honoured);
        }
        let mut options = PgConnectOptions::from_str(known.as_str())
            .map_err(|error| format!("is not a URL that ELF can read: {error}"))?;
        if trusts_system {
            options = options.ssl_mode(PgSslMode::VerifyFull);
        } else if has_authority && matches!(options.get_ssl_mode(), PgSslMode::Require) {
            // As libpq does: who names an authority wants it asked.
            options = options.ssl_mode(PgSslMode::VerifyCa);
        } else if matches!(options.get_ssl_mode(), PgSslMode::Allow) {
            // sqlx would never encrypt.
            options = options.ssl_mode(PgSslMode::Prefer);
        }
        if socket(&options).is_some() {
            options = options.ssl_mode(PgSslMode::Disable);
        } else {
            // The name in a certificate has no brackets.
            let host = options.get_host().trim_matches(['[', ']']).to_owned();
            options = options.host(&host);
        }
        Ok(Self {
            options,
            files,
            without_effect,
        })
    }

    /// The same URL with another database.
    pub fn with_database(text: &str, database: &str) -> Result<String, String> {
        let mut url = address(text)?.url;
        let others = url.query_pairs().into_owned();
        let others: Vec<(String, String)> = others.filter(|(key, _)| key != "dbname").collect();
        url.set_path(database);
        url.set_query(None);
        if !others.is_empty() {
            url.query_pairs_mut().extend_pairs(others);
        }
        Ok(url.into())
    }

    /// The same URL, with relative paths of files made to start at `folder`.
    pub fn with_files_in(text: &str, folder: &Path) -> String {
        let (Ok(Address { mut url, .. }), Some((before, _))) =
            (address(text), text.split_once('?'))
        else {
            return text.to_owned();
        };
        let is_file = |key: &str, value: &str| {
            let names_file = FILES.iter().any(|(parameter, ..)| *parameter == key);
            // The driver takes the PEM itself too.
            names_file && value != "system" && !value.starts_with("-----")
        };
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let pairs = pairs.into_iter().map(|(key, value)| {
            let value = match is_file(&key, &value) {
                true => folder.join(&value).display().to_string(),
                false => value,
            };
            (key, value)
        });
        url.query_pairs_mut().clear().extend_pairs(pairs);
        format!("{before}?{}", url.query().unwrap_or_default())
    }

    /// Host and port, or the folder of the socket: for messages.
    pub fn place(&self) -> String {
        match socket(&self.options) {
            Some(folder) => format!("{}/.s.PGSQL.{}", folder.display(), self.options.get_port()),
            None => format!("{}:{}", self.options.get_host(), self.options.get_port()),
        }
    }

    /// Whether a password and notes go to another machine without encryption.
    pub fn is_clear(&self) -> bool {
        let is_encrypted = matches!(
            self.options.get_ssl_mode(),
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull
        );
        socket(&self.options).is_none()
            && !is_encrypted
            && !super::is_loopback(self.options.get_host())
    }

    /// Checks that the files of certificates can be read: at a connection, the driver says what is
    /// wrong and not with which file.
    pub fn check_files(&self) -> Result<(), String> {
        for (parameter, variable, path) in &self.files {
            let named = format!("{parameter} of storage.postgres.dsn (or {variable})");
            let pem = std::fs::read(path)
                .map_err(|error| format!("failed to read {path}, the {named}: {error}"))?;
            let of_parameter = FILES.iter().find(|(name, ..)| name == parameter);
            let what = of_parameter.map_or("", |(_, _, what)| what);
            if !String::from_utf8_lossy(&pem).contains(&format!("{what}-----")) {
                return Err(format!("{path}, the {named}, holds no {what} in PEM"));
            }
        }
        Ok(())
    }
}

fn socket(options: &PgConnectOptions) -> Option<&Path> {
    let host = Path::new(options.get_host());
    let folder = options.get_socket().map(|folder| folder.as_path());
    folder.or_else(|| host.is_absolute().then_some(host))
}

struct Address {
    url: Url,
    has_host: bool,
}

/// Parses it, and finds the mistakes that a parser would take for a part of something else.
fn address(text: &str) -> Result<Address, String> {
    let Some(rest) = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme))
    else {
        return Err("must be a URL that begins with postgres:// or postgresql://".into());
    };
    let (authority, after) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    // Up to the first parameter, an @ ends a password.
    let before_values = after.split_once('=').map_or(after, |(before, _)| before);
    if (credentials.is_empty() && before_values.contains('@')) || after.contains('#') {
        return Err(
            "has a / ? or # in its password, or elsewhere as it is: write them as %2F, %3F and %23"
                .into(),
        );
    }
    if hosts.contains(',') {
        return Err(ONE_HOST.into());
    }
    // A URL with a user needs a host, which a parameter may name.
    let url = match hosts.is_empty() && !credentials.is_empty() {
        true => Url::parse(&format!("postgres://{credentials}@localhost{after}")),
        false => Url::parse(text),
    };
    Ok(Address {
        url: url.map_err(|error| format!("is not a URL: {error}"))?,
        has_host: !hosts.is_empty(),
    })
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Honoured,
    /// It asks for what ELF does in any case.
    Satisfied,
    WithoutEffect,
}

/// The parameters that ELF does as they say.
const HONOURED: [&str; 12] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "options",
    "statement-cache-capacity",
];

/// Those of the connection alone: nothing that ELF does depends on them.
const WITHOUT_EFFECT: [&str; 15] = [
    "application_name",
    "connect_timeout",
    "fallback_application_name",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "client_encoding",
    "sslcompression",
    "sslsni",
    "krbsrvname",
    "gsslib",
    "gssdelegation",
    "load_balance_hosts",
];

fn verdict(key: &str, value: &str) -> Result<Verdict, String> {
    if let Some(mistake) = mistake(key, value) {
        return Err(mistake);
    }
    let is_option = key.starts_with("options[") && key.ends_with(']');
    if is_option || HONOURED.contains(&key) {
        return Ok(Verdict::Honoured);
    }
    if WITHOUT_EFFECT.contains(&key) {
        return Ok(Verdict::WithoutEffect);
    }
    match (key, value) {
        ("channel_binding" | "gssencmode", "prefer" | "disable")
        | ("sslnegotiation", "postgres")
        | ("sslcertmode", "allow")
        | ("target_session_attrs", "any" | "read-write" | "primary")
        | ("ssl_min_protocol_version", "TLSv1" | "TLSv1.1" | "TLSv1.2") => Ok(Verdict::Satisfied),
        _ => Err(refusal(key)),
    }
}

/// What is wrong with the value of a parameter that ELF honours.
fn mistake(key: &str, value: &str) -> Option<String> {
    let needs_value = [
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "port",
        "host",
        "hostaddr",
    ];
    let mistake = match key {
        "host" | "hostaddr" | "port" if value.contains(',') => ONE_HOST,
        _ if needs_value.contains(&key) && value.is_empty() => {
            return Some(format!("has {key} without a value"));
        }
        "sslmode" if PgSslMode::from_str(value).is_err() => {
            "has an unknown sslmode: it is disable, allow, prefer, require, verify-ca or verify-full"
        }
        "port" if value.parse::<u16>().is_err() => "has a port that is not a number up to 65535",
        "hostaddr" if value.parse::<std::net::IpAddr>().is_err() => {
            "has a hostaddr that is not an IP address"
        }
        _ => return None,
    };
    Some(mistake.into())
}

/// Why ELF refuses a parameter, and what to write instead.
fn refusal(key: &str) -> String {
    match key {
        "target_session_attrs" => {
            format!("has {key}, and ELF writes: it can only be any, read-write or primary")
        }
        "channel_binding"
        | "gssencmode"
        | "sslnegotiation"
        | "sslcertmode"
        | "ssl_min_protocol_version" => format!(
            "has {key} with a value that ELF cannot satisfy: remove it; sslmode=verify-full makes sure \
             of the server"
        ),
        "service" | "servicefile" => format!(
            "has {key}, and ELF reads no service file: write host, database and user into the URL"
        ),
        "passfile" => format!(
            "has {key}: set PGPASSFILE in ELF's environment, or write the setting as env:NAME or file:PATH"
        ),
        _ if is_name(key) => {
            format!("has the parameter {key}, which ELF does not know: remove it")
        }
        // It may be a part of the password.
        _ => "has a parameter that ELF does not know; a ? in the password is written as %3F".into(),
    }
}

fn is_name(key: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    !key.is_empty() && key.len() <= 40 && key.chars().all(is_letter)
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions;

    use super::*;

    fn parsed(rest: &str) -> Dsn {
        let text = format!("postgres://{rest}");
        Dsn::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refusal(rest: &str) -> String {
        let text = format!("postgres://{rest}");
        match Dsn::parse(&text) {
            Ok(_) => panic!("{text} is taken"),
            Err(error) => {
                assert!(!error.contains("hunter2"), "{error}");
                error
            }
        }
    }

    #[test]
    fn every_form_of_an_address_leads_to_it() {
        for (rest, place) in [
            ("u:p@db/notes", "db:5432"),
            ("u:p@db:6432/notes", "db:6432"),
            ("u:p@[::1]:6432/notes", "::1:6432"),
            ("u:p@/notes?host=db&port=6432", "db:6432"),
            ("/notes?hostaddr=10.0.0.7", "10.0.0.7:5432"),
            (
                "/notes?host=/run/postgresql",
                "/run/postgresql/.s.PGSQL.5432",
            ),
            (
                "u@%2Frun%2Fpostgresql/notes",
                "/run/postgresql/.s.PGSQL.5432",
            ),
        ] {
            assert_eq!(parsed(rest).place(), place, "{rest}");
        }
        // A password with every character that has a meaning in a URL.
        let dsn = parsed("u%40x:p%40%2F%3F%23%25%3A@db/notes");
        assert_eq!(dsn.options.get_username(), "u@x");
        let url = dsn.options.to_url_lossy();
        assert!(
            url.password()
                .is_some_and(|password| password.contains("%23%25"))
        );
    }

    #[test]
    fn a_parameter_is_honoured_named_or_refused_by_name() {
        let taken = parsed(
            "u:p@db/notes?application_name=x&options=-c%20search_path%3Delf&channel_binding=prefer\
             &target_session_attrs=read-write&connect_timeout=10&keepalives=1",
        );
        assert_eq!(
            taken.without_effect,
            ["application_name", "connect_timeout", "keepalives"]
        );
        assert_eq!(taken.options.get_options(), Some("-c search_path=elf"));
        for (query, named) in [
            ("sslmod=verify-full", "the parameter sslmod"),
            ("sslmode=verify", "unknown sslmode"),
            ("channel_binding=require", "channel_binding"),
            ("target_session_attrs=standby", "target_session_attrs"),
            ("service=notes", "service"),
            ("passfile=/x", "PGPASSFILE"),
            ("sslpassword=hunter2", "sslpassword"),
            ("sslcrl=/x", "sslcrl"),
            ("sslcert=/x", "sslkey"),
            ("sslrootcert=", "sslrootcert"),
            ("port=x", "port"),
            ("host=a,b", "several hosts"),
            ("hostaddr=10.0.0.7", "hostaddr"),
            ("hunter2%40x", "a parameter"),
        ] {
            let error = refusal(&format!("u:p@db/notes?{query}"));
            assert!(error.contains(named), "{query}: {error}");
        }
    }

    #[test]
    fn several_hosts_and_a_password_that_is_not_encoded_are_explained() {
        for rest in ["u:hunter2@a,b/notes", "u:hunter2@a:5432,b:5433/notes"] {
            assert!(refusal(rest).contains("several hosts"), "{rest}");
        }
        for rest in [
            "u:1/hunter2@db/notes",
            "u:1?hunter2@db/notes",
            "u:1#hunter2@db/notes",
        ] {
            assert!(refusal(rest).contains("%2F, %3F and %23"), "{rest}");
        }
        for text in [
            "host=db dbname=notes",
            "postgresql+psycopg://db/notes",
            "mysql://db/notes",
        ] {
            assert!(Dsn::parse(text).is_err_and(|error| error.contains("postgres://")));
        }
    }

    #[test]
    fn an_authority_is_asked_when_it_is_named() {
        let mode = |rest: &str| parsed(&format!("db/notes?{rest}")).options.get_ssl_mode();
        assert!(matches!(mode("sslrootcert=system"), PgSslMode::VerifyFull));
        assert!(matches!(
            mode("sslmode=verify-full&sslrootcert=system"),
            PgSslMode::VerifyFull
        ));
        assert!(matches!(
            mode("sslmode=require&sslrootcert=/ca.pem"),
            PgSslMode::VerifyCa
        ));
        assert!(matches!(mode("sslmode=require"), PgSslMode::Require));
        assert!(
            refusal("db/notes?sslmode=require&sslrootcert=system").contains("sslrootcert=system")
        );
        assert!(matches!(
            parsed("/notes?host=/run&sslmode=require")
                .options
                .get_ssl_mode(),
            PgSslMode::Disable
        ));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.pem");
        let dsn = parsed(&format!(
            "db/notes?sslmode=verify-full&sslrootcert={}",
            path.display()
        ));
        let name = path.display().to_string();
        let missing = dsn.check_files().expect_err("there is no file");
        assert!(
            missing.contains(&name) && missing.contains("sslrootcert"),
            "{missing}"
        );
        std::fs::write(&path, "not a certificate").expect("it is written");
        let empty = dsn.check_files().expect_err("it has no certificate");
        assert!(
            empty.contains(&name) && empty.contains("no CERTIFICATE"),
            "{empty}"
        );
    }
}
