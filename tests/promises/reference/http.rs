//! `docs/reference/http.md`

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use reqwest::Method;
use serde_json::Value;

use super::{assert_written, made_of};
use crate::support::api::{Served, ask};

const INTRODUCTION: &str = "# HTTP API

`elf worker` serves it if `service.http_bind` is set, and `elf serve` serves it alone. `GET /openapi.json` describes it as OpenAPI 3.1.

- A request under `/v2` sends a key of `elf key create`, as `Authorization: Bearer elf_…`. It reaches the notes of the key's tenant, and of one project or agent if the key is bound to it.
- A body is JSON, with `content-type: application/json`, of 64 KiB at most; with texts of notes, 64 KiB more than `worker.max_note_bytes`. An unknown field is an error. A time is as in RFC 3339.
- A label, `type`, `status`, `key` or `title` has 1,000 bytes at most, a key with its tenant, project, agent and scope 2,500. No string has a NUL character.
- With `?wait=indexed` the answer to a write comes when the index has it, or as a 202: after 30 seconds, while too many requests wait, or if a note is dead-lettered.
- Each answer has an `x-request-id`, as the log lines have. A client may send its own.
- [Over HTTP](../guide/http.md#limits) has the limits.
";

const ERRORS: &str = "
## Errors

Any request may also get a 400, 401, 413, 422, 429 or 503. The body is `{\"error\": {\"code\", \"message\", \"details\"}}`: a word for programs, a sentence for people, and more for programs. A request line or headers that are too long get a 414 or 431 without a body. Each code but `outcome_unknown` says that nothing was written.

";

/// Status, code, and what it says.
const CODES: &[(&str, &str, &str)] = &[
    (
        "400",
        "bad_request",
        "The body is not JSON, or it broke off.",
    ),
    ("401", "unauthorized", "No key, or one that was revoked."),
    (
        "403",
        "forbidden",
        "The key may only read, or is bound to others.",
    ),
    (
        "404",
        "not_found",
        "No such path, or the key reaches no note or search of this id.",
    ),
    ("405", "method_not_allowed", "The path has other methods."),
    ("408", "timeout", "The body took more than 30 seconds."),
    ("409", "key_taken", "Another note has the key."),
    (
        "409",
        "follows_a_row",
        "The note follows a row of a source: change or delete that row.",
    ),
    (
        "409",
        "not_indexed",
        "The note is not indexed as it is now.",
    ),
    (
        "413, 422",
        "too_large",
        "The body is too large; 422: the server has no memory for a text.",
    ),
    ("415", "not_json", "The `content-type` is another."),
    (
        "422",
        "invalid",
        "A field is missing, unknown or has a wrong value. `details.field` names it; `details.note` is the place of its note, from 0.",
    ),
    (
        "422",
        "rejected",
        "Postgres, or a check or trigger of the application, rejects a value.",
    ),
    (
        "429",
        "too_many_requests",
        "Too many requests at once: wait as `Retry-After` says.",
    ),
    (
        "500",
        "internal",
        "The server is not set up correctly, or `memory_notes` has other columns than ELF's.",
    ),
    ("500", "unreadable", "Postgres cannot read a row."),
    (
        "502",
        "bad_gateway",
        "The vector engine refuses the search.",
    ),
    (
        "503",
        "outcome_unknown",
        "Postgres did not confirm a write: it may be done. Send it again: with a `key` a note is one note.",
    ),
    (
        "503",
        "unavailable",
        "Postgres is unavailable, or the request took too long: wait as `Retry-After` says.",
    ),
    (
        "503",
        "version_replaced",
        "Another embedding version is active: restart the process with its configuration.",
    ),
];

const OTHERS: &str = "
## Pages, agents and health

The same address serves these. Only `/mcp` needs a key.

- `GET /`: a page to search with a key
- `GET /api`: a page to try each request with a key
- `POST /mcp`: the tools for agents (Model Context Protocol)
- `GET /livez`: 200 `ok`, the process lives
- `GET /readyz`: 200 `ready` if Postgres answers and the embedding version of the process is the active one, else 503 with the reason

A worker serves others on `service.admin_bind`:

- `GET /`: the admin page
- `GET /livez`: 200 `ok`, or 503 `stuck` if the process hangs
- `GET /readyz`: 200, or 503 if a check fails; `{\"ready\", \"checks\": [{\"name\", \"ok\", \"since\", \"reason\"}]}` with the checks `config`, `postgres`, `schema`, `index`, `alias`, `provider`, `worker`
- `GET /metrics`: [metrics](metrics.md) for Prometheus
";

/// The requests, in the order in which a reader needs them.
const ORDER: [&str; 17] = [
    "search_notes",
    "get_search",
    "read_notes",
    "add_notes",
    "put_notes",
    "get_note",
    "change_note",
    "delete_note",
    "get_note_by_key",
    "change_note_by_key",
    "delete_note_by_key",
    "list_notes",
    "delete_notes",
    "get_chunks",
    "find_duplicates",
    "get_trace",
    "get_trace_item",
];

/// What each request may be answered with.
const USUAL: [&str; 6] = ["400", "401", "413", "422", "429", "503"];

/// Objects that several answers have. Each of the others is explained where it is.
const SHARED: [&str; 4] = ["Item", "NoteFilter", "ShownNote", "Written"];

fn page(api: &Value) -> String {
    let mut page = made_of("/openapi.json") + INTRODUCTION;
    let paths = api["paths"].as_object().unwrap();
    let mut requests = BTreeMap::new();
    for (path, methods) in paths {
        for (method, request) in methods.as_object().unwrap() {
            let id = text(&request["operationId"]);
            requests.insert(id, (method.to_uppercase(), path, request));
        }
    }
    // A body is explained at the first request that has it.
    let mut bodies = BTreeMap::new();
    for id in ORDER {
        let (method, path, request) = requests.remove(id).unwrap();
        let title = format!("{method} {path}");
        page += &format!(
            "\n## `{title}`\n\n{}",
            described_request(api, request, &title, &mut bodies)
        );
    }
    assert!(requests.is_empty(), "{requests:?}");
    page += "\n## Objects of several answers\n";
    for name in SHARED {
        let schema = &api["components"]["schemas"][name];
        page += &format!("\n### {name}\n\n");
        page += &fields(api, schema, "", false);
    }
    page += ERRORS;
    for (status, code, meaning) in CODES {
        page += &format!("- {status} `{code}`: {meaning}\n");
    }
    page + OTHERS
}

fn described_request(
    api: &Value,
    request: &Value,
    title: &str,
    bodies: &mut BTreeMap<String, String>,
) -> String {
    let mut page = format!("{}.", text(&request["summary"]));
    if request["description"].is_string() {
        page += &format!(" {}", text(&request["description"]));
    }
    let mut query = String::new();
    for parameter in request["parameters"].as_array().into_iter().flatten() {
        let name = text(&parameter["name"]);
        match parameter["description"].is_string() {
            _ if name == "wait" && request["requestBody"].is_null() && title.starts_with("GET") => {
            }
            _ if name == "wait" => page += " It takes `?wait=indexed`.",
            _ if parameter["in"] == "query" => {
                let says = text(&parameter["description"]);
                query += &format!(" `{name}`: {}.", lower(says.trim_end_matches('.')));
            }
            true => page += &format!(" `{name}` is the {}.", text(&parameter["description"])),
            false => {}
        }
    }
    if let Some(first) = bodies.get(&query) {
        page += &format!(" The query is as of `{first}`.");
    } else if !query.is_empty() {
        page += &query;
        bodies.insert(query, title.to_owned());
    }
    let body = schema_of(
        api,
        &request["requestBody"]["content"]["application/json"]["schema"],
    );
    if let Some((name, _)) = &body
        && let Some(first) = bodies.get(name)
    {
        page += &format!("\n\nBody: as of `{first}`.");
    } else if let Some((name, body)) = body {
        bodies.insert(name, title.to_owned());
        let says = text(&body["description"]);
        let says = match is_trivial(&says) {
            true => String::new(),
            false => format!(" {}", lower(&says)),
        };
        page += &format!("\n\nBody:{says}\n\n{}", fields(api, body, "", true));
    }
    let (mut statuses, mut errors, mut answer) = (Vec::new(), Vec::new(), None);
    for (status, response) in request["responses"].as_object().unwrap() {
        let schema = &response["content"]["application/json"]["schema"];
        let says = text(&response["description"]);
        match schema_of(api, schema) {
            Some((name, _)) if name == "ErrorBody" => {
                if !USUAL.contains(&&**status) {
                    errors.push(&**status);
                }
            }
            found => {
                answer = found;
                let says = match says.is_empty() {
                    true => status.clone(),
                    false => format!("{status} ({})", lower(&says)),
                };
                statuses.push(says);
            }
        }
    }
    let (name, schema) = answer.unwrap();
    let is_shared = SHARED.contains(&&*name);
    let what = match is_shared {
        true => format!("{} with ", link(&name)),
        false => String::new(),
    };
    page = format!(
        "{}\n\nAnswer: {what}{}.",
        page.trim_end(),
        statuses.join(", ")
    );
    if !errors.is_empty() {
        page += &format!(" Errors: {}.", errors.join(", "));
    }
    // For people who ask why a search found what it found.
    let is_trace = request["tags"][0] == "traces";
    match is_shared || is_trace {
        true if is_trace => page + " `/openapi.json` has the fields.\n",
        true => page + "\n",
        false => page + &format!("\n\n{}", fields(api, schema, "", false)),
    }
}

/// With a small letter at its beginning.
fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next().into_iter().flat_map(char::to_lowercase);
    first.chain(letters).collect()
}

