//! `elf import` of CSV, and of JSONL with any field names.

use serde_json::{Value, json};

use crate::support::site::Site;

type Row = (String, Option<String>, String, String, Value);

async fn rows(site: &Site) -> Vec<Row> {
    let rows = sqlx::query_as(
        "select key, title, type, text, metadata from memory_notes order by key collate \"C\"",
    );
    rows.fetch_all(&mut site.connect().await).await.unwrap()
}

fn row(key: &str, title: Option<&str>, kind: &str, text: &str, metadata: Value) -> Row {
    (
        key.into(),
        title.map(Into::into),
        kind.into(),
        text.into(),
        metadata,
    )
}

#[tokio::test]
async fn csv_becomes_notes() {
    let site = Site::start().await;
    let toml = site.toml();
    site.write(
        "elf.toml",
        format!("{toml}\n[metadata]\nprice = \"number\"\nsold = \"boolean\"\n"),
    );
    let table = "\u{feff}sku,name,description,care,price,sold,note\r\n\
                 7,Rye bread,\"Dark, with \"\"seeds\"\".\",\"Keep dry.\nDo not freeze.\",4.50,TRUE,\r\n\
                 8,Roll,Small.,,0.80,false,\"x\ty\"\r\n\
                 9,Broken\r\n\
                 10,Empty,,,1,,\r\n";
    site.write("products.csv", table);
    let args = [
        "import",
        "products.csv",
        "--text",
        "description",
        "--text",
        "care",
        "--map",
        "key=sku",
        "--map",
        "title=name",
    ];
    let done = site.elf(&[&args[..], &["--json"]].concat()).await.exits(1);
    let done = done.says(&[
        "products.csv:5: 2 columns instead of 7",
        "products.csv:6: it has no text",
    ]);
    let report = done.json();
    assert_eq!(
        (&report["read"], &report["changed"], &report["skipped"]),
        (&json!(2), &json!(2), &json!(2))
    );
    let expected = [
        row(
            "7",
            Some("Rye bread"),
            "note",
            "Dark, with \"seeds\".\n\nKeep dry.\nDo not freeze.",
            json!({"price": 4.5, "sold": true}),
        ),
        row(
            "8",
            Some("Roll"),
            "note",
            "Small.",
            json!({"price": 0.8, "sold": false, "note": "x\ty"}),
        ),
    ];
    assert_eq!(rows(&site).await, expected);
    let again = site.elf(&[&args[..], &["--json"]].concat()).await.exits(1);
    assert_eq!(again.json()["changed"], 0);

    // Tabs, another name, and from stdin; only what is mapped is metadata.
    let tabs = "key\ttype\tbody\tprice\tlang\n7\tbread\tAnother text.\t5\tde\n";
    let args = [
        "import",
        "-",
        "--csv",
        "--delimiter",
        "tab",
        "--map",
        "text=body",
        "--map",
        "metadata.language=lang",
        "--json",
    ];
    let done = site.elf_reading(&args, tabs.as_bytes()).await.exits(0);
    assert_eq!(done.json()["changed"], 1);
    site.write("more.tsv", tabs);
    let args = [
        "import",
        "more.tsv",
        "--text",
        "body",
        "--map",
        "metadata.language=lang",
    ];
    assert_eq!(site.json(&args).await["changed"], 0);
    let changed = row(
        "7",
        Some("Rye bread"),
        "bread",
        "Another text.",
        json!({"language": "de"}),
    );
    assert_eq!(rows(&site).await[0], changed);
}

#[tokio::test]
async fn what_is_missing_in_a_table_is_named_before_a_row_is_read() {
    let site = Site::start().await;
    site.write("a.csv", "sku;name\n1;x\n");
    site.write("b.csv", "sku,name\n1,x\n");
    site.write("notes/a.md", "A note.");
    for (args, words) in [
        (&["a.csv"][..], &["--delimiter", "\"sku;name\""][..]),
        (&["b.csv"], &["--text", "\"sku\", \"name\""]),
        (
            &["b.csv", "--text", "nam"],
            &["no column \"nam\"", "\"sku\", \"name\""],
        ),
        (&["b.csv", "--text", "name"], &["--map key=COLUMN"]),
        (
            &["notes", "--text", "name"],
            &["notes has neither columns nor fields"],
        ),
        (
            &["notes/a.md", "--map", "text=x"],
            &["neither columns nor fields"],
        ),
        (&["-", "--delimiter", ";"], &["--csv"]),
    ] {
        site.elf(&[&["import"], args].concat())
            .await
            .exits(1)
            .says(words);
    }
    for args in [
        &["b.csv", "--map", "body=name"][..],
        &["b.csv", "--map", "text"],
        &["b.csv", "--delimiter", "ab"],
    ] {
        site.elf(&[&["import"], args].concat()).await.exits(2);
    }
    assert_eq!(rows(&site).await, []);
}

#[tokio::test]
async fn jsonl_may_have_any_field_names() {
    let site = Site::start().await;
    let lines = "{\"id\": 1, \"mail\": {\"subject\": \"Hi\", \"from\": \"a@b\"}, \"body\": \"Text.\", \"stars\": 5}\n\
                 {\"id\": 2, \"body\": null}\n";
    let args = [
        "import",
        "-",
        "--map",
        "key=id",
        "--map",
        "title=mail.subject",
        "--map",
        "text=body",
        "--json",
    ];
    let done = site.elf_reading(&args, lines.as_bytes()).await.exits(1);
    let done = done.says(&["stdin:2: it has no text"]);
    assert_eq!(done.json()["changed"], 1);
    let metadata = json!({"mail": {"from": "a@b"}, "stars": 5});
    assert_eq!(
        rows(&site).await,
        [row("1", Some("Hi"), "note", "Text.", metadata)]
    );
    // Without a mapping, a field that is none is a mistake.
    let done = site
        .elf_reading(&["import", "-"], b"{\"key\": \"k\", \"txet\": \"x\"}")
        .await;
    done.exits(1).says(&["stdin:1: column", "txet"]);
}

#[tokio::test]
async fn a_line_has_metadata_which_is_kept_unless_it_is_named() {
    let site = Site::start().await;
    let import = async |line: Value| {
        let done = site
            .elf_reading(&["import", "-", "--json"], line.to_string().as_bytes())
            .await;
        done.exits(0).json()["changed"].as_u64().unwrap()
    };
    let with = |metadata: Value| json!({"key": "k", "text": "x", "metadata": metadata});
    assert_eq!(import(with(json!({"a": {"b": [1]}}))).await, 1);
    assert_eq!(import(with(json!({"a": {"b": [1]}}))).await, 0);
    assert_eq!(import(json!({"key": "k", "text": "x"})).await, 0);
    assert_eq!(rows(&site).await[0].4, json!({"a": {"b": [1]}}));
    assert_eq!(import(with(json!({}))).await, 1);
    assert_eq!(rows(&site).await[0].4, json!({}));
    for (metadata, word) in [
        (json!([1]), "expected a map"),
        (
            json!({"a": "x".repeat(16 << 10)}),
            "metadata has 16395 bytes",
        ),
        (json!({"a": "\0"}), "NUL"),
    ] {
        let line = with(metadata).to_string();
        let done = site.elf_reading(&["import", "-"], line.as_bytes()).await;
        done.exits(1).says(&["stdin:1: ", word]);
    }
}
