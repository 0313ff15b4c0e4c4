//! What holds for the chunks of texts with structure.

use proptest::prelude::*;

use super::outline::Outline;
use super::trained::{self, SENTENCES, Trained};
use super::{
    BlockKind, Boundaries, Chunk, Chunker, Settings, Span, Split, Strategy as Parts, composed,
    markdown,
};
use crate::exclude::Exclude;

pub(super) fn settings(strategy: Parts, max_tokens: usize, overlap_tokens: usize) -> Settings {
    Settings {
        max_tokens,
        overlap_tokens,
        strategy,
        ..Settings::default()
    }
}

pub(super) fn separators(list: &[&str]) -> Parts {
    Parts::Recursive(list.iter().map(|&separator| separator.to_owned()).collect())
}

fn title(path: &[&str]) -> String {
    [&["A title"], path].concat().join(" > ")
}

/// Checks what is promised about every text, strategy and kind of boundaries, and gives the greedy chunks.
pub(super) fn check<'t>(
    tokenizer: &Trained,
    settings: &Settings,
    line: &dyn Fn(&[&str]) -> String,
    text: &'t str,
) -> Split<'t> {
    let stable = Settings {
        boundaries: Boundaries::Stable,
        ..settings.clone()
    };
    check_one(tokenizer, &stable, line, text);
    check_one(tokenizer, settings, line, text)
}

fn check_one<'t>(
    tokenizer: &Trained,
    settings: &Settings,
    line: &dyn Fn(&[&str]) -> String,
    text: &'t str,
) -> Split<'t> {
    let prefix = "passage: ";
    let chunker = Chunker::new(tokenizer.ours.clone(), settings, prefix).unwrap();
    let split = chunker.split(text, line).unwrap();
    assert_eq!(
        split.chunks,
        chunker.split(text, line).unwrap().chunks,
        "deterministic"
    );
    assert_covers(&split, text);
    let mut before = 0;
    for chunk in &split.chunks {
        assert_trimmed(text, chunk);
        let sent = format!("{prefix}{}", split.input(chunk));
        assert_eq!(sent, composed(&sent));
        assert_eq!(chunk.tokens, tokenizer.count(&sent), "{sent:?}");
        assert!(
            chunk.tokens <= settings.max_tokens,
            "{} tokens",
            chunk.tokens
        );
        if chunk.start < before {
            let shared = tokenizer.count_plain(&text[chunk.start..before]);
            assert!(shared <= settings.overlap_tokens, "{shared} tokens shared");
        }
        before = chunk.end;
    }
    split
}

/// A chunk has no whitespace around it, except for the indentation of its first line.
pub(super) fn assert_trimmed(text: &str, chunk: &Chunk) {
    let slice = &text[chunk.start..chunk.end];
    assert_eq!(slice, slice.trim_end());
    let indent = slice.len() - slice.trim_start().len();
    let is_indent = slice[..indent].chars().all(|c| matches!(c, ' ' | '\t'));
    let begins_line = text[..chunk.start].ends_with(['\n', '\r']);
    assert!(indent == 0 || (is_indent && begins_line), "{slice:?}");
    assert!(indent < slice.len());
}

/// All text that is in no chunk is whitespace or excluded, and nothing is excluded and in a chunk.
fn assert_covers(split: &Split, text: &str) {
    let mut left = 0;
    let mut excluded = split.excluded.iter().peekable();
    let mut previous: Option<&Chunk> = None;
    let mut pass = |left: usize, until: usize| {
        let mut left = left;
        while let Some(it) = excluded.next_if(|it| it.start < until) {
            assert!(it.start < it.end && it.end <= until, "in a chunk: {it:?}");
            assert!(left <= it.start, "excluded twice: {it:?}");
            assert!(
                text[left..it.start].trim().is_empty(),
                "{:?}",
                &text[left..it.start]
            );
            left = it.end;
        }
        assert!(
            text[left..until].trim().is_empty(),
            "left out: {:?}",
            &text[left..until]
        );
    };
    for chunk in &split.chunks {
        if let Some(previous) = previous {
            assert!(previous.start < chunk.start && previous.end < chunk.end);
        }
        if chunk.start > left {
            pass(left, chunk.start);
        }
        left = left.max(chunk.end);
        previous = Some(chunk);
    }
    pass(left, text.len());
}

/// Code, tables and headings of a text, from the parser's own view.
struct Parsed {
    lines: Vec<Span>,
    headings: Vec<Span>,
}

fn parsed(text: &str) -> Parsed {
    use pulldown_cmark::{Event, Options, Parser, Tag};
    let mut parsed = Parsed {
        lines: Vec::new(),
        headings: Vec::new(),
    };
    let start = markdown::front_matter(text).unwrap_or(0);
    let mut depth = 0;
    for (event, range) in Parser::new_ext(&text[start..], Options::ENABLE_TABLES).into_offset_iter()
    {
        let list = match &event {
            Event::Start(Tag::CodeBlock(_) | Tag::Table(_)) if depth == 0 => &mut parsed.lines,
            Event::Start(Tag::Heading { .. }) => &mut parsed.headings,
            _ => &mut Vec::new(),
        };
        let slice = text[start + range.start..start + range.end].trim_end();
        let begin = start + range.end
            - text[start + range.start..start + range.end]
                .trim_start()
                .len();
        list.push(Span {
            start: begin,
            end: start + range.start + slice.len(),
        });
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth -= 1,
            _ => {}
        }
    }
    parsed
}

