//! What does not fit is said before anything changes.

use super::{SOURCE, Shop, TICKETS};

#[tokio::test]
async fn a_source_that_does_not_fit_its_table_says_why() {
    let tables = format!(
        "{TICKETS} create view support.open as select * from support.tickets;
         create table support.nameless (body text);
         create table support.parent (id int primary key); create table support.child () inherits (support.parent);
         create table support.listed (id int[] primary key);"
    );
    let shop = Shop::not_applied(&tables, SOURCE).await;
    let good = shop.site.toml();
    for (old, new, words) in [
        (
            "support.tickets",
            "support.tocket",
            "there is no table support.tocket",
        ),
        ("support.tickets", "support..x", "support..x"),
        ("support.tickets", "support.open", "is a view"),
        ("support.tickets", "support.nameless", "has no primary key"),
        ("support.tickets", "support.parent", "inherits"),
        ("support.tickets", "support.listed", "has the type"),
        (
            "{subject}\\n\\n",
            "{subjekt}",
            "column tickets.subjekt does not exist",
        ),
        ("status <> 'spam'", "status <> ", "syntax error"),
        (
            "type = \"ticket\"",
            "metadata_sql = \"subject\"",
            "text = jsonb",
        ),
        ("status <> 'spam'", "views", "must be type boolean"),
        (
            "type = \"ticket\"",
            "importance = \"high\"",
            "invalid input syntax",
        ),
    ] {
        shop.site.write("elf.toml", good.replacen(old, new, 1));
        let refused = shop.site.elf(&["source", "apply"]).await.exits(78);
        refused.says(&["the source tickets", words]);
    }
}

#[tokio::test]
async fn a_wrong_block_is_refused_by_its_line() {
    let shop = Shop::not_applied("", "").await;
    let good = shop.site.toml();
    for (block, words) in [
        (
            SOURCE.replace("\"tickets\"", "\"Tickets\""),
            "sources[0].name",
        ),
        (SOURCE.replace("{body}", "{body"), "sources[0].text"),
        (
            SOURCE.replace("text = \"{subject}\\n\\n{body}\"", ""),
            "either text",
        ),
        (SOURCE.replace("title =", "titel ="), "titel"),
        (
            SOURCE.replace("title =", "importance = \"{a}{b}\"\ntitle ="),
            "one column",
        ),
        (format!("{SOURCE}{SOURCE}"), "two sources have the name"),
        ("sources = 1".into(), "[[sources]]"),
    ] {
        shop.site
            .write("elf.toml", format!("{block}\n").to_owned() + &good);
        let toml = match block.starts_with("sources") {
            true => format!("{block}\n{good}"),
            false => format!("{good}\n{block}"),
        };
        shop.site.write("elf.toml", toml);
        let refused = shop.site.elf(&["config", "check"]).await.exits(78);
        refused.says(&[words]);
    }
}

#[tokio::test]
async fn a_proposed_block_works_as_it_is() {
    let mut shop = Shop::not_applied(TICKETS, "").await;
    let proposed = shop
        .site
        .elf(&["source", "add", "support.tickets"])
        .await
        .exits(0);
    shop.describe(&proposed.stdout);
    shop.apply().await;
    shop.sync().await;
    assert_eq!(
        shop.notes().await,
        [
            "1|acme|Printer\n\nIt smokes.",
            "2|acme|Offer\n\nBuy now!",
            "3|globex|The invoice counts a licence twice."
        ]
    );
    let shown = shop.site.elf(&["config", "show"]).await.exits(0).stdout;
    assert!(
        shown.contains("text = \"\"\"\n{subject}")
            || shown.contains("text = \"{subject}\\n\\n{body}\""),
        "{shown}"
    );
}

/// Columns with the names that the generated functions use, and a key that has more in its index.
#[tokio::test]
async fn names_of_the_application_mean_what_they_mean_there() {
    let tables = "create table elf_keys (elf_1 int, elf_rows int[], elf_count text, elf_after int, note_id int, source_id text,
             reason text, text text, k text, n int, primary key (elf_1) include (n));
        insert into elf_keys (elf_1, elf_rows, elf_count, k, text) values (1, '{9}', 'counted', 'it''s $elf$', 'text');
        create table r (k2 int, k1 int, body text, primary key (k2, k1));
        insert into r select n % 60, n, 'row ' || n from generate_series(1, 2500) n;";
    let block = r#"
[[sources]]
name = "odd"
table = "elf_keys"
text = "{elf_1} {elf_rows} {elf_count} {k} $elf$ {text}"
where = "k <> '$elf1$' and elf_rows is not null"
[[sources]]
name = "r"
table = "r"
text = "{body}"
"#;
    let mut shop = Shop::of(tables, block).await;
    assert_eq!(
        shop.all("select count(*)::text from memory_notes where source = 'r'")
            .await,
        ["2500"]
    );
    let odd = "select text from memory_notes where source = 'odd'";
    assert_eq!(shop.all(odd).await, ["1 {9} counted it's $elf$ $elf$ text"]);
    shop.execute("update elf_keys set elf_count = 'again', n = 3")
        .await;
    assert_eq!(shop.all(odd).await, ["1 {9} again it's $elf$ $elf$ text"]);
}
