//! Texts whose right chunks are known: sentences over several lines, lines that introduce others, tables, code, math.

use super::structure_tests::{check, fixed, markdown_of, separators, settings, texts, words};
use super::trained;
use super::{BlockKind, Boundaries, Chunker, Settings, Split, Strategy as Parts};

/// Words with spaces between them, `width` bytes a line at most.
fn wrapped(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let separator = match length {
            0 => "",
            _ if length + 1 + word.len() > width => {
                length = 0;
                "\n"
            }
            _ => " ",
        };
        wrapped.push_str(separator);
        wrapped.push_str(word);
        length += word.len() + usize::from(separator == " ");
    }
    wrapped
}

fn split<'t>(text: &'t str, strategy: &Parts, room: usize, overlap: usize) -> Split<'t> {
    let settings = settings(strategy.clone(), fixed() + room, overlap);
    check(
        &trained::written_down()[0],
        &settings,
        &|_| String::new(),
        text,
    )
}

/// The chunks with both kinds of boundaries.
fn both<'t>(text: &'t str, strategy: &Parts, room: usize) -> Vec<&'t str> {
    let mut all = texts(&split(text, strategy, room, 0));
    let stable = Settings {
        boundaries: Boundaries::Stable,
        ..settings(strategy.clone(), fixed() + room, 0)
    };
    let tokenizer = &trained::written_down()[0];
    let chunker = Chunker::new(tokenizer.ours.clone(), &stable, "passage: ").unwrap();
    all.extend(texts(&chunker.split(text, &|_| String::new()).unwrap()));
    all
}

#[test]
fn wrapped_prose_is_cut_between_its_sentences() {
    let sentence = |words: usize| format!("The {}the.", "the ".repeat(words));
    let sentences: Vec<String> = (0..40).map(|at| sentence(9 + at * 7 % 19)).collect();
    // With names too, which may begin a line.
    let names: Vec<String> = sentences
        .iter()
        .map(|it| it.replace(" the the the", " the A the"))
        .collect();
    for prose in [sentences.join(" "), names.join(" ")] {
        for width in [60, 72, 79] {
            let text = wrapped(&prose, width);
            for strategy in [
                Parts::Sentence,
                Parts::Auto,
                Parts::Markdown,
                Parts::Paragraph,
            ] {
                for slice in both(&text, &strategy, 100) {
                    assert!(slice.starts_with("The"), "{strategy:?} {width}: {slice}");
                    assert!(slice.ends_with('.'), "{strategy:?} {width}: {slice}");
                }
                for chunk in split(&text, &strategy, 100, 40).chunks {
                    assert!(
                        text[chunk.start..].starts_with("The"),
                        "{strategy:?} {width}"
                    );
                }
            }
        }
    }
}

#[test]
fn lines_that_stand_by_themselves_are_cut_between_lines() {
    let line = |make: &dyn Fn(usize) -> String| -> String { (0..200).map(make).collect() };
    let the = |count: usize| "the ".repeat(count);
    for text in [
        line(&|at| format!("usb: {}the\n", the(8 + at * 7 % 13))),
        line(&|at| format!("the {}the\n", the(10 + at * 7 % 13))),
        // These look like wrapped prose.
        line(&|at| {
            "The the the the the the the the the the the the the t"[..50 + at % 3]
                .trim_end()
                .to_owned()
                + "\n"
        }),
        line(&|at| format!("the;the;{}the;the;the\n", the(8 + at % 5))),
        line(&|at| format!("- the {}the\n", the(10 + at % 5))),
        line(&|at| format!("12:00:{at} the {}the\n", the(10 + at % 5))),
    ] {
        for (index, slice) in both(&text, &Parts::Sentence, 60).into_iter().enumerate() {
            let is_whole = text.starts_with(slice) || text.contains(&format!("\n{slice}"));
            assert!(is_whole, "{index}: {slice}\n\n{}", &text[..300]);
        }
    }
}

