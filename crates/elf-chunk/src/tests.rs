use proptest::prelude::*;

use super::structure_tests::assert_trimmed;
use super::trained::{self, SENTENCES, Trained};
use super::window::Window;
use super::{Boundaries, Chunk, ChunkError, Chunker, Settings, composed};

fn settings(max_tokens: usize, overlap_tokens: usize) -> Settings {
    Settings {
        enabled: true,
        max_tokens,
        overlap_tokens,
        ..Settings::default()
    }
}

fn chunker(tokenizer: &Trained, max_tokens: usize, overlap_tokens: usize) -> Chunker {
    Chunker::new(
        tokenizer.ours.clone(),
        &settings(max_tokens, overlap_tokens),
        "",
    )
    .unwrap()
}

fn texts<'a>(text: &'a str, chunks: &[Chunk]) -> Vec<&'a str> {
    chunks
        .iter()
        .map(|chunk| &text[chunk.start..chunk.end])
        .collect()
}

fn stable(max_tokens: usize, overlap_tokens: usize) -> Settings {
    Settings {
        boundaries: Boundaries::Stable,
        ..settings(max_tokens, overlap_tokens)
    }
}

/// Checks everything that [`Chunker`] promises about every text, with all boundaries.
fn check(tokenizer: &Trained, settings: &Settings, prefix: &str, text: &str) -> Vec<Chunk> {
    let stable = Settings {
        boundaries: Boundaries::Stable,
        ..settings.clone()
    };
    check_one(tokenizer, &stable, prefix, text);
    check_one(tokenizer, settings, prefix, text)
}

fn check_one(tokenizer: &Trained, settings: &Settings, prefix: &str, text: &str) -> Vec<Chunk> {
    let chunker = Chunker::new(tokenizer.ours.clone(), settings, prefix).unwrap();
    let chunks = chunker.chunk(text).unwrap();
    assert_eq!(
        chunks,
        chunker.chunk(text).unwrap(),
        "deterministic, and whatever is remembered"
    );

    let mut previous: Option<Chunk> = None;
    for &chunk in &chunks {
        let slice = &text[chunk.start..chunk.end];
        assert_trimmed(text, &chunk);
        assert_eq!(
            chunk.tokens,
            tokenizer.count(&format!("{prefix}{}", composed(slice))),
            "{slice:?}"
        );
        assert!(
            chunk.tokens <= settings.max_tokens,
            "{} tokens",
            chunk.tokens
        );

        let before = previous.map_or(0, |previous| previous.end);
        if let Some(previous) = previous {
            assert!(previous.start < chunk.start && previous.end < chunk.end);
        }
        if chunk.start < before {
            let shared = tokenizer.count_plain(&text[chunk.start..before]);
            assert!(shared <= settings.overlap_tokens, "{shared} tokens shared");
        } else {
            assert!(
                text[before..chunk.start].trim().is_empty(),
                "nothing is left out"
            );
        }
        previous = Some(chunk);
    }
    let end = previous.map_or(0, |previous| previous.end);
    assert!(text[end..].trim().is_empty(), "nothing is left out");
    chunks
}

fn check_with_all(max_tokens: usize, overlap_tokens: usize, text: &str) {
    for (name, tokenizer) in trained::all() {
        let chunks = check(tokenizer, &settings(max_tokens, overlap_tokens), "", text);
        println!("{name}: {} chunks", chunks.len());
    }
}