/// No chunk cuts a table or code that fits a chunk of its own with the headings before it, and none
/// ends with a heading.
///
/// `before`: tokens of the lead at most. `slack`: counts in the running text are wrong by that much.
fn check_structure(
    chunker: &Chunker,
    split: &Split,
    text: &str,
    max_tokens: usize,
    (before, slack): (usize, usize),
) {
    let parsed = parsed(text);
    let last = split.chunks.last().map_or(0, |chunk| chunk.end);
    for chunk in &split.chunks {
        let at = parsed
            .headings
            .partition_point(|heading| heading.end < chunk.end);
        if let Some(heading) = parsed.headings.get(at)
            && heading.end == chunk.end
            && chunk.end != last
            // Headings longer than a chunk must be cut.
            && chunk.start < heading.start
        {
            let before = &text[chunk.start..chunk.end];
            let headings = parsed.headings[..=at].iter().rev();
            let mut start = chunk.end;
            for heading in headings {
                if text[heading.end..start.max(heading.end)].trim().is_empty() {
                    start = heading.start;
                }
            }
            assert!(start <= chunk.start, "ends with a heading: {before:?}");
        }
    }
    for block in &parsed.lines {
        let from = parsed
            .headings
            .iter()
            .rev()
            .fold(block.start, |start, heading| {
                let is_before = heading.end <= start && text[heading.end..start].trim().is_empty();
                if is_before { heading.start } else { start }
            });
        let tokens = chunker
            .tokenizer()
            .count(&composed(&text[from..block.end]))
            .unwrap();
        let room = max_tokens - chunker.fixed_tokens() - before;
        let fits = tokens + slack <= room && block.end - from <= 16 * room;
        for chunk in split.chunks.iter().filter(|_| fits) {
            let is_cut = block.start < chunk.end && chunk.end < block.end;
            assert!(!is_cut, "cut: {:?}", &text[block.start..block.end]);
        }
    }
}

/// Two neighbours that would fit one chunk are both substantial.
fn check_neighbours(chunker: &Chunker, split: &Split, text: &str, max_tokens: usize, slack: usize) {
    let room = max_tokens - chunker.fixed_tokens();
    for pair in split.chunks.windows(2) {
        let tokens = |from: usize, to: usize| {
            chunker
                .tokenizer()
                .count(&composed(&text[from..to]))
                .unwrap()
        };
        let least = tokens(pair[0].start, pair[0].end).min(tokens(pair[1].start, pair[1].end));
        let both = tokens(pair[0].start, pair[1].end);
        let before = pair[0].tokens - tokens(pair[0].start, pair[0].end);
        let fits =
            both + before + slack <= max_tokens && pair[1].end - pair[0].start <= 16 * room / 2;
        assert!(
            !fits || (least + slack) * 5 >= room / 2,
            "{least} of {both}: {:?}",
            &text[pair[0].start..pair[1].end]
        );
    }
}

/// Blocks of Markdown, right and wrong ones.
fn block() -> impl Strategy<Value = String> {
    let sentences = prop::collection::vec(prop::sample::select(SENTENCES.to_vec()), 1..8);
    let paragraph = sentences.prop_map(|sentences| format!("{}\n\n", sentences.join(" ")));
    let word = || {
        prop::sample::select(vec![
            "ferry",
            "the lamp",
            "Contents",
            "License",
            "**a** `b`",
            "会议",
            "[x](#x)",
        ])
    };
    let heading =
        (1..7usize, word()).prop_map(|(level, title)| format!("{} {title}\n\n", "#".repeat(level)));
    let tight =
        (1..4usize, word()).prop_map(|(level, title)| format!("{} {title}\n", "#".repeat(level)));
    let setext = word().prop_map(|title| format!("{title}\n===\n\n"));
    let code = (1..14usize, prop::sample::select(vec!["```", "~~~~", "   "])).prop_map(
        |(lines, fence)| {
            let code = (0..lines).map(|line| match line % 4 {
                3 => "\n".to_owned(),
                _ => format!("    let line_{line} = call(a.b); // Why? Because. # no\n"),
            });
            format!("{fence}\n{}{fence}\n\n", code.collect::<String>())
        },
    );
    let table = (1..14usize).prop_map(|rows| {
        let rows: String = (0..rows)
            .map(|row| format!("| {row} | It costs 3. Buy it. |\n"))
            .collect();
        format!("| name | price |\n|---|---|\n{rows}\n")
    });
    let list = (
        1..8usize,
        prop::sample::select(vec!["-", "1.", "*", "  -", "+"]),
        prop::sample::select(SENTENCES.to_vec()),
    )
        .prop_map(|(items, sign, sentence)| {
            let item = |item: usize| match item % 3 {
                0 => format!("{sign} {sentence}\n"),
                1 => format!("{sign} item {item}\n  - inner {item}. Next.\n    more\n"),
                _ => format!("{sign} item\n\n    {sentence}\n\n"),
            };
            format!("{}\n", (0..items).map(item).collect::<String>())
        });
    let quote = (1..5usize, prop::sample::select(SENTENCES.to_vec())).prop_map(|(lines, text)| {
        format!(
            "> # In a quote\n{}\n",
            format!("> {text}\n>\n").repeat(lines)
        )
    });
    let odd = prop::sample::select(vec![
        "---\n",
        "***\n\n",
        "<div>\n<p>text</p>\n</div>\n\n",
        "[a]: http://example.org\n[b]: <x> \"t\"\n\n",
        "```\nnever closed\n\n",
        "\u{3000}\n\n",
        "\r\n\r\n",
        "> lazy\ncontinued\n\n",
        "# \n\n",
        "#\n",
        "[![b](https://img.shields.io/b.svg)](x) ![c](c.svg)\n\n",
        "- [a](#a)\n- [b](#b)\n  - [c](#c)\n\n",
        "<!-- toc -->\n\n- [a](#a)\n\n<!-- tocstop -->\n\n",
        "- [a](http://a)\n- [b](http://b)\n\n",
        "- - - a\n\n",
        "1) a\n2) b\n",
        "e\u{301}\u{323} \u{0}",
        "| a |\n|---|\n",
        "- # heading in an item\n- b\n\n",
        "a\n---\n",
        "> ```\n> code\n> ```\n\n",
        "> | a | b |\n> |---|---|\n> | 1 | 2 |\n\n",
    ]);
    prop_oneof![
        6 => paragraph, 3 => heading, 1 => tight, 1 => setext, 2 => code, 2 => table, 2 => list, 1 => quote,
        3 => odd.prop_map(str::to_owned), 1 => "\\PC{0,40}\n",
    ]
}