#[test]
fn a_heading_is_cut_neither_inside_nor_from_its_text() {
    let title = |count: usize| "the ".repeat(count).trim_end().to_owned();
    for before in 0..9 {
        for length in [1, 3, 8, 20, 40] {
            let title = title(length);
            for heading in [
                format!("{title}\n==="),
                format!("{title}\n---"),
                format!("{title}?\n{title}\n---"),
                format!("# {title}? {title}"),
                format!("> {title}\n> ==="),
            ] {
                let long = format!("The {}the.", "the ".repeat(60));
                let mark = if heading.starts_with('>') { "> " } else { "" };
                let gap = format!("\n{}\n", mark.trim_end());
                let text = format!("{}\n\n{heading}{gap}{mark}{long} {long}", words(before));
                let text = text.trim_start();
                let at = text.find(&heading).unwrap();
                let end = at + heading.len();
                for (strategy, boundaries) in [
                    (Parts::Markdown, Boundaries::Greedy),
                    (Parts::Markdown, Boundaries::Stable),
                ] {
                    let settings = Settings {
                        boundaries,
                        ..settings(strategy, fixed() + 98, 0)
                    };
                    let tokenizer = &trained::written_down()[0];
                    let chunker =
                        Chunker::new(tokenizer.ours.clone(), &settings, "passage: ").unwrap();
                    for chunk in chunker.split(text, &|_| String::new()).unwrap().chunks {
                        let cuts = |position| at < position && position <= end;
                        assert!(!cuts(chunk.end), "{boundaries:?} {before}: {text}");
                        assert!(
                            chunk.start <= at || chunk.start > end,
                            "{boundaries:?} {before}: {text}"
                        );
                    }
                }
            }
        }
    }
}

/// Lines, and what they introduce.
fn introductions() -> Vec<(&'static str, String)> {
    let list = "- The the the the.\n- The the the the.".to_owned();
    let code = "```\nthe(the)\nthe(the)\n```".to_owned();
    let table = "| the | the |\n|---|---|\n| the | the |".to_owned();
    let bare = "the | the\n--|--\nthe | the".to_owned();
    vec![
        ("**the the**", words(2)),
        ("__the the__", list.clone()),
        ("**the the:**", list.clone()),
        ("The the:", list.clone()),
        ("The the:", code.clone()),
        ("The the：", table.clone()),
        ("The the the the the.\nThe the:", list.clone()),
        ("> **the**\n>", format!("> {}", words(2))),
        ("<h2>the the</h2>", words(2)),
        ("<details>\n<summary>the</summary>", words(2)),
        ("<div class=\"the\">", words(2)),
        ("::: the", words(2)),
        ("!!! the \"the\"", format!("    {}", words(2))),
        ("??? the", format!("    {}", words(2))),
        (".. the::", format!("    {}", words(2))),
        ("The the the", table.clone()),
        ("*The the.*", bare),
        ("the the", format!(": {}", words(2))),
        ("<dt>the</dt>", format!("<dd>\n{}\n</dd>", words(2))),
        ("**the**\n\nThe the:", code),
    ]
}

