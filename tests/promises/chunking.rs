//! Chunks that follow the structure of the text, through all that is made of them.

use std::sync::Arc;

use elf::config::Config;
use elf::rebuild::{self, Options};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::harness::{Harness, sentences};
use crate::support::site::Site;

const NOTE: &str = "---\ntitle: engine\n---\n\n# Engine\n\nThe engine has two parts, and both of them need care \
                    in winter as well as in summer, whatever the weather says.\n\n## Oil\n\n\
                    | grade | when |\n|---|---|\n| 5W-30 | a winter with ice on the harbour |\n\
                    | 10W-40 | a summer as it should be, long and mild |\n| 20W-50 | the great heat of the south |\n\
                    | 0W-20 | the far north, where the sea is white |\n| 15W-40 | any other place and time |\n\n\
                    ## Copyright\n\nAll rights reserved by the zebra.\n\n## Fuel\n\n\
                    ```\nfill(tank)\ncheck(valve)\n```\n\nPetrol only, and never the one with lead, which harms \
                    the valves of this engine within a year of use.\n";

const CHUNKING: &str = "strategy = \"markdown\"\nexclude_headings = [\"copyright\"]\n\
                        exclude_blocks = [\"front_matter\"]\nlead = [\"headings\"]\n";

async fn harness() -> Harness {
    harness_with(CHUNKING).await
}

async fn harness_with(chunking: &str) -> Harness {
    // A smaller chunk has no room for a lead.
    Harness::start_with(|toml| {
        let toml = toml.replace("max_tokens = 32", "max_tokens = 80");
        toml.replace("[chunking]\n", &format!("[chunking]\n{chunking}"))
    })
    .await
}

/// Rebuilds and verifies without a call to the provider.
async fn assert_rebuilt(h: &Harness) {
    h.assert_exact().await;
    let requests = h.provider.requests();
    let options = Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    let (counts, stop) = (Arc::default(), CancellationToken::new());
    let rebuilt = rebuild::run(&h.pipeline.serving, &options, counts, stop).await;
    let chunks = h.count("memory_note_chunks").await as u64;
    assert_eq!(rebuilt.unwrap().points, chunks);
    assert_eq!(h.provider.requests(), requests);
    h.assert_exact().await;
}

async fn set_title(h: &Harness, note: Uuid, title: &str) {
    let update = "update memory_notes set title = $2 where note_id = $1";
    h.execute(update, note, title).await;
    assert_eq!(h.count("indexing_outbox").await, 1, "{title}");
    h.drain().await;
}