fn text() -> impl Strategy<Value = String> {
    let front = prop::sample::select(vec![
        "",
        "",
        "---\ntitle: A\n---\n",
        "+++\na = 1\n+++\n\n",
        "---\n",
    ]);
    (front, prop::collection::vec(block(), 0..24))
        .prop_map(|(front, blocks)| front.to_owned() + &blocks.concat())
}

fn excluding() -> impl Strategy<Value = (Vec<String>, Vec<BlockKind>)> {
    let all = [
        BlockKind::FrontMatter,
        BlockKind::Badges,
        BlockKind::Comments,
        BlockKind::LinkLists,
        BlockKind::Toc,
    ];
    (
        prop::sample::subsequence(vec!["contents".to_owned(), "lic*".to_owned()], 0..3),
        prop::sample::subsequence(all.to_vec(), 0..6),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_promises_hold_for_markdown(
        text in text(), room in 12..160usize, overlap in 0..60usize, which in 0..5usize,
        (exclude_headings, exclude_blocks) in excluding(), has_line: bool,
    ) {
        let (_, tokenizer) = trained::all()[which];
        let max_tokens = tokenizer.count("passage: ") + room + 20;
        let settings = Settings { exclude_headings, exclude_blocks, ..settings(Parts::Markdown, max_tokens, overlap) };
        let none = |_: &[&str]| String::new();
        let line: &dyn Fn(&[&str]) -> String = if has_line { &title } else { &none };
        let split = check(tokenizer, &settings, line, &text);
        let chunker = Chunker::new(tokenizer.ours.clone(), &settings, "passage: ").unwrap();
        if settings.exclude_headings.is_empty() && settings.exclude_blocks.is_empty() {
            prop_assert!(split.excluded.is_empty());
            let room = max_tokens - chunker.fixed_tokens();
            let before = if has_line { room / 4 } else { 0 };
            check_neighbours(&chunker, &split, &text, max_tokens, 6);
            check_structure(&chunker, &split, &text, max_tokens, (before, 6));
            let stable = Settings { boundaries: Boundaries::Stable, ..settings };
            let chunker = Chunker::new(tokenizer.ours.clone(), &stable, "passage: ").unwrap();
            let split = chunker.split(&text, line).unwrap();
            check_structure(&chunker, &split, &text, max_tokens, (before, 6));
        }
    }

    #[test]
    fn every_chunk_lies_in_a_parent_and_parents_share_no_text(
        text in text(), room in 12..80usize, overlap in 0..40usize, which in 0..5usize, strategy in 0..4usize,
    ) {
        let (_, tokenizer) = trained::all()[which];
        let max_tokens = tokenizer.count("passage: ") + room + 20;
        let strategies = [Parts::Sentence, Parts::Markdown, Parts::Paragraph, separators(&["\n\n", ". ", " "])];
        let settings = Settings {
            parent_tokens: Some(3 * max_tokens),
            ..settings(strategies[strategy].clone(), max_tokens, overlap)
        };
        let split = check(tokenizer, &settings, &title, &text);
        let mut last: Option<Span> = None;
        for chunk in &split.chunks {
            let Some(parent) = chunk.parent else {
                prop_assert_eq!(split.chunks.len(), 1);
                continue;
            };
            prop_assert!(parent.start <= chunk.start && chunk.end <= parent.end);
            prop_assert!(last.is_none_or(|last| last == parent || last.end <= parent.start));
            prop_assert!(tokenizer.count(&composed(&text[parent.start..parent.end])) <= 3 * max_tokens);
            last = Some(parent);
        }
    }

    #[test]
    fn the_promises_hold_for_paragraphs_and_separators(
        text in text(), room in 12..160usize, overlap in 0..60usize, which in 0..5usize, strategy in 0..4usize,
    ) {
        let (_, tokenizer) = trained::all()[which];
        let strategy = match strategy {
            0 => Parts::Paragraph,
            1 => Parts::Auto,
            2 => separators(&["\n\n", "\n", " ", ""]),
            _ => separators(&["\n## ", "```", ". ", "a"]),
        };
        let max_tokens = tokenizer.count("passage: ") + room + 20;
        check(tokenizer, &settings(strategy, max_tokens, overlap), &title, &text);
    }

    /// An outline does not depend on the portions that the parser reads.
    #[test]
    fn portions_do_not_show(text in text(), times in 1..4usize) {
        let text = format!("{}\n\n", text).repeat(times);
        let whole = markdown::outline_by(&text, &Exclude::default(), usize::MAX / 4);
        let parts = markdown::outline_by(&text, &Exclude::default(), 100);
        let cuts = |outline: &Outline| outline.cuts.iter().map(|cut| (cut.next, cut.rank)).collect::<Vec<_>>();
        prop_assert_eq!(cuts(&whole), cuts(&parts));
    }
}

pub(super) fn texts<'t>(split: &Split<'t>) -> Vec<&'t str> {
    split.chunks.iter().map(|chunk| split.text(chunk)).collect()
}

