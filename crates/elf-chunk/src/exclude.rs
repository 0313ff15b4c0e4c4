//! What the settings leave out of a Markdown text.

use pulldown_cmark::{Event, Tag, TagEnd};

use super::badges::{is_badges, is_unseen};
use super::markdown::{self, Events};
use super::outline::{self, Excluded, Heading, Outline, Span, Stranded, Why};
use super::settings::{BlockKind, Settings, Strategy};

impl Settings {
    /// Whether they leave out a text that is not blank as a whole.
    pub fn leaves_out(&self, text: &str) -> bool {
        let exclude = Exclude::new(self);
        if exclude.is_empty()
            || text.trim().is_empty()
            || self.strategy.of(text) != &Strategy::Markdown
        {
            return false;
        }
        markdown::outline(text, &exclude).segments(text).is_empty()
    }
}

/// What the settings leave out.
#[derive(Debug, Default)]
pub(super) struct Exclude {
    /// In lower case, split at `*`.
    headings: Vec<Vec<String>>,
    blocks: Vec<BlockKind>,
}

impl Exclude {
    pub(super) fn new(settings: &Settings) -> Self {
        let patterns = settings.exclude_headings.iter();
        let parts = |pattern: &String| {
            let pattern = pattern.trim().to_lowercase();
            pattern.split('*').map(str::to_owned).collect()
        };
        Self {
            headings: patterns.map(parts).collect(),
            blocks: settings.exclude_blocks.clone(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.headings.is_empty() && self.blocks.is_empty()
    }

    pub(super) fn has(&self, kind: BlockKind) -> bool {
        self.blocks.contains(&kind)
    }

    /// The kind of a top-level block, if it is left out.
    pub(super) fn kind_of(&self, events: &Events) -> Option<BlockKind> {
        if self.blocks.is_empty() {
            return None;
        }
        let is = |kind: BlockKind| match (kind, &events[0].0) {
            (BlockKind::Badges, Event::Start(Tag::Paragraph | Tag::HtmlBlock)) => is_badges(events),
            (BlockKind::Comments, Event::Start(Tag::HtmlBlock)) => is_comment(events),
            (BlockKind::Toc, Event::Start(Tag::List(_))) => {
                // A generator makes no link of an entry that it cannot name.
                is_links(events, 1, |to| to.starts_with('#'))
            }
            (BlockKind::LinkLists, Event::Start(Tag::List(_))) => is_links(events, 0, |_| true),
            _ => false,
        };
        let kinds = [
            BlockKind::Badges,
            BlockKind::Comments,
            BlockKind::Toc,
            BlockKind::LinkLists,
        ];
        kinds.into_iter().find(|&kind| self.has(kind) && is(kind))
    }

    fn excludes(&self, heading: &Heading) -> bool {
        let title = heading.title.trim().to_lowercase();
        self.headings.iter().any(|parts| matches(parts, &title))
    }
}

/// Whether `title` is the parts with any text between them.
fn matches(parts: &[String], title: &str) -> bool {
    let [first, middle @ .., last] = parts else {
        return parts.first().is_some_and(|only| only == title);
    };
    let inner = title.strip_prefix(first.as_str());
    let Some(mut inner) = inner.and_then(|inner| inner.strip_suffix(last.as_str())) else {
        return false;
    };
    middle.iter().all(|part| match inner.find(part.as_str()) {
        Some(at) => {
            inner = &inner[at + part.len()..];
            true
        }
        None => false,
    })
}

/// Whether an HTML block is a comment alone.
fn is_comment(events: &Events) -> bool {
    let html = events.iter().filter_map(|(event, _)| match event {
        Event::Html(html) => Some(html.as_ref()),
        _ => None,
    });
    let html: String = html.collect();
    let inner = html.trim().strip_prefix("<!--");
    let inner = inner.and_then(|inner| inner.strip_suffix("-->"));
    inner.is_some_and(|inner| !inner.contains("-->"))
}

/// An item of a list, as far as it is read.
#[derive(Default)]
struct Item {
    links: usize,
    /// Bytes of text outside of links.
    plain: usize,
}

/// Whether each item of a list is links alone, at least two of them, to addresses like that. `may_be_plain`: so many
/// items may be a few words without a link.
fn is_links(events: &Events, may_be_plain: usize, is_one: impl Fn(&str) -> bool) -> bool {
    const A_FEW_WORDS: usize = 80;
    let mut items: Vec<Item> = Vec::new();
    let (mut linked, mut plain) = (0, 0);
    let mut in_link = 0_usize;
    for (event, _) in events {
        match event {
            Event::Start(Tag::Item) => items.push(Item::default()),
            Event::End(TagEnd::Item) => match items.pop().unwrap_or_default() {
                Item { links: 0, plain: 0 } => {}
                Item { links, plain: 0 } => linked += links.min(1),
                Item {
                    links: 0,
                    plain: bytes,
                } if bytes <= A_FEW_WORDS => plain += 1,
                _ => return false,
            },
            Event::Start(Tag::Link { dest_url, .. }) => {
                in_link += 1;
                if !is_one(dest_url) {
                    return false;
                }
                if let Some(item) = items.last_mut() {
                    item.links += 1;
                }
            }
            Event::End(TagEnd::Link) => in_link = in_link.saturating_sub(1),
            Event::Text(text) | Event::Code(text)
                if in_link == 0 && text.contains(char::is_alphanumeric) =>
            {
                if let Some(item) = items.last_mut() {
                    item.plain += text.len();
                }
            }
            Event::Start(
                Tag::CodeBlock(_) | Tag::HtmlBlock | Tag::BlockQuote(_) | Tag::Image { .. },
            )
            | Event::Html(_)
            | Event::InlineHtml(_) => return false,
            _ => {}
        }
    }
    linked >= 2 && plain <= may_be_plain
}

/// Where the comments of a block of HTML are.
pub(super) fn comments(html: &str) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + html[from..].find("<!--")?;
        let end = start + html[start..].find("-->")? + "-->".len();
        from = end;
        Some(start..end)
    })
}

