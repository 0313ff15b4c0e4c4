//! What `[chunking]` refuses, and what it warns of.

use super::*;

#[test]
fn a_pattern_that_no_heading_or_every_heading_matches_is_refused() {
    for (pattern, said) in [
        ("## License", "without its marks: \"License\""),
        (" # License ##", "without its marks: \"License\""),
        ("##  ", "without its marks"),
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("*", "every section"),
        ("**", "every section"),
    ] {
        let line = format!("exclude_headings = [\"Notice\", {pattern:?}]\nstrategy = \"auto\"");
        assert_refused("chunking", &line, said);
        let line = format!("exclude_headings = [{pattern:?}]");
        assert_refused("chunking.by_type.manual", &line, said);
    }
    let line = "strategy = \"markdown\"\nexclude_headings = [\"#tags\", \"C#\", \"*license*\"]";
    assert_eq!(with("chunking", line).unwrap().warnings(), [""; 0]);
}

#[test]
fn separators_that_cut_nowhere_or_anywhere_are_refused() {
    let list = |list: &str| format!("separators = {list}\nstrategy = \"recursive\"");
    assert_refused("chunking", &list("[]"), "must have a separator");
    assert_refused("chunking", &list("[\"\"]"), "must have a separator");
    assert_refused("chunking", &list("[\"\", \"x\"]"), "as the last");
    assert_refused("chunking", &list("[\"x\", \"\", \"\"]"), "as the last");
    assert!(with("chunking", &list("[\"x\", \"\"]")).is_ok());
}

#[test]
fn a_setting_that_no_strategy_uses_is_named() {
    let warnings = |lines: &str| with("chunking", lines).unwrap().warnings();
    for line in [
        "exclude_headings = [\"License\"]",
        "exclude_blocks = [\"toc\"]",
        "lead = [\"date\", \"headings\"]",
        "separators = [\"x\"]",
    ] {
        let key = line.split(' ').next().unwrap();
        for strategy in ["sentence", "paragraph"] {
            let warnings = warnings(&format!("strategy = {strategy:?}\n{line}"));
            assert!(
                warnings[0].starts_with(&format!("chunking.{key} ")),
                "{warnings:?}"
            );
            assert!(warnings[0].contains("set strategy = "), "{warnings:?}");
            assert_eq!(warnings.len(), 1, "{warnings:?}");
        }
        let used = "by_type = { a = { strategy = \"auto\" }, b = { strategy = \"recursive\" } }";
        assert_eq!(warnings(&format!("{line}\n{used}")), [""; 0]);
    }
    let of_type = "by_type = { log = { exclude_blocks = [\"toc\"] } }\nstrategy = ";
    let of_type = |strategy: &str| warnings(&format!("{of_type}{strategy:?}"));
    assert!(of_type("sentence")[0].starts_with("chunking.by_type.log.exclude_blocks has"));
    assert_eq!(of_type("markdown"), [""; 0]);
    assert_eq!(
        warnings("exclude_headings = []\nlead = [\"date\"]"),
        [""; 0]
    );
}

#[test]
fn a_type_inherits_the_separators_whatever_the_usual_strategy() {
    let lines = "separators = [\"x\"]\nby_type = { log = { strategy = \"recursive\" } }";
    let chunking = with("chunking", lines).unwrap().chunking;
    let expected = elf_chunk::Strategy::Recursive(vec!["x".to_owned()]);
    assert_eq!(chunking.by_type["log"].strategy, expected);
}

#[test]
fn the_largest_chunk_is_named_by_its_key() {
    let lines = "max_tokens = 300\nby_type = { log = { max_tokens = 600 } }";
    let largest = with("chunking", lines).unwrap().chunking.largest();
    assert_eq!(largest, ("chunking.by_type.log.max_tokens".to_owned(), 600));
    let text = format!("{lines}\n[providers.embedding]\nmax_batch_tokens = 500");
    let error = with("chunking", &text).unwrap_err();
    assert!(
        error.contains("chunking.by_type.log.max_tokens is 600"),
        "{error}"
    );
}