pub(super) fn markdown_of<'t>(text: &'t str, settings: &Settings) -> Split<'t> {
    check(
        &trained::written_down()[0],
        settings,
        &|path| path.join(" > "),
        text,
    )
}

/// Tokens of an empty chunk with [`check`]'s prefix.
pub(super) fn fixed() -> usize {
    trained::written_down()[0].count("passage: ")
}

/// `count` sentences of ten tokens.
pub(super) fn words(count: usize) -> String {
    ["The the the the the the the the the."; 1]
        .repeat(count)
        .join(" ")
}

#[test]
fn a_heading_stays_with_the_first_block_below_it() {
    let text = format!(
        "{}\n\n# the\n\n## the\n\n{}\n\n{}",
        words(8),
        words(3),
        words(3)
    );
    let split = markdown_of(&text, &settings(Parts::Markdown, 3 + 3 + 98, 0));
    let chunks = texts(&split);
    assert_eq!(chunks.len(), 2, "{chunks:?}");
    assert!(
        chunks[1].starts_with("# the\n\n## the\n\nThe"),
        "{chunks:?}"
    );
}

#[test]
fn a_block_that_fits_a_chunk_is_not_cut() {
    for block in [
        format!("```\n{}```", "the the. The the.\n".repeat(8)),
        format!("| the |\n|---|\n{}", "| the. The |\n".repeat(8)),
        format!("- the\n{}", "  - the. The the.\n".repeat(8)),
        words(6).replace(". ", ".\n"),
        format!("> {}\n>\n> {}", words(3), words(3)),
    ] {
        let block = block.trim_end();
        let text = format!("{}\n\n{block}\n\n{}", words(4), words(4));
        let split = markdown_of(&text, &settings(Parts::Markdown, 110, 20));
        let holds = |chunk: &&str| chunk.contains(block);
        assert!(texts(&split).iter().any(holds), "{:?}", texts(&split));
        assert!(split.chunks.len() > 1);
    }
}

#[test]
fn a_table_longer_than_a_chunk_is_cut_between_rows_and_repeats_its_header() {
    let header = "| the | ferry |\n|---|---|";
    let text = format!(
        "# the\n\n{header}\n{}\nThe end.",
        "| the. The | the |\n".repeat(60)
    );
    let split = markdown_of(&text, &settings(Parts::Markdown, 120, 20));
    let [first, rest @ ..] = split.chunks.as_slice() else {
        panic!("no chunks")
    };
    assert_eq!(first.repeat, None);
    assert!(rest.len() > 4);
    for chunk in rest {
        assert!(split.text(chunk).starts_with("| the. The | the |\n"));
        assert_eq!(split.lead_line(chunk), "the");
        let sent = format!("the\n{header}\n{}", split.text(chunk));
        assert_eq!(split.input(chunk), sent);
    }
    for pair in split.chunks.windows(2) {
        assert!(pair[1].start < pair[0].end, "whole rows are repeated");
    }
}

#[test]
fn a_table_that_is_aligned_repeats_its_header_without_the_padding() {
    let (spaces, dashes) = (" ".repeat(60), "-".repeat(60));
    let text = format!(
        "| the{spaces} | ferry |\n|{dashes}|-------|\n{}",
        "| the. The | the |\n".repeat(60)
    );
    let split = markdown_of(&text, &settings(Parts::Markdown, 120, 0));
    assert!(split.chunks.len() > 4);
    for chunk in &split.chunks[1..] {
        let sent = format!("| the | ferry |\n|---|---|\n{}", split.text(chunk));
        assert_eq!(split.input(chunk), sent);
    }
}

#[test]
fn code_longer_than_a_chunk_is_cut_between_lines_best_at_a_blank_one() {
    let function = format!("fn the() {{\n{}}}\n\n", "    the(the. The);\n".repeat(5));
    let text = format!("```rust\n{}```\n", function.repeat(9));
    let split = markdown_of(&text, &settings(Parts::Markdown, 130, 0));
    assert!(split.chunks.len() > 3, "{:?}", texts(&split));
    for chunk in &texts(&split)[1..] {
        assert!(chunk.starts_with("fn the()"), "{chunk}");
    }
}

#[test]
fn small_sections_are_packed_and_a_large_one_begins_a_chunk() {
    let small = format!("## the\n\n{}\n\n", words(1));
    let text = format!("# the\n\n{}# ferry\n\n{}", small.repeat(5), small.repeat(7));
    let split = markdown_of(&text, &settings(Parts::Markdown, 3 + 3 + 130, 0));
    let chunks = texts(&split);
    assert_eq!(chunks.len(), 2, "{chunks:?}");
    assert!(chunks[1].starts_with("# ferry"));
}