#[test]
fn a_line_that_introduces_what_follows_stays_with_it() {
    for (line, block) in introductions() {
        for before in 0..12 {
            for (gap, is_apart) in [("\n\n", true), ("\n", false)] {
                // Two quotes.
                if line.starts_with('>') && is_apart {
                    continue;
                }
                let text = format!("{}\n\n{line}{gap}{block}\n\n{}", words(before), words(8));
                let text = text.trim_start();
                for slice in both(text, &Parts::Markdown, 98) {
                    assert!(
                        !slice.ends_with(line.trim_end_matches('>').trim_end()),
                        "{before}: {text}\n\n{slice}"
                    );
                }
                // A caption is known by the table.
                let is_plain =
                    line == "The the the" || line.starts_with('*') && !line.starts_with("**");
                for strategy in [Parts::Paragraph, Parts::Sentence] {
                    let is_known = !is_plain
                        && !line.starts_with('>')
                        && (is_apart || strategy == Parts::Sentence);
                    for slice in both(text, &strategy, 98).iter().filter(|_| is_known) {
                        assert!(
                            !slice.ends_with(line),
                            "{strategy:?} {before}: {text}\n\n{slice}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_line_that_introduces_an_item_inside_an_item_stays_with_it() {
    for before in 0..12 {
        let text = format!(
            "{}\n\n- {}\n- the:\n  - {}\n  - the\n- the\n\n{}",
            words(before),
            words(2),
            words(2),
            words(8)
        );
        for slice in both(text.trim_start(), &Parts::Markdown, 98) {
            assert!(!slice.ends_with("- the:"), "{before}: {slice}");
        }
    }
}

#[test]
fn a_block_that_fits_a_chunk_alone_is_not_cut_for_the_line_before_it() {
    let table = format!("| the |\n|---|\n{}", "| the. The |\n".repeat(16));
    let table = table.trim_end();
    for line in ["The the the the:", "**the the the**", "The the the the the"] {
        let text = format!("{}\n\n{line}\n\n{table}\n\n{}", words(8), words(8));
        for room in [90, 98] {
            let chunks = both(&text, &Parts::Markdown, room);
            assert!(
                chunks.iter().any(|chunk| chunk.contains(table)),
                "{room}: {chunks:?}"
            );
        }
    }
    // One that exceeds a chunk begins with its line.
    let text = format!(
        "{}\n\nThe the:\n\n```\n{}```\n",
        words(5),
        "the the. The the\n".repeat(60)
    );
    for slice in both(&text, &Parts::Markdown, 98) {
        assert!(!slice.ends_with("The the:"), "{slice}");
    }
}

#[test]
fn lines_that_introduce_each_other_end_chunks_all_the_same() {
    for unit in [
        "**the the**\n\n",
        "the the:\n\n",
        "the the:\n",
        "<h2>the</h2>\n<p>\nthe\n<h2>the</h2>\n\n",
        "<dt>\n",
    ] {
        let text = unit.repeat(400);
        for strategy in [Parts::Markdown, Parts::Paragraph, Parts::Sentence] {
            for slice in both(&text, &strategy, 60) {
                let line = slice.lines().next().unwrap();
                assert!(unit.lines().any(|it| it == line), "{strategy:?}: {slice}");
            }
        }
    }
}

#[test]
fn a_long_header_is_repeated_as_far_as_it_fits() {
    let row = |cells: usize| format!("|{}\n", " the |".repeat(cells));
    let table = |cells: usize| {
        format!(
            "{}|{}\n{}",
            row(cells),
            "---|".repeat(cells),
            row(2).repeat(90)
        )
    };
    let repeated = |cells: usize| {
        let text = table(cells);
        let split = split(&text, &Parts::Markdown, 120, 0);
        assert!(split.chunks.len() > 3);
        let last = split.chunks.last().unwrap();
        let repeat = last.repeat.map(|it| text[it.start..it.end].to_owned());
        assert_eq!(
            split.input(last),
            repeat.clone().unwrap_or_default() + "\n" + split.text(last)
        );
        repeat.unwrap_or_default()
    };
    // A cell has two tokens, and the row below it four.
    assert_eq!(repeated(3), format!("{}|---|---|---|", row(3)));
    assert_eq!(repeated(20), row(20).trim_end());
    assert_eq!(repeated(29), row(29).trim_end());
    // A quarter of 120.
    assert_eq!(repeated(40), row(14).trim_end());
}

#[test]
fn the_overlap_of_a_table_begins_with_a_row() {
    let text = format!(
        "| the | the |\n|---|---|\n{}",
        "| the the. The the | the. The |\n".repeat(60)
    );
    let bare = format!(
        "the | the\n---|---\n{}",
        "the | the the. The the. The | the\n".repeat(60)
    );
    for (text, first) in [(&text, "| the"), (&bare, "the | the")] {
        for strategy in [Parts::Sentence, Parts::Paragraph, Parts::Markdown] {
            for overlap in [10, 25, 40] {
                let split = split(text, &strategy, 120, overlap);
                for chunk in &split.chunks {
                    let begins = chunk.start == 0 || text[..chunk.start].ends_with('\n');
                    assert!(
                        begins && split.text(chunk).starts_with(first),
                        "{strategy:?}: {}",
                        split.text(chunk)
                    );
                }
                let shared = split
                    .chunks
                    .windows(2)
                    .filter(|pair| pair[1].start < pair[0].end);
                assert!(overlap < 25 || shared.count() > 2, "{strategy:?}");
            }
        }
    }
}

#[test]
fn a_chunk_begins_with_its_indentation() {
    let code = format!(
        "fn the() {{\n{}}}\n",
        "        the(the);\n\t    the(the);\n".repeat(40)
    );
    let list = format!(
        "- the\n{}",
        "  - the the\n    - the the the the\n".repeat(40)
    );
    for text in [code.clone(), format!("```\n{code}```"), list] {
        for strategy in [
            Parts::Sentence,
            Parts::Markdown,
            Parts::Auto,
            separators(&["\n"]),
        ] {
            for overlap in [0, 20] {
                let split = split(&text, &strategy, 60, overlap);
                assert!(split.chunks.len() > 4);
                for chunk in &split.chunks {
                    assert!(
                        chunk.start == 0 || text[..chunk.start].ends_with('\n'),
                        "{}",
                        split.text(chunk)
                    );
                }
            }
        }
    }
    // It is counted where blanks are tokens, and left out where it takes the room of the text.
    let text = format!(
        "the\n{}",
        format!("{}the the the\n", " ".repeat(30)).repeat(40)
    );
    for (_, tokenizer) in trained::all() {
        for room in [20, 60, 200] {
            let settings = settings(Parts::Sentence, tokenizer.count("passage: ") + room, 10);
            check(tokenizer, &settings, &|_| String::new(), &text);
        }
    }
    // Nothing of what is left out comes back.
    let text = format!("{}<!-- x -->\n    {}", "the\n\n", words(4));
    let settings = Settings {
        exclude_blocks: vec![BlockKind::Comments],
        ..settings(Parts::Markdown, 512, 0)
    };
    assert_eq!(markdown_of(&text, &settings).chunks.len(), 2);
}

#[test]
fn display_math_is_not_cut_and_has_no_headings() {
    for (open, close) in [("$$", "$$"), ("\\[", "\\]"), ("\\begin{the}", "\\end{the}")] {
        let math = format!("{open}\nthe the the\n\nthe\n=\nthe the\n\nthe\n{close}");
        for before in 0..10 {
            let text = format!("{}\n\n{math}\n\n{}", words(before), words(12));
            let text = text.trim_start();
            for strategy in [Parts::Markdown, Parts::Auto, Parts::Paragraph] {
                let chunks = both(text, &strategy, 98);
                assert!(
                    chunks.iter().any(|chunk| chunk.contains(&math)),
                    "{strategy:?} {before}: {chunks:?}"
                );
                assert!(split(text, &strategy, 98, 0).headings.is_empty(), "{text}");
            }
        }
        // One that exceeds a chunk is cut between its lines.
        let text = format!("{open}\n{}{close}", "the the the the the\n\n".repeat(60));
        for slice in both(&text, &Parts::Markdown, 98) {
            let is_line = |line: &str| {
                line == open || line.starts_with("the the the the the") || line == close
            };
            assert!(slice.lines().next().is_some_and(is_line), "{slice}");
        }
    }
}

#[test]
fn front_matter_may_stand_behind_blank_lines_and_a_mark() {
    let settings = Settings {
        exclude_blocks: vec![BlockKind::FrontMatter],
        ..settings(Parts::Auto, 512, 0)
    };
    for before in ["", "\n", "\n\n", " \n", "\u{feff}", "\u{feff}\n", "\r\n"] {
        for fields in [
            "---\ntitle: A\n---\n",
            "+++\na = 1\n+++\n",
            "---\ntitle: A\n...\n",
        ] {
            for end in ["\n", "\r\n"] {
                let text = format!("{before}{fields}\n# The\n\nThe.")
                    .replace("\r\n", "\n")
                    .replace('\n', end);
                let split = markdown_of(&text, &settings);
                assert_eq!(texts(&split), [format!("# The{end}{end}The.")], "{text:?}");
            }
        }
    }
    // A mark hides no heading.
    let text = format!("\u{feff}# The\n\n{}", words(30));
    let split = markdown_of(
        &text,
        &super::structure_tests::settings(Parts::Auto, 120, 0),
    );
    assert_eq!(split.headings.len(), 1);
    assert!(texts(&split)[0].starts_with("\u{feff}# The\n\nThe"));
    // Indented, or without fields, it is none.
    for text in ["  ---\ntitle: A\n---\n\nThe.", "\n---\n\nThe.\n\n---\n"] {
        assert!(markdown_of(text, &settings).excluded.is_empty(), "{text}");
    }
}

#[test]
fn a_table_below_a_line_of_text_is_one() {
    for (header, first) in [
        ("the | ferry", "the | the. The"),
        ("é | ferry", "the | the. The"),
        ("| the | ferry |", "| the. The | the |"),
    ] {
        for delimiter in ["--|--", "|---|---|", ":-- | --:"] {
            let text = format!(
                "{}\nThe the\n{header}\n{delimiter}\n{}",
                words(2),
                format!("{first}\n").repeat(60)
            );
            let split = split(&text, &Parts::Markdown, 120, 0);
            assert!(split.chunks.len() > 3);
            for chunk in &split.chunks[1..] {
                let sent = split.input(chunk);
                assert!(
                    sent.starts_with(&format!("{header}\n{delimiter}\n{first}")),
                    "{text}\n\n{sent}"
                );
            }
        }
    }
    // An item, a quote and code are no headers.
    for text in [
        "The\n- the | the\n--|--\n",
        "The\n> the | the\n--|--\n",
        "```\nthe\nthe | the\n--|--\n```\n",
    ] {
        let text = format!("{text}{}", "the | the\n".repeat(60));
        for chunk in split(&text, &Parts::Markdown, 98, 0).chunks {
            assert_eq!(chunk.repeat, None, "{text}");
        }
    }
}

#[test]
fn a_term_stays_with_its_definition() {
    let html: String = (0..40)
        .map(|at| format!("<dt>the {at}</dt>\n<dd>{}</dd>\n", words(1 + at % 3)))
        .collect();
    let html = format!("<dl>\n{html}</dl>\n");
    let apart = html.replace("<dt>", "\n<dt>").replace("<dd>", "\n<dd>");
    let lines = html.replace("<dt>", "<dt>\n").replace("</dt>", "\n</dt>");
    let list: String = (0..40)
        .map(|at| format!("the {at}\n: {}\n\n", words(1 + at % 3)))
        .collect();
    let loose = list.replace("\n: ", "\n\n: ");
    let tight = list.replace("\n\n", "\n");
    for text in [html, apart, lines, list, loose, tight] {
        for strategy in [Parts::Markdown, Parts::Sentence, Parts::Auto] {
            for slice in both(&text, &strategy, 98) {
                let is_parted = [": ", "<dd>", "</dt>"]
                    .iter()
                    .any(|it| slice.starts_with(it));
                assert!(!is_parted, "{strategy:?}: {slice}");
            }
        }
    }
}

#[test]
fn text_without_tokens_is_not_repeated_by_the_chunk() {
    // One unknown word.
    for unit in ["🇫🇷", "\u{1}\n", "\u{1}"] {
        let text = unit.repeat(40_000 / unit.len());
        for strategy in [
            separators(&["\n\n", "\n", " "]),
            Parts::Markdown,
            Parts::Paragraph,
            Parts::Sentence,
        ] {
            let settings = settings(strategy.clone(), 128, 30);
            let chunks = check(trained::wordpiece(), &settings, &|_| String::new(), &text).chunks;
            let all: usize = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
            assert!(
                all < 2 * text.len(),
                "{strategy:?}: {} chunks of {all} bytes",
                chunks.len()
            );
        }
    }
}
