//! `[chunking]` of `elf.toml`: its keys, which of them fit together, and which have no effect.

use elf_chunk::{BlockKind, Boundaries, Settings, Strategy};

use super::read::{anything, holds, not_empty};
use super::section::Section;
use super::value::Refusal;
use super::{Chunking, LeadPart};

pub(super) fn chunking(section: &mut Section<'_, '_>) -> Chunking {
    let default = Settings {
        strategy: Strategy::Auto,
        ..Settings::default()
    };
    let separators = ["\n\n", "\n", " ", ""].map(str::to_owned);
    let (settings, separators) = chunks(section, &default, &separators);
    let chunks_of_type = |section: &mut Section<'_, '_>| {
        let of_type = chunks(section, &settings, &separators).0;
        warn_without_effect(section, &of_type, &[&of_type.strategy]);
        of_type
    };
    let by_type = section.sections("by_type", chunks_of_type);
    let of_types = by_type.values().map(|settings| &settings.strategy);
    let strategies: Vec<&Strategy> = of_types.chain([&settings.strategy]).collect();
    warn_without_effect(section, &settings, &strategies);
    let chunking = Chunking {
        lead: section.choices(
            "lead",
            &[],
            &[LeadPart::Title, LeadPart::Headings, LeadPart::Date],
        ),
        tokenizer_repo: section.text("tokenizer_repo", "", anything),
        by_type: by_type.clone(),
        settings: settings.clone(),
    };
    let has_headings = chunking.lead.contains(&LeadPart::Headings);
    if has_headings && !strategies.iter().any(|strategy| reads_markdown(strategy)) {
        section.warn("lead", || format!("\"headings\" {NO_MARKDOWN}"));
    }
    chunking
}

/// What a warning says of settings for Markdown alone.
const NO_MARKDOWN: &str =
    "has no effect with this strategy: set strategy = \"markdown\" or \"auto\", or remove it";

fn reads_markdown(strategy: &Strategy) -> bool {
    matches!(strategy, Strategy::Markdown | Strategy::Auto)
}

/// Warns of what the section sets, and none of these strategies uses.
fn warn_without_effect(
    section: &mut Section<'_, '_>,
    settings: &Settings,
    strategies: &[&Strategy],
) {
    let has_markdown = strategies.iter().any(|strategy| reads_markdown(strategy));
    for (name, is_empty) in [
        ("exclude_headings", settings.exclude_headings.is_empty()),
        ("exclude_blocks", settings.exclude_blocks.is_empty()),
    ] {
        if !has_markdown && !is_empty {
            section.warn(name, || NO_MARKDOWN.to_owned());
        }
    }
    let is_recursive = |strategy: &&Strategy| matches!(strategy, Strategy::Recursive(_));
    if !strategies.iter().any(is_recursive) {
        section.warn("separators", || {
            "has no effect with this strategy: set strategy = \"recursive\", or remove it"
                .to_owned()
        });
    }
}

/// Also returns the separators, which another strategy has no place for.
fn chunks(
    section: &mut Section<'_, '_>,
    default: &Settings,
    separators: &[String],
) -> (Settings, Vec<String>) {
    let enabled = section.flag("enabled", default.enabled);
    let max_tokens = section.int("max_tokens", default.max_tokens, 1..=131_072);
    let overlap_tokens = section.int("overlap_tokens", default.overlap_tokens, 0..=131_071);
    let parent_tokens = section.int(
        "parent_tokens",
        default.parent_tokens.unwrap_or(0),
        0..=131_072,
    );
    let boundaries = section.choice(
        "boundaries",
        default.boundaries,
        &[Boundaries::Greedy, Boundaries::Stable],
    );
    let (strategy, separators) = strategy(section, &default.strategy, separators);
    let settings = Settings {
        enabled,
        max_tokens,
        overlap_tokens,
        parent_tokens: Some(parent_tokens).filter(|tokens| *tokens > 0),
        boundaries,
        strategy,
        exclude_headings: section.texts(
            "exclude_headings",
            &default.exclude_headings,
            pattern_of_heading,
        ),
        exclude_blocks: section.choices(
            "exclude_blocks",
            &default.exclude_blocks,
            &[
                BlockKind::FrontMatter,
                BlockKind::Badges,
                BlockKind::Comments,
                BlockKind::LinkLists,
                BlockKind::Toc,
            ],
        ),
    };
    section.check(
        &["overlap_tokens", "max_tokens"],
        overlap_tokens < max_tokens,
        || format!("{overlap_tokens} must be less than max_tokens, which is {max_tokens}"),
    );
    section.check(
        &["parent_tokens", "max_tokens"],
        parent_tokens == 0 || parent_tokens > max_tokens,
        || format!("{parent_tokens} must be 0, or more than max_tokens, which is {max_tokens}"),
    );
    (settings, separators)
}

fn strategy(
    section: &mut Section<'_, '_>,
    default: &Strategy,
    separators: &[String],
) -> (Strategy, Vec<String>) {
    let words = ["auto", "sentence", "markdown", "paragraph", "recursive"];
    let word = section.word("strategy", default.name(), &words);
    let separators = section.texts("separators", separators, anything);
    let last = separators.len().saturating_sub(1);
    let first_empty = separators.iter().position(String::is_empty);
    section.check(
        &["separators"],
        separators.iter().any(|separator| !separator.is_empty()),
        || "must have a separator, such as \"\\n\"".to_owned(),
    );
    section.check(
        &["separators"],
        first_empty.is_none_or(|at| at == last),
        || "has separators behind \"\", which cuts anywhere: write \"\" as the last".to_owned(),
    );
    let strategy = match word.as_str() {
        "auto" => Strategy::Auto,
        "markdown" => Strategy::Markdown,
        "paragraph" => Strategy::Paragraph,
        "recursive" => Strategy::Recursive(separators.clone()),
        _ => Strategy::Sentence,
    };
    (strategy, separators)
}

/// A pattern that matches some headings, and not all.
fn pattern_of_heading(pattern: &str) -> Result<(), Refusal> {
    not_empty(pattern)?;
    let title = pattern.trim().trim_matches('#').trim();
    let has_marks = pattern
        .trim_start()
        .trim_start_matches('#')
        .starts_with([' ', '\t'])
        && pattern.trim_start().starts_with('#');
    holds(!has_marks, || {
        format!("must be a heading without its marks: {title:?}")
    })?;
    holds(!pattern.trim().chars().all(|c| c == '*'), || {
        "would leave out every section: name the headings".to_owned()
    })
}
