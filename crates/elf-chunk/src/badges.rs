//! Badges, and other markup that is not for reading.

use std::ops::Range;

use pulldown_cmark::{Event, Tag, TagEnd};

use super::markdown::Events;

pub(super) fn is_badge(address: &str) -> bool {
    let address = address.to_lowercase();
    let path = address.split(['?', '#']).next().unwrap_or_default();
    address.contains("badge") || address.contains("shield") || path.ends_with(".svg")
}

/// Whether a paragraph or an HTML block holds nothing but badges.
pub(super) fn is_badges(events: &Events) -> bool {
    let mut images = 0;
    let mut in_image = 0_usize;
    for (event, _) in events {
        match event {
            Event::Start(Tag::Image { dest_url, .. }) => {
                in_image += 1;
                images += 1;
                if !is_badge(dest_url) {
                    return false;
                }
            }
            Event::End(TagEnd::Image) => in_image = in_image.saturating_sub(1),
            Event::Text(text) | Event::Code(text) if in_image == 0 && !text.trim().is_empty() => {
                return false;
            }
            Event::Html(html) | Event::InlineHtml(html) => match images_of(html) {
                Some(found) => images += found,
                None => return false,
            },
            _ => {}
        }
    }
    images > 0
}

/// How many badges a line of HTML holds, if nothing else that is seen.
fn images_of(html: &str) -> Option<usize> {
    let mut images = 0;
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        if !before.trim().is_empty() {
            return None;
        }
        let (tag, after) = tag.split_once('>').unwrap_or((tag, ""));
        if tag.trim_start().to_lowercase().starts_with("img") {
            let source = tag.split_once("src=").map_or("", |(_, source)| source);
            let quotes = ['"', '\''];
            let source = source.trim_start_matches(quotes);
            if !is_badge(source.split(quotes).next().unwrap_or_default()) {
                return None;
            }
            images += 1;
        }
        rest = after;
    }
    rest.trim().is_empty().then_some(images)
}

/// Where the text of a heading is, without the badges around it; `None` if it has nothing else.
pub(super) fn without_badges(events: &Events) -> Option<Range<usize>> {
    let mut seen: Option<Range<usize>> = None;
    // The outermost emphasis or link, and how many are open.
    let mut around: Option<Range<usize>> = None;
    let mut open = 0_usize;
    let mut in_badge = 0_usize;
    for (event, range) in events {
        // So many words follow that they are not looked at.
        if range.is_empty() && matches!(event, Event::Text(_)) {
            let whole = &events[0].1;
            return Some(seen.map_or(whole.start, |seen| seen.start)..whole.end);
        }
        let is_seen = match event {
            Event::Start(Tag::Image { dest_url, .. }) if in_badge > 0 || is_badge(dest_url) => {
                in_badge += 1;
                false
            }
            Event::End(TagEnd::Image) if in_badge > 0 => {
                in_badge -= 1;
                false
            }
            Event::Start(Tag::Link { .. } | Tag::Emphasis | Tag::Strong | Tag::Strikethrough) => {
                around.get_or_insert_with(|| range.clone());
                open += 1;
                false
            }
            Event::End(
                TagEnd::Link | TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough,
            ) => {
                open = open.saturating_sub(1);
                if open == 0 {
                    around = None;
                }
                false
            }
            Event::Start(Tag::Image { .. }) => true,
            Event::Text(text) | Event::Code(text) => in_badge == 0 && !text.trim().is_empty(),
            _ => false,
        };
        if is_seen {
            let range = around.as_ref().unwrap_or(range);
            let start = seen.as_ref().map_or(range.start, |seen| seen.start);
            seen = Some(start..range.end);
        }
    }
    seen
}

/// Whether a text is tags and rules alone, which show nothing.
pub(super) fn is_unseen(text: &str) -> bool {
    let mut rest = text;
    loop {
        let (before, tag) = rest.split_once('<').unwrap_or((rest, ""));
        let is_rule = |c: char| c.is_whitespace() || matches!(c, '-' | '*' | '_');
        if !before.chars().all(is_rule) {
            return false;
        }
        if tag.is_empty() {
            return before.len() == rest.len();
        }
        let Some((tag, after)) = tag.split_once('>') else {
            return false;
        };
        let name = tag.trim_start_matches('/');
        let name = name.split(|c: char| c.is_whitespace() || c == '/').next();
        let name = name.unwrap_or_default();
        // An image is seen, and `<https://…>` is a link.
        let is_tag = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric());
        let shows = ["img", "svg", "video", "audio", "iframe", "input"];
        if !is_tag || shows.iter().any(|it| name.eq_ignore_ascii_case(it)) {
            return false;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_rules_show_nothing() {
        for text in ["<br />", "---", "</p>\n<hr/> * * *", "<a id=\"x\"></a>", ""] {
            assert!(is_unseen(text), "{text}");
        }
        for text in [
            "a",
            "<img src=x>",
            "<https://a.b>",
            "<b>a</b>",
            "1 < 2",
            "<",
            "🎉",
        ] {
            assert!(!is_unseen(text), "{text}");
        }
    }
}