/// The fields of a body or of an answer, and with the names that lead to them those of the objects in it. Fields
/// that need no explanation come last.
fn fields(api: &Value, schema: &Value, before: &str, is_body: bool) -> String {
    let required = schema["required"].as_array().into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let (mut list, mut plain) = (String::new(), Vec::new());
    let whole = [schema.clone()];
    for part in schema["allOf"].as_array().map_or(&whole[..], Vec::as_slice) {
        match schema_of(api, part) {
            Some((name, _)) if SHARED.contains(&&*name) => {
                let place = match before.trim_end_matches('.') {
                    "" => String::new(),
                    before => format!("`{before}` has "),
                };
                list += &format!("- {place}the fields of {}\n", link(&name));
            }
            Some((_, below)) => list += &fields(api, below, before, is_body),
            None => {}
        }
        let mut of_part: Vec<_> = part["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .collect();
        // Those of a body that cannot be left out come first.
        of_part.sort_by_key(|(name, _)| is_body && !required.contains(&&***name));
        for (name, field) in of_part {
            let path = format!("{before}{name}");
            let says = described(field);
            let is_list = field["items"].is_object();
            let of = if is_list { &field["items"] } else { field };
            let of = of["oneOf"]
                .as_array()
                .and_then(|choices| choices.last())
                .unwrap_or(of);
            if let Some((name, below)) = schema_of(api, of)
                && below["enum"].is_null()
                && !SHARED.contains(&&*name)
            {
                if !is_trivial(&says) && !is_body {
                    list += &format!("- `{path}`: {says}\n");
                }
                let dots = if is_list { "[]." } else { "." };
                list += &fields(api, below, &format!("{path}{dots}"), is_body);
                continue;
            }
            let mut about = vec![kind(api, field)];
            if is_body {
                about[0] = about[0].replace(" or null", "");
                if required.contains(&&**name) {
                    about.push("required".to_owned());
                }
                if !field["default"].is_null() {
                    about.push(format!("default `{}`", field["default"]));
                }
            }
            let field = format!("`{path}` ({})", about.join(", "));
            match is_trivial(&says) {
                true => plain.push(field),
                false => list += &format!("- {field}: {says}\n"),
            }
        }
    }
    if !plain.is_empty() {
        list += &format!("- {}\n", plain.join(", "));
    }
    list
}

/// Whether the name of a field says as much.
fn is_trivial(says: &str) -> bool {
    says.split(' ').count() < 5 && !says.starts_with(|letter: char| letter.is_ascii_digit())
}

/// The type of a field.
fn kind(api: &Value, schema: &Value) -> String {
    if let Some((name, schema)) = schema_of(api, schema) {
        let Some(words) = schema["enum"].as_array() else {
            return link(&name);
        };
        let words = words.iter().map(|word| format!("`{}`", text(word)));
        return words.collect::<Vec<_>>().join(", ");
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        return kind(api, choices.last().unwrap());
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one],
        _ => vec!["object"],
    };
    let kind = match (types[0], schema["format"].as_str()) {
        ("array", _) => format!("list of {}", kind(api, &schema["items"])),
        ("string", Some("uuid")) => "UUID".to_owned(),
        ("string", Some("date-time")) => "time".to_owned(),
        (kind, _) => kind.to_owned(),
    };
    match types.contains(&"null") {
        true => kind + " or null",
        false => kind,
    }
}