/// The texts of the chunks, and what is embedded before each.
async fn chunks(h: &Harness) -> Vec<(String, String)> {
    sqlx::query_as("select lead, text from memory_note_chunks order by note_id, chunk_index")
        .fetch_all(&h.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_markdown_note_is_embedded_with_its_headings_and_rebuilt_without_a_call() {
    let h = harness().await;
    h.insert(NOTE).await;
    h.drain().await;
    let chunks = chunks(&h).await;
    assert!(chunks.len() > 1, "{chunks:?}");
    for (lead, text) in &chunks {
        assert!(NOTE.contains(text), "{text}");
        assert!(
            !text.contains("zebra") && !text.contains("title:"),
            "{text}"
        );
        let sent = format!("{lead}{text}");
        assert!(h.provider.texts_seen().contains(&sent), "{sent:?}");
    }
    let of = |word: &str| chunks.iter().find(|(_, text)| text.contains(word)).unwrap();
    assert!(of("Petrol").0.starts_with("Engine"), "{chunks:?}");
    assert!(of("fill(tank)").1.contains("check(valve)"), "{chunks:?}");
    assert!(of("15W-40").0.contains("| grade | when |"), "{chunks:?}");
    assert_rebuilt(&h).await;
}

#[tokio::test]
async fn a_title_leads_every_chunk_and_a_new_one_embeds_them_again() {
    let h = harness_with(&CHUNKING.replace("lead = [", "lead = [\"title\", ")).await;
    let note = h.insert(NOTE).await;
    h.drain().await;
    let untitled = chunks(&h).await;
    for (title, lead) in [
        ("The  harbour\nboat", "The harbour boat"),
        ("Manual", "Manual"),
    ] {
        let seen = h.provider.texts_seen().len();
        set_title(&h, note, title).await;
        let chunks = chunks(&h).await;
        for (found, text) in &chunks {
            assert!(found.starts_with(lead), "{found}");
            assert!(
                h.provider.texts_seen().contains(&format!("{found}{text}")),
                "{found}"
            );
        }
        let of_oil = chunks.iter().find(|(_, text)| text.contains("15W-40"));
        let line = format!("{lead} > Engine > Oil\n");
        assert!(of_oil.unwrap().0.starts_with(&line), "{chunks:?}");
        assert_eq!(h.provider.texts_seen().len() - seen, chunks.len());
        assert_rebuilt(&h).await;
    }
    // Without a title, and with one that the first heading says already.
    for title in ["", " \n\t "] {
        set_title(&h, note, title).await;
        assert_eq!(chunks(&h).await, untitled);
    }
    let seen = h.provider.texts_seen().len();
    set_title(&h, note, "Engine").await;
    let leads = chunks(&h).await;
    let twice = leads
        .iter()
        .find(|(lead, _)| lead.contains("Engine > Engine"));
    assert_eq!(twice, None);
    let first_alone = leads.iter().filter(|chunk| !untitled.contains(chunk));
    assert_eq!(h.provider.texts_seen().len() - seen, first_alone.count());
    h.assert_exact().await;
}

#[tokio::test]
async fn a_new_title_sends_nothing_if_no_lead_has_it() {
    let h = harness().await;
    let note = h.insert(NOTE).await;
    h.drain().await;
    let (before, requests) = (chunks(&h).await, h.provider.requests());
    set_title(&h, note, "Manual").await;
    assert_eq!(chunks(&h).await, before);
    assert_eq!(h.provider.requests(), requests);
    h.execute(
        "update memory_notes set title = $2 where note_id = $1",
        note,
        "Manual",
    )
    .await;
    assert_eq!(h.count("indexing_outbox").await, 0);
    assert_rebuilt(&h).await;
    let site = h.into_site().await;
    let found = site.json(&["search", "petrol", "-n", "1"]).await;
    assert_eq!(found["items"][0]["title"], "Manual");
    let shown = site.elf(&["search", "petrol", "-n", "1"]).await.exits(0);
    assert!(shown.stdout.contains("(Manual)  bytes"), "{}", shown.stdout);
}

#[tokio::test]
async fn a_very_long_title_takes_a_quarter_of_a_chunk_at_most() {
    let h = harness_with("lead = [\"title\"]\n").await;
    let text = sentences(40, "the tide and the moon");
    let note = h.insert(&text).await;
    h.drain().await;
    let untitled = chunks(&h).await.len();
    for title in ["zebra ".repeat(100_000), "x".repeat(600_000)] {
        set_title(&h, note, &title).await;
        let chunks = chunks(&h).await;
        assert!(chunks.len() < untitled * 2, "{}", chunks.len());
        for (lead, _) in &chunks {
            // Of 80 tokens the model takes two.
            let tokenizer = h.pipeline.chunker.tokenizer();
            let tokens = tokenizer.count(lead).unwrap() - tokenizer.special_tokens();
            assert!((1..=20).contains(&tokens), "{tokens}: {lead}");
            assert!(title.starts_with(lead.trim_end()), "{lead}");
        }
        h.assert_exact().await;
    }
}

#[tokio::test]
async fn a_heading_that_changes_embeds_what_stands_below_it() {
    let h = harness().await;
    let note = h.insert(NOTE).await;
    h.drain().await;
    let before = chunks(&h).await;
    let seen = h.provider.texts_seen().len();
    h.edit(note, &NOTE.replace("## Fuel", "## Drink")).await;
    h.drain().await;
    let after = chunks(&h).await;
    let changed = after.iter().filter(|chunk| !before.contains(chunk)).count();
    assert!(changed > 0);
    assert_eq!(h.provider.texts_seen().len() - seen, changed);
    h.assert_exact().await;
}

#[tokio::test]
async fn a_type_has_chunks_of_its_own_and_elf_chunk_shows_them() {
    let site = Site::empty().await;
    site.write("note.md", NOTE);
    let usual = site.json(&["chunk", "note.md"]).await;
    let toml = site.toml().replace(
        "[chunking]\n",
        "[chunking]\nby_type = { manual = { strategy = \"markdown\", exclude_headings = [\"copy*\"] } }\n",
    );
    site.write("elf.toml", &toml);
    assert_eq!(site.json(&["chunk", "note.md"]).await, usual);
    let manual = site.json(&["chunk", "note.md", "--type", "manual"]).await;
    assert_eq!(usual["left_out"], json!([]));
    let left_out = manual["left_out"][0]["text"].as_str().unwrap();
    assert!(left_out.contains("zebra"), "{manual}");
    let shown = site
        .elf(&["chunk", "note.md", "--type", "manual"])
        .await
        .exits(0);
    let page = [
        "chunk",
        "note.md",
        "--type",
        "manual",
        "--html",
        "chunks.html",
    ];
    site.elf(&page).await.exits(0);
    let page = std::fs::read_to_string(site.path("chunks.html")).unwrap();
    let of = |part: &str| format!("{part}</span>");
    assert!(
        page.contains(&of("<span class=\"out heading\">## Copyright")),
        "{page}"
    );
    assert!(page.contains(" heading\"># Engine"), "{page}");
    let line = "left out: excluded heading: ## Copyright";
    assert!(shown.stdout.contains(line), "{}", shown.stdout);
    let again = toml.replace("strategy = \"markdown\"", "strategy = \"recursive\"");
    let again = again.replace("exclude_headings = [\"copy*\"]", "exclude_headings = []");
    site.write("elf.toml", again);
    let shown = site.elf(&["config", "show"]).await.exits(0).stdout;
    assert!(shown.contains("strategy = \"recursive\""), "{shown}");
    let config = Config::parse(&toml, "elf.toml", &|_| None);
    assert_eq!(config.unwrap().chunking.by_type["manual"].max_tokens, 32);
}

#[tokio::test]
async fn elf_chunk_needs_no_secret_and_names_the_strategy() {
    let site = Site::empty().await;
    let dsn = site.toml();
    let dsn = dsn.lines().find(|line| line.starts_with("dsn")).unwrap();
    site.configure(dsn, "dsn = \"env:NO_SUCH_VARIABLE\"");
    site.configure("[chunking]\n", "[chunking]\nstrategy = \"auto\"\n");
    site.write("note.md", NOTE);
    site.write("prose.txt", "One line of prose.");
    for (file, strategy) in [("note.md", "markdown"), ("prose.txt", "paragraph")] {
        let shown = site.json(&["chunk", file]).await;
        assert_eq!(
            (&shown["strategy"], &shown["is_chosen"]),
            (&json!(strategy), &json!(true))
        );
        let said = format!("strategy {strategy}, chosen by auto");
        let shown = site
            .elf(&["chunk", file, "--html", "page.html"])
            .await
            .exits(0);
        assert!(shown.stdout.starts_with(&said), "{}", shown.stdout);
        let page = std::fs::read_to_string(site.path("page.html")).unwrap();
        assert!(page.contains(&said), "{page}");
    }
    let refused = site.elf(&["status"]).await.exits(78);
    refused.says(&["NO_SUCH_VARIABLE is not set"]);
}

#[tokio::test]
async fn elf_chunk_shows_the_parents_that_a_search_shows() {
    let site = Site::empty().await;
    site.configure("[chunking]\n", "[chunking]\nparent_tokens = 64\n");
    let text = "The kettle sings at noon, and the tea is poured at four. ".repeat(20);
    site.write("tea.txt", &text);
    let shown = site.json(&["chunk", "tea.txt"]).await;
    let chunks = shown["chunks"].as_array().unwrap();
    let of = |chunk: &Value, end: &str| chunk["parent"][end].as_u64().unwrap();
    let mut parents: Vec<_> = chunks.iter().map(|chunk| of(chunk, "start")).collect();
    parents.dedup();
    assert!(1 < parents.len() && parents.len() < chunks.len(), "{shown}");
    let lines = site
        .elf(&["chunk", "tea.txt", "--html", "tea.html"])
        .await
        .exits(0)
        .stdout;
    let page = std::fs::read_to_string(site.path("tea.html")).unwrap();
    let (start, end) = (of(&chunks[0], "start"), of(&chunks[0], "end"));
    assert!(
        lines.contains(&format!("parent {start}..{end}\n")),
        "{lines}"
    );
    assert!(
        page.contains(&format!("parent, bytes {start} to {end}<")),
        "{page}"
    );
    assert_eq!(page.matches("class=parent").count(), parents.len());
}