#[test]
fn the_headings_above_a_chunk_lead_it() {
    let text = format!(
        "# One\n\n{}\n\n## **Two**\n\n{}\n\n### Three\n\n{}\n\n# Four\n\n{}",
        words(8),
        words(14),
        words(8),
        words(8)
    );
    let split = markdown_of(&text, &settings(Parts::Markdown, 120, 0));
    let lines: Vec<&str> = split
        .chunks
        .iter()
        .map(|chunk| split.lead_line(chunk))
        .collect();
    assert_eq!(lines, ["", "One", "One > Two", "One > Two", ""]);
}

#[test]
fn what_the_settings_exclude_is_in_no_chunk() {
    let text = format!(
        "---\ntitle: A\n---\n# Title\n\n[![b](https://img.shields.io/b.svg)](x)\n\n{}\n\n## Contents\n\n\
         - [a](#a)\n- [b](#b)\n\n## Body\n\n{}\n\n## License\n\nMIT.\n\n### Notice\n\nAll.\n\n## Links\n\n\
         - [a](http://a)\n- [b](http://b)\n\n[c]: http://c\n",
        words(3),
        words(3)
    );
    let settings = Settings {
        exclude_headings: vec!["licen?e".into(), "LICEN*E".into()],
        exclude_blocks: vec![
            BlockKind::FrontMatter,
            BlockKind::Badges,
            BlockKind::LinkLists,
            BlockKind::Toc,
        ],
        ..settings(Parts::Markdown, 512, 0)
    };
    let split = markdown_of(&text, &settings);
    assert_eq!(
        texts(&split),
        [words(3), format!("## Body\n\n{}", words(3))]
    );
    assert_eq!(
        split.input(&split.chunks[0]),
        format!("# Title\n{}", words(3))
    );
    assert_eq!(
        split.input(&split.chunks[1]),
        format!("Title\n## Body\n\n{}", words(3))
    );
    let excluded: Vec<String> = split
        .excluded
        .iter()
        .map(|it| format!("{:?}", it.why))
        .collect();
    assert_eq!(
        excluded,
        [
            "Block(FrontMatter)",
            "Stranded",
            "Block(Badges)",
            "Block(Toc)",
            "Block(Toc)",
            "Heading",
            "Block(LinkLists)",
            "Block(LinkLists)",
            "Block(LinkLists)",
        ]
    );
}

#[test]
fn the_overlap_of_paragraphs_is_the_last_one_if_it_fits() {
    let text = format!(
        "{}\n\n{}\n\n{}\n\n{}",
        words(4),
        words(4),
        words(2),
        words(4)
    );
    let tokenizer = &trained::written_down()[0];
    let none = |_: &[&str]| String::new();
    let shared = |overlap| {
        let split = check(
            tokenizer,
            &settings(Parts::Paragraph, 110, overlap),
            &none,
            &text,
        );
        let [first, second] = split.chunks[..] else {
            panic!("{:?}", texts(&split))
        };
        text[second.start.min(first.end)..first.end].to_owned()
    };
    assert_eq!(shared(20), words(2));
    assert_eq!(shared(19), "");
    assert_eq!(shared(50), words(2));
}

#[test]
fn separators_fall_in_rank() {
    let text = "the the the\nthe the the\n\nthe the the the the the the the the the the the the";
    let tokenizer = &trained::written_down()[0];
    let none = |_: &[&str]| String::new();
    let split = check(
        tokenizer,
        &settings(separators(&["\n\n", "\n", " "]), fixed() + 10, 0),
        &none,
        text,
    );
    let rest = "the ".repeat(10);
    assert_eq!(
        texts(&split),
        ["the the the\nthe the the", rest.trim_end(), "the the the"]
    );

    let text = "function a() {}function bb() {}function ccc() {}";
    let split = check(
        tokenizer,
        &settings(separators(&["function"]), fixed() + 22, 0),
        &none,
        text,
    );
    assert!(
        texts(&split)
            .iter()
            .all(|piece| piece.starts_with("function")),
        "{:?}",
        texts(&split)
    );
}

#[test]
fn an_application_cuts_itself() {
    let text = format!("# A\n\nfirst {}", words(12));
    let chunker = Chunker::new(
        trained::written_down()[0].ours.clone(),
        &settings(Parts::Markdown, 70, 20),
        "",
    )
    .unwrap();
    let split = chunker.split_at(&text, &[5, 11], &title).unwrap();
    assert_eq!(texts(&split)[..2], ["# A", "first"]);
    assert_eq!(split.lead_line(&split.chunks[1]), "A title > A");
    assert!(split.chunks.len() > 3, "the last piece exceeds a chunk");
    assert!(split.chunks.iter().all(|chunk| chunk.tokens <= 70));
    let ends = [0, 5, 11, text.len()];
    let same = chunker.split_at(&text, &ends, &title).unwrap();
    assert_eq!(same.chunks, split.chunks);
    for (cuts, reason) in [
        (
            vec![5, 5],
            "cut 1 at byte 5 does not lie behind the cut before it",
        ),
        (
            vec![9000],
            "cut 0 at byte 9000 lies behind the end of the text",
        ),
    ] {
        assert_eq!(
            chunker
                .split_at(&text, &cuts, &title)
                .unwrap_err()
                .to_string(),
            reason
        );
    }
    let error = chunker.split_at("é", &[1], &title).unwrap_err().to_string();
    assert_eq!(error, "cut 0 at byte 1 lies inside a character");
}