/// What the description says of a field.
fn described(field: &Value) -> String {
    let choices = field["oneOf"].as_array().into_iter().flatten();
    let mut all = std::iter::once(field).chain(choices);
    let found = all.find(|schema| schema["description"].is_string());
    found
        .map(|schema| text(&schema["description"]))
        .unwrap_or_default()
}

/// The object that a reference leads to, and its name.
fn schema_of<'a>(api: &'a Value, reference: &Value) -> Option<(String, &'a Value)> {
    let name = reference["$ref"].as_str()?.rsplit('/').next()?;
    Some((name.to_owned(), &api["components"]["schemas"][name]))
}

fn link(name: &str) -> String {
    format!("[{name}](#{})", name.to_lowercase())
}

/// A description, in one line.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().replace('\n', " ")
}

#[tokio::test]
async fn the_page_of_the_http_api_is_that_of_its_description() {
    let served = Served::start().await;
    let described = ask(&served.url, Method::GET, "/openapi.json", "", None).await;
    assert_written("docs/reference/http.md", &page(&described.body));
    served.worker.stop().await.exits(0);
}

/// Every code that `ApiError::new` is given in src/http/api.
#[test]
fn the_page_has_every_code_of_an_error() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/api");
    let mut codes = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let Ok(source) = std::fs::read_to_string(&path) else {
            continue;
        };
        for made in ["ApiError::new(", "Self::new("] {
            for arguments in source.split(made).skip(1) {
                let second = arguments
                    .split_once(',')
                    .map_or("", |(_, rest)| rest.trim_start());
                let code = second
                    .strip_prefix('"')
                    .and_then(|rest| rest.split_once('"'));
                codes.extend(code.map(|(code, _)| code.to_owned()));
            }
        }
    }
    let written: BTreeSet<String> = CODES
        .iter()
        .map(|(_, code, _)| (*code).to_owned())
        .collect();
    assert_eq!(written, codes);
}
