//! Display math: a block between `$$` and `$$`, `\[` and `\]`, `\begin{…}` and `\end{…}`, each on lines of their own.
//! CommonMark knows none of them. It takes a blank line in one for the end of a paragraph, and a lone `=` for a heading's
//! underline.

use super::outline::Span;

/// A longer block is not math: its opening line stands for something else.
const MAX_BYTES: usize = 8 * 1024;

/// The blocks of display math that are longer than a line, in the order of the text: whole lines, without the last line
/// break. None is in code.
pub(super) fn blocks(text: &str) -> Vec<Span> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut fence: Option<&str> = None;
    let mut next = 0;
    for line in text.split_inclusive('\n') {
        let start = next;
        next += line.len();
        // Most lines open nothing.
        let opens = line.trim_start().starts_with(['`', '~', '$', '\\']);
        if !opens && fence.is_none() && open.is_none() {
            continue;
        }
        let content = line.trim();
        let end = start + line.trim_end_matches(['\n', '\r']).len();
        if let Some(mark) = fence {
            fence = Some(mark).filter(|mark| !content.starts_with(mark));
        } else if let Some((begin, closer)) = &open {
            if content
                .trim_end_matches(['.', ',', ';'])
                .ends_with(closer.as_str())
            {
                let start = *begin;
                blocks.push(Span { start, end });
                open = None;
            } else if end - begin > MAX_BYTES || is_block(content) {
                open = None;
                fence = fence_of(content);
            }
        } else {
            fence = fence_of(content);
            open = closer_of(content).map(|closer| (start, closer));
        }
    }
    blocks
}

/// What ends the block that a line opens.
fn closer_of(line: &str) -> Option<String> {
    let (closer, rest) = match line.strip_prefix("\\begin{") {
        Some(rest) => {
            let (name, rest) = rest.split_once('}')?;
            (format!("\\end{{{name}}}"), rest)
        }
        None => match line.strip_prefix("$$") {
            Some(rest) => ("$$".to_owned(), rest),
            None => ("\\]".to_owned(), line.strip_prefix("\\[")?),
        },
    };
    (!rest.contains(closer.as_str())).then_some(closer)
}

fn fence_of(line: &str) -> Option<&'static str> {
    ["```", "~~~"]
        .into_iter()
        .find(|mark| line.starts_with(mark))
}

/// Whether a line begins a block that math does not hold.
fn is_block(line: &str) -> bool {
    let title = line.trim_start_matches('#');
    let is_heading = title.len() < line.len() && title.starts_with(' ');
    is_heading || fence_of(line).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_math_is_found() {
        for (text, expected) in [
            ("a\n$$\nx\n\n=\n\ny\n$$\nb", &["$$\nx\n\n=\n\ny\n$$"][..]),
            ("$$ x\n= y $$,\nwhere", &["$$ x\n= y $$,"]),
            (
                "\\[\nx\n\\]\n\n\\begin{align}\r\nx\r\n\\end{align}\r\n",
                &["\\[\nx\n\\]", "\\begin{align}\r\nx\r\n\\end{align}"],
            ),
            ("  $$\n  x\n  $$", &["  $$\n  x\n  $$"]),
            // In a line, never closed, in code, over a heading.
            ("$$ x $$\ny\n$$ z $$", &[]),
            ("$$\nx\n\ny", &[]),
            ("```sh\nkill $$\n$$\n```\n$$\nx\n$$", &["$$\nx\n$$"]),
            ("$$\n\n# A\n\n$$", &[]),
        ] {
            let found: Vec<&str> = blocks(text)
                .iter()
                .map(|it| &text[it.start..it.end])
                .collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