/// Text that occurs in notes, or that was made to break the chunker.
fn piece() -> impl Strategy<Value = String> {
    let repeat = |text: &'static str, most: usize| {
        (1..most).prop_map(move |times: usize| text.repeat(times))
    };
    prop_oneof![
        8 => prop::sample::select(SENTENCES.to_vec()).prop_map(|sentence| format!("{sentence} ")),
        4 => prop::sample::select(vec![" ", "\n", "\n\n", "\r\n\r\n", "\t", "\u{3000}", "\u{2029}",
            "\u{b}", "\u{c}", "\u{85}", "\u{a0}", "", ", ", "; ", "。", "... "]).prop_map(str::to_owned),
        2 => "[A-Za-z0-9+/]{1,300}",
        1 => "[a-z]{95,105}",
        1 => repeat("会议定于星期三上午十点开始请带上报告", 20),
        1 => repeat("👩‍👩‍👧‍👦", 12),
        1 => repeat("🇫🇷", 60),
        1 => repeat("e\u{301}\u{323}", 40),
        1 => (1..400usize).prop_map(|marks| format!("z{}", "\u{300}\u{316}".repeat(marks))),
        1 => repeat("הספר נמצא על המדף ", 6),
        1 => repeat("\u{0}", 200),
        1 => repeat("\u{1d16d}\u{1d165}\u{302e}\u{200b}", 20),
        2 => prop::sample::select(vec!["[SEP]", "[CLS] ", " [UNK]", "[MASK", "SEP]", "<|endoftext|>",
            "<s>", "</s> ", "<unk>", "and <mask> then", "##ing", "▁", "Ġ", "</s></s>[SEP][SEP]"]).prop_map(str::to_owned),
        2 => "\\PC{0,30}",
        1 => any::<String>(),
        1 => "([a-z]{1,9}[.?!,:]{0,2}[ \n]{0,2}){1,40}",
        1 => prop::sample::select(vec!["ﬁ", "Å", "ǆ", "ﬀ", "½", "한글", "ẞ", "İ", "ﾊﾟ"]).prop_map(str::to_owned),
    ]
}

fn note() -> impl Strategy<Value = String> {
    prop::collection::vec(piece(), 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_promises_hold_for_wordpiece(
        text in note(), room in 8..120usize, overlap in 0..100usize,
        prefix in prop::sample::select(vec!["", "passage: ", "passage", "doc:\u{c}", "é "]),
    ) {
        let tokenizer = trained::wordpiece();
        let max_tokens = tokenizer.count(prefix) + room;
        check(tokenizer, &settings(max_tokens, overlap), prefix, &text);
    }

    #[test]
    fn the_promises_hold_for_byte_level_bpe(
        text in note(), room in 8..120usize, overlap in 0..100usize,
        prefix in prop::sample::select(vec!["", "passage: ", "passage"]),
    ) {
        let tokenizer = trained::byte_level_bpe();
        let max_tokens = tokenizer.count(prefix) + room;
        check(tokenizer, &settings(max_tokens, overlap), prefix, &text);
    }

    #[test]
    fn the_promises_hold_for_bpe_with_a_pattern(
        text in note(), room in 8..120usize, overlap in 0..100usize,
        prefix in prop::sample::select(vec!["", "passage: ", "passage"]),
    ) {
        let tokenizer = trained::pattern_bpe();
        let max_tokens = tokenizer.count(prefix) + room;
        check(tokenizer, &settings(max_tokens, overlap), prefix, &text);
    }

    #[test]
    fn the_promises_hold_for_unigram_of_words(
        text in note(), room in 20..120usize, overlap in 0..100usize,
        prefix in prop::sample::select(vec!["", "passage: ", "passage"]),
    ) {
        let tokenizer = trained::unigram_of_words();
        let max_tokens = tokenizer.count(prefix) + room;
        check(tokenizer, &settings(max_tokens, overlap), prefix, &text);
    }

    /// Any slice between two units, not only those that the chunker chooses.
    #[test]
    fn a_count_by_pieces_is_the_count(
        text in note(), ends in prop::collection::vec((0.0..1.0_f64, 0.0..1.0_f64), 1..12),
        prefix in prop::sample::select(vec!["", "passage: ", "passage"]),
    ) {
        let text = text.trim();
        for (name, tokenizer) in trained::all() {
            let mut window = Window::new(&tokenizer.ours, text, 0);
            window.look_ahead(0, usize::MAX, usize::MAX).unwrap();
            for &(a, b) in &ends {
                let at = |share: f64| text.ceil_char_boundary((text.len() as f64 * share) as usize);
                let slice = text[at(a.min(b))..at(a.max(b))].trim();
                let start = slice.as_ptr() as usize - text.as_ptr() as usize;
                let end = start + slice.len();
                let counted = tokenizer.ours.count_plain(slice).unwrap();
                prop_assert_eq!(counted, tokenizer.count_plain(slice), "{}: {:?}", name, slice);
                if let Some(tokens) = window.count_by_pieces(prefix, start, end).unwrap() {
                    let whole = format!("{prefix}{slice}");
                    prop_assert_eq!(tokens, tokenizer.count_plain(&whole), "{}: {:?}", name, slice);
                }
            }
        }
    }

    #[test]
    fn the_promises_hold_for_unigram(
        text in note(), room in 20..120usize, overlap in 0..100usize,
        prefix in prop::sample::select(vec!["", "passage: ", "passage"]),
    ) {
        let tokenizer = trained::unigram();
        let max_tokens = tokenizer.count(prefix) + room;
        check(tokenizer, &settings(max_tokens, overlap), prefix, &text);
    }
}

/// Prose of at least `bytes` bytes: sentences in an order that does not repeat
/// soon, `breaks` after each.
fn prose(sentences: &[&str], bytes: usize, breaks: &[&str]) -> String {
    let mut text = String::new();
    let mut state = 1_u64;
    while text.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let pick = usize::try_from(state >> 40).unwrap();
        text.push_str(sentences[pick % sentences.len()]);
        text.push_str(breaks[(pick / 32) % breaks.len()]);
    }
    text
}