/// Whether a block is the mark where a generated table of contents begins, or ends.
pub(super) fn toc_mark(events: &Events) -> Option<bool> {
    let [
        (Event::Start(Tag::HtmlBlock), _),
        (Event::Html(html), _),
        ..,
    ] = events
    else {
        return None;
    };
    let mark = html.strip_prefix("<!--")?.trim_start().to_lowercase();
    let ends = ["tocstop", "/toc", "end doctoc"];
    let begins = ["toc", "start doctoc"];
    let is = |marks: &[&str]| marks.iter().any(|start| mark.starts_with(start));
    (is(&ends) || is(&begins)).then(|| !is(&ends))
}

/// The outline with all that is left out, in the order of the text.
pub(super) fn finish(text: &str, mut outline: Outline, exclude: &Exclude) -> Outline {
    if exclude.is_empty() {
        return outline;
    }
    let mut excluded = std::mem::take(&mut outline.excluded);
    let mut index = 0;
    while let Some(heading) = outline.headings.get(index) {
        index += 1;
        if exclude.excludes(heading) {
            let below = outline.headings[index..].iter();
            index += below
                .take_while(|other| other.level > heading.level)
                .count();
            let next = outline.headings.get(index);
            excluded.push(Excluded {
                start: heading.start,
                end: next.map_or(text.len(), |next| next.start),
                why: Why::Heading,
            });
        }
    }
    excluded.sort_by_key(|it| (it.start, std::cmp::Reverse(it.end)));
    let mut apart: Vec<Excluded> = Vec::new();
    for it in excluded {
        let end = it.start + text[it.start..it.end].trim_end().len();
        match apart.last_mut() {
            Some(last) if it.start < last.end => last.end = last.end.max(end),
            _ if it.start < end => apart.push(Excluded { end, ..it }),
            _ => {}
        }
    }
    leave_out_unseen(text, &mut apart);
    strand(text, &mut outline, apart);
    outline
}