#[test]
fn a_lead_longer_than_a_quarter_of_a_chunk_is_shortened() {
    let text = words(30);
    let long = |_: &[&str]| "the ".repeat(1000);
    let split = check(
        &trained::written_down()[0],
        &settings(Parts::Sentence, fixed() + 100, 0),
        &long,
        &text,
    );
    assert!(split.chunks.len() > 3);
    for chunk in &split.chunks {
        assert_eq!(split.lead_line(chunk), "the ".repeat(25).trim_end());
    }
}

#[test]
fn with_stable_boundaries_an_edit_of_markdown_changes_few_chunks() {
    let section = |number: usize| {
        let sentences: String = (0..4)
            .map(|at| SENTENCES[(number * 7 + at * 5) % 24].to_owned() + "\n\n")
            .collect();
        format!(
            "## Section {number}\n\n{sentences}- item {number}\n- {}\n\n",
            SENTENCES[number % 24]
        )
    };
    let text: String = (0..120).map(section).collect();
    let settings = Settings {
        boundaries: Boundaries::Stable,
        ..settings(Parts::Markdown, 200, 30)
    };
    let tokenizer = &trained::written_down()[0];
    let chunker = Chunker::new(tokenizer.ours.clone(), &settings, "").unwrap();
    let inputs = |text: &str| {
        let split = chunker.split(text, &title).unwrap();
        split
            .chunks
            .iter()
            .map(|chunk| split.input(chunk).into_owned())
            .collect::<Vec<_>>()
    };
    let old = inputs(&text);
    assert!(old.len() > 50);
    for at in (0..120).step_by(9) {
        let edited = text.replacen(
            &format!("- item {at}\n"),
            "- another thing, of some more words\n",
            1,
        );
        let changed = inputs(&edited)
            .iter()
            .filter(|input| !old.contains(input))
            .count();
        assert!(changed <= 6, "{changed} of {}", old.len());
    }
}

type MakeLine<'c> = &'c dyn Fn(&[&str]) -> String;

/// README files of the crates in Cargo.lock, whatever else the registry's folder has.
fn readmes() -> Vec<(std::path::PathBuf, String)> {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let home =
        home.or_else(|| Some(std::path::PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let registry = home.unwrap_or_default().join("registry/src");
    let indexes = std::fs::read_dir(registry).into_iter().flatten();
    let indexes: Vec<_> = indexes
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    let own = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let lock = std::fs::read_to_string(own.join("../../Cargo.lock")).unwrap();
    let packages = lock.split("[[package]]\n").filter_map(|package| {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim_matches('"').to_owned())
        };
        Some(format!("{}-{}", value("name = ")?, value("version = ")?))
    });
    let crates = packages.flat_map(|name| indexes.iter().map(move |index| index.join(&name)));
    let readmes = [own.clone()].into_iter().chain(crates);
    let readmes = readmes.map(|folder| folder.join("README.md"));
    readmes
        .filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text)))
        .collect()
}