#[test]
fn prose_is_counted_by_pieces() {
    let text = prose(&SENTENCES[..8], 20_000, &[" ", "\n\n"]);
    let text = text.trim();
    for (name, tokenizer) in trained::all()
        .into_iter()
        .filter(|(name, _)| *name != "WordPiece")
    {
        let mut window = Window::new(&tokenizer.ours, text, 0);
        window.look_ahead(0, usize::MAX, usize::MAX).unwrap();
        let mut starts: Vec<usize> = window.unit_starts(0, text.len() - 1_000).collect();
        starts.retain(|start| text[..*start].ends_with([' ', '\n']));
        let counted = starts.iter().filter(|&&start| {
            let slice = text[start..start + 900].trim_end();
            let tokens = window
                .count_by_pieces("", start, start + slice.len())
                .unwrap();
            tokens
                .inspect(|&tokens| assert_eq!(tokens, tokenizer.count_plain(slice)))
                .is_some()
        });
        let (counted, all) = (counted.count(), starts.len());
        assert!(counted * 10 > all * 9, "{name}: {counted} of {all}");
    }
}

#[test]
fn a_text_of_nothing_has_no_chunks() {
    for text in ["", " ", "\n\n\t \u{3000}\u{2029}\r\n"] {
        check_with_all(64, 16, text);
        assert!(
            chunker(trained::wordpiece(), 64, 16)
                .chunk(text)
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn a_text_that_fits_is_one_chunk_without_the_whitespace_around_it() {
    let text = "\n  The ferry leaves.\n\nHer brother keeps the keys. \n";
    for (name, tokenizer) in trained::all() {
        let chunks = check(tokenizer, &settings(64, 16), "", text);
        assert_eq!(texts(text, &chunks), [text.trim()], "{name}");
        let exactly = settings(chunks[0].tokens, 4);
        assert_eq!(check(tokenizer, &exactly, "", text).len(), 1, "{name}");
        let one_less = settings(chunks[0].tokens - 1, 0);
        assert_eq!(check(tokenizer, &one_less, "", text).len(), 2, "{name}");
    }
}

#[test]
fn a_chunk_ends_with_its_last_paragraph_when_that_fills_three_quarters_of_it() {
    // 8 words a sentence, one token a word and one for the point.
    let sentence = "The the the the the the the the.";
    let paragraph = [sentence; 4].join(" ");
    let text = format!("{paragraph}\n\n{paragraph}");
    let chunks = check(trained::wordpiece(), &settings(2 + 45, 0), "", &text);
    assert_eq!(
        texts(&text, &chunks),
        [paragraph.as_str(), paragraph.as_str()]
    );

    // A heading at the front does not end a chunk.
    let text = format!("the\n\n{paragraph} {paragraph}");
    let chunks = check(trained::wordpiece(), &settings(2 + 45, 0), "", &text);
    assert_eq!(texts(&text, &chunks)[0], format!("the\n\n{paragraph}"));
}

/// The sentences of UAX #29, which also ends one after "Mr.".
fn sentences_of(text: &str) -> Vec<&str> {
    use unicode_segmentation::UnicodeSegmentation;
    text.split_sentence_bounds()
        .map(str::trim)
        .filter(|sentence| !sentence.is_empty())
        .collect()
}

#[test]
fn a_sentence_that_fits_a_chunk_is_never_cut() {
    let text = prose(&SENTENCES, 20_000, &[" ", " ", "\n", "\n\n"]);
    let sentences = sentences_of(&text);
    for (name, tokenizer) in trained::all() {
        let longest = sentences
            .iter()
            .map(|sentence| tokenizer.count(sentence))
            .max()
            .unwrap();
        let chunks = check(tokenizer, &settings(longest + 4, 20), "", &text);
        assert!(chunks.len() > 100);
        for slice in texts(&text, &chunks) {
            assert!(
                sentences.iter().any(|sentence| slice.ends_with(sentence)),
                "{name}: {slice}"
            );
        }
    }
}

#[test]
fn the_overlap_is_the_last_whole_sentences() {
    let text = prose(&SENTENCES[..8], 20_000, &[" "]);
    let sentences = sentences_of(&text);
    for (name, tokenizer) in trained::all() {
        let chunks = check(tokenizer, &settings(200, 60), "", &text);
        let mut shared = 0;
        for pair in chunks.windows(2).filter(|pair| pair[1].start < pair[0].end) {
            let overlap = &text[pair[1].start..pair[0].end];
            assert!(
                sentences
                    .iter()
                    .any(|sentence| overlap.starts_with(sentence)),
                "{name}: {overlap}"
            );
            shared += 1;
        }
        assert!(
            shared > chunks.len() / 2,
            "{name}: {shared} of {}",
            chunks.len()
        );
    }
}

#[test]
fn a_sentence_longer_than_the_overlap_is_shared_by_words() {
    let text = "the ".repeat(1000);
    let chunks = check(trained::wordpiece(), &settings(2 + 100, 30), "", &text);
    for pair in chunks.windows(2) {
        assert_eq!(text[pair[1].start..pair[0].end].split(' ').count(), 30);
    }
}

#[test]
fn a_sentence_longer_than_a_chunk_is_cut_at_its_clauses_and_then_at_its_words() {
    let text = ["the ".repeat(9).trim_end(); 20].join(", ");
    let chunks = check(trained::wordpiece(), &settings(2 + 34, 0), "", &text);
    assert!(
        texts(&text, &chunks)[..5]
            .iter()
            .all(|slice| slice.ends_with(','))
    );

    let text = "the ".repeat(100);
    let chunks = check(trained::wordpiece(), &settings(2 + 34, 0), "", &text);
    assert_eq!(chunks.len(), 3);
}

#[test]
fn a_question_mark_in_an_address_ends_no_sentence() {
    let text = format!(
        "{}see http://example.org/find?q=ferry now",
        "the ".repeat(20)
    );
    let chunks = check(trained::wordpiece(), &settings(2 + 44, 0), "", &text);
    assert!(
        texts(&text, &chunks)
            .iter()
            .all(|slice| !slice.ends_with('?')),
        "{chunks:?}"
    );
}

#[test]
fn text_without_spaces_is_cut_between_its_sentences() {
    let text = "会议定于星期三上午十点开始，请带上报告。".repeat(200);
    for (name, tokenizer) in trained::all() {
        let chunks = check(tokenizer, &settings(100, 20), "", &text);
        assert!(chunks.len() > 10, "{name}");
        assert!(
            texts(&text, &chunks)
                .iter()
                .all(|slice| slice.ends_with('。')),
            "{name}"
        );
    }
}

#[test]
fn a_run_that_the_vocabulary_does_not_know_becomes_windows() {
    let run = "aGVsbG8gd29ybGQhIQ0K/+".repeat(5000);
    for text in [
        run.clone(),
        format!("The attachment: {run} is long.\n\nThe end."),
    ] {
        for (name, tokenizer) in trained::all() {
            let chunks = check(tokenizer, &settings(100, 20), "", &text);
            let longest = chunks
                .iter()
                .map(|chunk| chunk.end - chunk.start)
                .max()
                .unwrap();
            assert!(longest <= 16 * 100, "{name}: {longest} bytes");
        }
    }
}

#[test]
fn disabled_chunking_gives_one_chunk_where_it_fits() {
    let off = |max_tokens| Settings {
        enabled: false,
        ..settings(max_tokens, 10)
    };
    let run = "a".repeat(100_000);
    assert_eq!(
        check(trained::wordpiece(), &off(64), "", &run).len(),
        1,
        "one [UNK]"
    );
    let text = prose(&SENTENCES, 3000, &[" ", "\n\n"]);
    assert_eq!(check(trained::wordpiece(), &off(5000), "", &text).len(), 1);
    assert!(check(trained::wordpiece(), &off(64), "", &text).len() > 1);
}

#[test]
fn characters_that_the_tokenizer_drops_are_covered_and_cost_nothing() {
    let chunks = check(
        trained::wordpiece(),
        &settings(64, 16),
        "",
        "\u{1}\u{2}\u{200b}",
    );
    assert_eq!(
        chunks,
        [Chunk {
            start: 0,
            end: 5,
            tokens: 2,
            line: None,
            repeat: None,
            parent: None,
        }]
    );
    let many = "\u{1}".repeat(200_000);
    let chunks = check(trained::wordpiece(), &settings(64, 16), "", &many);
    assert!(chunks.len() > 100 && chunks.iter().all(|chunk| chunk.tokens == 2));
}

#[test]
fn text_that_looks_like_special_tokens_is_counted_as_the_tokenizer_reads_it() {
    let text = "[SEP]<|endoftext|></s>[CLS] ".repeat(500);
    check_with_all(40, 10, &text);
    let text = "[SEP]".repeat(2000);
    check_with_all(40, 10, &text);
    // One token to WordPiece, which must not be cut into three.
    let chunks = check(trained::wordpiece(), &settings(2 + 9, 0), "", &text);
    assert!(
        texts(&text, &chunks)
            .iter()
            .all(|slice| slice.len() == 9 * 5 || text.ends_with(slice))
    );
}

#[test]
fn a_grapheme_is_cut_only_if_it_alone_is_too_long() {
    let family = "👩‍👩‍👧‍👦";
    let text = family.repeat(300);
    for (name, tokenizer) in trained::all() {
        let chunks = check(tokenizer, &settings(60, 0), "", &text);
        assert!(chunks.iter().all(|c| c.start % family.len() == 0), "{name}");
    }
    let accents = format!("z{}", "\u{300}".repeat(20_000));
    check_with_all(60, 10, &accents);
    check_with_all(60, 10, &"🇫🇷".repeat(20_000));
}

#[test]
fn a_character_that_alone_exceeds_a_chunk_is_an_error() {
    // 18 letters to NFKC.
    let text = "ﷺ";
    let tokenizer = trained::unigram();
    let chunker = chunker(tokenizer, tokenizer.count("") + 8, 0);
    match chunker.chunk(text) {
        Ok(chunks) => assert!(tokenizer.count(text) <= chunks[0].tokens),
        Err(error) => {
            assert!(matches!(error, ChunkError::Indivisible { offset: 0, .. }));
            assert!(error.to_string().contains("max_tokens = "), "{error}");
        }
    }
}

#[test]
fn whitespace_by_the_megabyte_is_in_no_chunk() {
    let text = format!("The beginning.{}The end.", " \n".repeat(1_000_000));
    let chunks = check(trained::wordpiece(), &settings(64, 16), "", &text);
    assert_eq!(texts(&text, &chunks), ["The beginning.", "The end."]);
}

#[test]
fn a_hundred_thousand_short_lines_are_work() {
    let text: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
    let chunks = check(trained::wordpiece(), &settings(512, 128), "", &text);
    assert!(
        texts(&text, &chunks)
            .iter()
            .all(|slice| slice.starts_with("line "))
    );
}

#[test]
fn ten_megabytes_in_one_line_are_work() {
    let text = prose(&SENTENCES, 10_000_000, &[" "]);
    let chunker = chunker(trained::wordpiece(), 512, 128);
    let chunks = chunker.chunk(&text).unwrap();
    assert!(chunks.len() > 5000);
    // A count of all of them would take most of the test's time.
    for chunk in chunks.iter().step_by(97) {
        assert_eq!(
            chunk.tokens,
            trained::wordpiece().count(&text[chunk.start..chunk.end])
        );
    }
}

#[test]
fn segments_do_not_show_in_the_chunks() {
    // Long enough for several segments, with every kind of place to end one.
    for text in [
        prose(&SENTENCES, 100_000, &[" ", "\n", "\n\n"]),
        prose(&SENTENCES, 100_000, &[""]),
        "the ".repeat(25_000),
        "x".repeat(100_000),
        "会议".repeat(20_000),
    ] {
        check_with_all(200, 40, &text);
    }
}

#[test]
fn settings_without_room_for_text_are_an_error_that_names_the_key() {
    let tokenizer = trained::wordpiece();
    let prefix = "passage: ";
    let least = tokenizer.count(prefix) + 8;
    let new = |max_tokens| Chunker::new(tokenizer.ours.clone(), &settings(max_tokens, 0), prefix);
    new(least).unwrap();
    let error = new(least - 1).unwrap_err().to_string();
    assert!(error.contains("max_tokens = "), "{error}");
    assert!(
        error.contains(&format!("set it to {least} or more")),
        "{error}"
    );
}

#[test]
fn an_overlap_as_large_as_a_chunk_still_moves_on() {
    let text = prose(&SENTENCES, 20_000, &[" ", "\n\n"]);
    for overlap in [63, 1000] {
        check_with_all(64, overlap, &text);
    }
}

#[test]
fn a_chunker_may_be_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&chunker(trained::wordpiece(), 64, 16));
}

/// Chunk texts of `edited` that `text` does not have, with stable boundaries.
fn embedded_again(text: &str, edited: &str) -> (usize, usize) {
    let chunker = Chunker::new(trained::wordpiece().ours.clone(), &stable(130, 30), "").unwrap();
    let old = chunker.chunk(text).unwrap();
    let old = texts(text, &old);
    let new = chunker.chunk(edited).unwrap();
    let new = texts(edited, &new);
    let changed = new.iter().filter(|text| !old.contains(text)).count();
    (changed, old.len())
}

#[test]
fn with_stable_boundaries_a_line_at_the_head_changes_few_chunks() {
    let numbered = (1000..4000)
        .map(|line| format!("the line {line}\n"))
        .collect();
    let one_sentence: String = (0..6000_u64)
        .map(|word| {
            format!(
                "{} ",
                ["the", "ferry", "lamp", "key"][(word * word % 101 % 4) as usize]
            )
        })
        .collect();
    for text in [
        numbered,
        prose(&SENTENCES, 40_000, &[" "]),
        prose(&SENTENCES[15..16], 40_000, &[""]),
        "the lamp\n".repeat(3000),
        one_sentence,
    ] {
        let (changed, chunks) = embedded_again(&text, &format!("A new line.\n{text}"));
        assert!(
            chunks > 50 && changed <= 8,
            "{changed} of {chunks}: {}",
            &text[..60]
        );
    }
}

#[test]
fn with_stable_boundaries_a_sentence_that_fits_a_chunk_is_never_cut() {
    let text = prose(&SENTENCES, 20_000, &[" ", " ", "\n", "\n\n"]);
    let sentences = sentences_of(&text);
    for (name, tokenizer) in trained::all() {
        let longest = sentences
            .iter()
            .map(|sentence| tokenizer.count(sentence))
            .max()
            .unwrap();
        let chunks = check_one(tokenizer, &stable(longest + 4, 20), "", &text);
        for slice in texts(&text, &chunks) {
            assert!(
                sentences.iter().any(|sentence| slice.ends_with(sentence)),
                "{name}: {slice}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// A chunk adds 39 tokens at least, so an overlap of 30 never reaches behind it.
    #[test]
    fn with_stable_boundaries_a_common_end_has_the_same_chunks_behind_it(
        head in 0..40usize, other in 0..40usize,
    ) {
        let chunker = Chunker::new(trained::wordpiece().ours.clone(), &stable(130, 30), "").unwrap();
        let tail = prose(&SENTENCES, 20_000, &[" ", "\n", "\n\n"]);
        let behind = |sentences: usize| {
            let text = format!("{}{tail}", "A new line.\n".repeat(sentences));
            let chunks = chunker.chunk(&text).unwrap();
            let from_end = |chunk: &Chunk| (text.len() - chunk.start, text.len() - chunk.end);
            chunks.iter().map(from_end).collect::<Vec<_>>()
        };
        let (one, two) = (behind(head), behind(other));
        let common = one.iter().position(|&(_, end)| {
            end < tail.len() && two.iter().any(|&(_, other)| other == end)
        });
        if let Some(at) = common {
            let other = two.iter().position(|&(_, end)| end == one[at].1).unwrap();
            prop_assert_eq!(&one[at + 1..], &two[other + 1..]);
        }
    }
}

/// Texts of prose and of all that was made to break the chunker, the same in every run.
fn fixed_texts(count: u64) -> impl Iterator<Item = String> {
    let odd = [
        "\n",
        "\n\n",
        "\r\n\r\n",
        "\t",
        "    ",
        "\u{3000}",
        "\u{2029}",
        "\u{b}",
        "\u{85}",
        ", ",
        "; ",
        "。",
        "... ",
        " \t\n \t\n",
        "aGVsbG8gd29ybGQhIQ0K/+",
        "会议定于星期三上午十点",
        "👩‍👩‍👧‍👦",
        "🇫🇷🇫🇷",
        "e\u{301}\u{323}",
        "\u{0}\u{0}",
        "[SEP]",
        "<|endoftext|>",
        "</s> ",
        "ﬁ½ﷺ",
        "# Heading\n\n",
        "```\nlet a = b;\n```\n",
        "> quote\n",
        "http://example.org/find?q=ferry",
        "e.g. ",
        "No. 5 ",
        "3.14",
        "x: ",
        "ǆ",
    ];
    (0..count).map(move |seed| {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 20).unwrap() % below
        };
        let mut text = String::new();
        for _ in 0..random(80) {
            match random(3) {
                0 => text.push_str(&odd[random(odd.len())].repeat(1 + random(6))),
                _ => text.push_str(SENTENCES[random(SENTENCES.len())]),
            }
            text.push_str([" ", " ", "\n", "\n\n", ""][random(5)]);
        }
        text
    })
}

/// The chunks of the strategy `sentence` are part of the embedding versions that use it.
#[test]
fn the_chunks_of_sentences_never_change() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut count = 0;
    for (seed, text) in fixed_texts(400).enumerate() {
        let overlap = [0, 10, 30][seed % 3];
        for boundaries in [Boundaries::Greedy, Boundaries::Stable] {
            let settings = Settings {
                boundaries,
                ..settings([24, 60, 130][seed % 4 % 3], overlap)
            };
            let tokenizer = &trained::written_down()[seed % 2];
            let chunker = Chunker::new(tokenizer.ours.clone(), &settings, "passage: ").unwrap();
            for chunk in chunker.chunk(&text).unwrap() {
                count += 1;
                for number in [chunk.start, chunk.end, chunk.tokens] {
                    hash = (hash ^ number as u64).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
    }
    assert_eq!((count, hash), (88_169, 11_714_700_798_251_236_999));
}