/// Leaves out what stands alone between two parts that are left out, and shows nothing: `<br />`, a rule.
fn leave_out_unseen(text: &str, excluded: &mut [Excluded]) {
    if excluded.is_empty() {
        return;
    }
    let mut start = 0;
    for index in 0..=excluded.len() {
        let end = excluded.get(index).map_or(text.len(), |it| it.start);
        let alone = outline::trimmed(text, Span { start, end });
        if let Some(alone) = alone.filter(|alone| is_unseen(&text[alone.start..alone.end])) {
            match index.checked_sub(1) {
                Some(before) => excluded[before].end = alone.end,
                None => excluded[index].start = alone.start,
            }
        }
        start = excluded.get(index).map_or(text.len(), |it| it.end);
    }
}

/// What a chunk repeats of headings that follow each other: the last ones, without their badges.
fn shown_of(headings: &[Heading]) -> Option<(usize, Span)> {
    let (last, before) = headings.split_last()?;
    let mut first = last;
    for heading in before.iter().rev() {
        if heading.shown.end != heading.end || first.shown.start != first.start {
            break;
        }
        first = heading;
    }
    let span = Span {
        start: first.shown.start,
        end: last.shown.end,
    };
    (span.start < span.end).then_some((first.start, span))
}

/// Leaves out the headings that have nothing behind them any more. Of a section with more text
/// behind what is left out, the next chunk repeats the heading.
fn strand(text: &str, outline: &mut Outline, excluded: Vec<Excluded>) {
    let is_blank = |from: usize, to: usize| from <= to && text[from..to].trim().is_empty();
    let mut all: Vec<Excluded> = Vec::new();
    // Where the text continues behind what is left out.
    let mut next = text.len();
    for (index, &it) in excluded.iter().enumerate().rev() {
        match all.last() {
            Some(after) if is_blank(it.end, after.start) => {}
            _ => next = text.len() - text[it.end..].trim_start().len(),
        }
        all.push(it);
        let before = index.checked_sub(1).map_or(0, |index| excluded[index].end);
        let end = outline
            .headings
            .partition_point(|heading| heading.start < it.start);
        let mut first = end;
        let mut start = it.start;
        while let Some(heading) = first.checked_sub(1).map(|index| &outline.headings[index])
            && heading.start >= before
            && is_blank(heading.end, start)
        {
            first -= 1;
            start = heading.start;
        }
        let run = &outline.headings[first..end];
        let level = match outline
            .headings
            .binary_search_by_key(&next, |heading| heading.start)
        {
            Ok(index) => outline.headings[index].level,
            Err(_) if next >= text.len() => 0,
            Err(_) => u8::MAX,
        };
        let needed = run.partition_point(|heading| heading.level < level);
        let (needed, done) = run.split_at(needed);
        let span = |headings: &[Heading]| {
            let (first, last) = (headings.first()?, headings.last()?);
            Some(Span {
                start: first.start,
                end: last.end,
            })
        };
        if let Some(Span { start, end }) = span(done) {
            all.push(Excluded {
                start,
                end,
                why: it.why,
            });
        }
        if let Some(span) = span(needed) {
            let Span { start, end } = span;
            all.push(Excluded {
                start,
                end,
                why: Why::Stranded,
            });
            if let Some((heading, shown)) = shown_of(needed)
                && outline.stranded.last().is_none_or(|last| last.next != next)
            {
                outline.stranded.push(Stranded {
                    next,
                    heading,
                    shown,
                });
            }
        }
    }
    all.reverse();
    outline.stranded.reverse();
    outline.excluded = all;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_headings() {
        let matches = |pattern: &str, title: &str| {
            let settings = Settings {
                exclude_headings: vec![pattern.into()],
                ..Settings::default()
            };
            matches(&Exclude::new(&settings).headings[0], title)
        };
        assert!(matches("Table of Contents", "table of contents"));
        assert!(!matches("Contents", "table of contents"));
        assert!(matches("*contents", "table of contents"));
        assert!(matches("about*author*", "about the author"));
        assert!(matches("*", "anything"));
        assert!(!matches("ab*ba", "aba"));
    }
}