#[test]
fn the_promises_hold_for_real_files() {
    let tokenizer = trained::wordpiece();
    let none = |_: &[&str]| String::new();
    let lines: [MakeLine<'_>; 2] = [&title, &none];
    let files = readmes();
    // All of them take minutes without optimisation.
    let some = files
        .iter()
        .filter(|(_, text)| text.len() < 60_000)
        .step_by(6);
    for (path, text) in some {
        println!("{}", path.display());
        for (line, max_tokens) in lines.into_iter().zip([256, 180]) {
            let settings = settings(Parts::Markdown, max_tokens, 40);
            let new = |settings: &Settings| {
                Chunker::new(tokenizer.ours.clone(), settings, "passage: ").unwrap()
            };
            let chunker = new(&settings);
            let room = max_tokens - chunker.fixed_tokens();
            let before = if line(&[]).is_empty() { 0 } else { room / 4 };
            let split = check(tokenizer, &settings, line, text);
            check_neighbours(&chunker, &split, text, max_tokens, 0);
            check_structure(&chunker, &split, text, max_tokens, (before, 0));
            let chunker = new(&Settings {
                boundaries: Boundaries::Stable,
                ..settings
            });
            let split = chunker.split(text, line).unwrap();
            check_structure(&chunker, &split, text, max_tokens, (before, 0));
        }
    }
}

/// Texts that were made to take quadratic time or to fill the stack.
fn hostile() -> Vec<(&'static str, String, &'static str)> {
    vec![
        ("quotes", ">".into(), ""),
        ("quotes with spaces", "> ".into(), "a"),
        ("items", "- ".into(), "a"),
        ("items of two signs", "* - ".into(), "a"),
        ("numbers", "1. ".into(), "a"),
        ("brackets", "[".into(), ""),
        ("closed brackets", "[a]".into(), ""),
        ("images", "![".into(), ""),
        ("links", "[a](".into(), ""),
        ("links to brackets", "[a](<".into(), ""),
        ("stars", "*a ".into(), ""),
        ("stars on both sides", "*a**b ".into(), ""),
        ("underscores", "_".into(), ""),
        ("backticks", "`a``b```c````".into(), ""),
        ("backslashes", "\\".into(), ""),
        ("tags", "<a ".into(), ""),
        ("comments", "<!-- a ".into(), ""),
        ("comment lines", "<!-- a\n".into(), ""),
        ("entities", "&amp".into(), ""),
        ("headings", "# a\n".into(), ""),
        ("empty headings", "#\n".into(), ""),
        ("setext headings", "a\n===\n\n".into(), ""),
        ("one setext heading", "a\n".into(), "==="),
        ("a long heading", "a b. ".into(), ""),
        ("fences", "```\n".into(), ""),
        ("open fences", "```a\n\n~~~\n".into(), ""),
        ("code", "    a b c\n".into(), ""),
        ("rules", "---\n".into(), ""),
        ("tables", "|a|\n|-|\n|b|\n\n".into(), ""),
        ("rows", "|a|b|c|\n".into(), ""),
        ("cells", "|a".into(), "\n|-"),
        (
            "lists of lists",
            "- a\n  - b\n    - c\n      - d\n".into(),
            "",
        ),
        ("definitions", "[a]: b\n".into(), ""),
        ("unfinished definitions", "[a\n".into(), ""),
        ("footnotes", "[^a]: b\n\n[^a]\n".into(), ""),
        ("blanks", " ".into(), "a"),
        ("tabs", "\t".into(), "a"),
        ("line breaks", "\n".into(), "a"),
        ("carriage returns", "\r".into(), "a"),
        ("blanks and line breaks", " \t\n".into(), "a"),
        ("one letter and blanks", "a          ".into(), ""),
        ("ideographic spaces", "\u{3000}".into(), "a"),
        ("nothing but full stops", ".".into(), ""),
        ("initials", "A. ".into(), ""),
        ("numbers of items", "1.\n".into(), ""),
        ("abbreviations", "Dr. ".into(), ""),
        ("colons", "a:\n\n- b\n\n".into(), ""),
        ("badges", "![a](a.svg)\n\n".into(), ""),
        ("front matter", "---\na: b\n".into(), ""),
        ("html", "<div>\n\n".into(), ""),
        ("quotes of code", "> ```\n> a\n".into(), ""),
        ("flags", "🇫🇷".into(), ""),
        ("dollars", "$a$ {".into(), ""),
    ]
}

/// A text of a hostile kind: a beginning that a heading and an item leave open, too.
fn hostile_text(unit: &str, end: &str, bytes: usize) -> String {
    format!("a\n\n- b\n\n{}{end}\n", unit.repeat(bytes / unit.len()))
}

#[test]
fn the_promises_hold_for_hostile_texts() {
    let tokenizer = trained::wordpiece();
    for (name, unit, end) in hostile() {
        for text in [
            unit.repeat(20_000 / unit.len()) + end,
            hostile_text(&unit, end, 20_000),
        ] {
            println!("{name}: {} bytes", text.len());
            for strategy in [
                Parts::Markdown,
                Parts::Paragraph,
                separators(&["\n\n", "\n", " "]),
                Parts::Auto,
            ] {
                let exclude_blocks = vec![
                    BlockKind::FrontMatter,
                    BlockKind::Badges,
                    BlockKind::LinkLists,
                    BlockKind::Toc,
                ];
                let settings = Settings {
                    exclude_blocks: if strategy == Parts::Markdown {
                        exclude_blocks
                    } else {
                        Vec::new()
                    },
                    ..settings(strategy, 128, 30)
                };
                check(tokenizer, &settings, &title, &text);
            }
        }
    }
}

#[test]
#[ignore = "takes minutes without optimisation: make test-slow"]
fn time_is_linear() {
    let bytes: usize = std::env::var("BYTES").map_or(5_000_000, |bytes| bytes.parse().unwrap());
    let strategies = [
        Parts::Markdown,
        Parts::Paragraph,
        separators(&["\n\n", "\n", " "]),
        Parts::Sentence,
    ];
    let ways = [
        (Boundaries::Greedy, None),
        (Boundaries::Stable, None),
        (Boundaries::Greedy, Some(2048)),
    ];
    for (strategy, (boundaries, parent_tokens)) in strategies
        .iter()
        .flat_map(|strategy| ways.map(|way| (strategy, way)))
    {
        let settings = Settings {
            boundaries,
            parent_tokens,
            ..settings(strategy.clone(), 512, 128)
        };
        let chunker = Chunker::new(trained::wordpiece().ours.clone(), &settings, "").unwrap();
        let nanos = |text: &str| {
            let began = std::time::Instant::now();
            chunker.split(text, &title).unwrap();
            began.elapsed().as_secs_f64() * 1e9 / text.len() as f64
        };
        let prose = (SENTENCES[..8].join(" ") + "\n\n").repeat(bytes / 570);
        let files: String = readmes().into_iter().map(|(_, text)| text).collect();
        let files = &files[..files.floor_char_boundary(bytes)];
        println!(
            "{strategy:?}, {boundaries:?}, parents {parent_tokens:?}: {:.0} ns a byte of prose, {:.0} of README files",
            nanos(&prose),
            nanos(files)
        );
        for (name, unit, end) in hostile() {
            let of = |bytes| nanos(&hostile_text(&unit, end, bytes));
            let (short, long) = (of(bytes / 8), of(bytes));
            println!("  {name}: {long:.0} ns a byte");
            assert!(
                long < 5.0 * short,
                "{name}: {short:.0} ns a byte of a short text"
            );
        }
    }
}

const BADGE: &str = "[![Build](https://img.shields.io/b.svg)](https://ci)";

fn without_blocks(text: &str) -> Split<'_> {
    let exclude_blocks = vec![
        BlockKind::FrontMatter,
        BlockKind::Badges,
        BlockKind::Comments,
        BlockKind::LinkLists,
        BlockKind::Toc,
    ];
    let settings = Settings {
        exclude_blocks,
        ..settings(Parts::Markdown, 512, 0)
    };
    markdown_of(text, &settings)
}

#[test]
fn definitions_of_links_behind_a_list_are_left_out() {
    let definitions = "[a]: https://a\n[b]: https://b\n[c]: https://c";
    for list in [
        "- one\n- two",
        "1. one\n\n   more\n\n2. two",
        "> - one\n> - two",
        "- a\n  - b",
    ] {
        for end in ["", "\n\nMore."] {
            let text = format!("Text.\n\n{list}\n\n{definitions}{end}");
            let mut expected = vec![format!("Text.\n\n{list}")];
            expected.extend((!end.is_empty()).then(|| "More.".to_owned()));
            assert_eq!(texts(&without_blocks(&text)), expected);
        }
    }
}

#[test]
fn a_table_of_contents_may_have_an_entry_without_a_link() {
    let is_left_out = |list: &str| {
        let text = format!("{list}\n\nText.");
        texts(&without_blocks(&text)) == ["Text."]
    };
    assert!(is_left_out("- [a](#a)\n- [b](#b)\n- C++\n- [d](#d)"));
    assert!(is_left_out("- Guide\n  - [a](#a)\n  - [b](#b)"));
    assert!(!is_left_out("- One\n- Two\n- [a](#a)\n- [b](#b)"));
    assert!(!is_left_out("- See [a](#a)\n- [b](#b)\n- [c](#c)"));
    assert!(!is_left_out("- One\n- [a](#a)"));
}

#[test]
fn comments_are_left_out_of_paragraphs_and_html() {
    let text = "Text. <!-- x --> More text.\n\n- End <!-- y\n  z -->\n\n<!-- a --> Seen.\n\n`<!-- code -->`";
    assert_eq!(
        texts(&without_blocks(text)),
        ["Text.", "More text.\n\n- End", "Seen.\n\n`<!-- code -->`"]
    );
    let heading = "# Title <!-- omit in toc -->\n\nText.";
    assert_eq!(texts(&without_blocks(heading)), [heading]);
}

#[test]
fn what_shows_nothing_is_no_chunk_beside_what_is_left_out() {
    let text = format!(
        "<br>\n\n{BADGE}\n\n<br />\n\n{BADGE}\n\n---\n\n<!-- x -->\n\nText.\n\n{BADGE}\n\n***\n"
    );
    assert_eq!(texts(&without_blocks(&text)), ["Text."]);
}

#[test]
fn the_title_heads_the_first_chunk_without_its_badges() {
    for (text, input) in [
        (format!("{BADGE}\n\n# Title\n\nText."), "# Title\n\nText."),
        (
            format!("{BADGE}\n{BADGE}\n# Title\nText."),
            "# Title\nText.",
        ),
        (
            format!("{BADGE}\nTitle\n=====\n\nText."),
            "Title\n=====\n\nText.",
        ),
        (format!("# Title\n\n{BADGE}\n\nText."), "# Title\nText."),
        (
            format!("# Title {BADGE}\n\n{BADGE}\n\nText."),
            "# Title\nText.",
        ),
        (
            format!("# **[Title](x)** {BADGE} #\n\n{BADGE}\n\nText."),
            "# **[Title](x)**\nText.",
        ),
        (
            format!("# {BADGE} Title\n\n{BADGE}\n\nText."),
            "Title\nText.",
        ),
        (format!("# {BADGE}\n\n{BADGE}\n\nText."), "Text."),
        (
            format!("# Title {BADGE}\n\n## Sub\n\n{BADGE}\n\nText."),
            "Title\n## Sub\nText.",
        ),
    ] {
        let split = without_blocks(&text);
        assert_eq!(split.input(&split.chunks[0]), input, "{text}");
    }
    let text = format!(
        "# Title {BADGE}\n\n{}\n\n## Sub\n\n{}",
        words(40),
        words(40)
    );
    assert_eq!(without_blocks(&text).headings[0].title, "Title");
}

#[test]
fn a_text_may_be_left_out_as_a_whole() {
    let settings = Settings {
        strategy: Parts::Auto,
        exclude_headings: vec!["license".into()],
        exclude_blocks: vec![BlockKind::Badges],
        ..Settings::default()
    };
    assert!(settings.leaves_out(&format!("{BADGE}\n\n# License\n\nText.")));
    assert!(!settings.leaves_out("# License\n\nText.\n\n# More\n\nText."));
    assert!(!settings.leaves_out("License"));
    assert!(!settings.leaves_out(" "));
}

#[test]
fn a_paragraph_that_exceeds_a_chunk_has_the_overlap_of_sentences() {
    let long = words(25);
    let tokenizer = &trained::written_down()[0];
    let none = |_: &[&str]| String::new();
    let shared = |strategy: Parts, text: &str| -> Vec<String> {
        let settings = settings(strategy, fixed() + 100, 25);
        let split = check(tokenizer, &settings, &none, text);
        let pairs = split.chunks.windows(2);
        pairs
            .map(|pair| text[pair[1].start.min(pair[0].end)..pair[0].end].to_owned())
            .collect()
    };
    assert_eq!(
        shared(Parts::Paragraph, &long),
        shared(Parts::Sentence, &long)
    );
    assert_eq!(shared(Parts::Paragraph, &long)[0], words(2));
    // Behind the end of such a paragraph too.
    let text = format!("{long}\n\n{}", words(8));
    assert_eq!(shared(Parts::Paragraph, &text).last(), Some(&words(2)));
    // A short paragraph is repeated as a whole or not at all.
    let text = format!("{}\n\n{}", words(8), words(8));
    assert_eq!(shared(Parts::Paragraph, &text), [""]);
}
