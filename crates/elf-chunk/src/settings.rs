//! How large chunks are, where they end, and what is left out.

use serde::ser::SerializeMap;

/// How large chunks are, where they end, and what is left out.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Settings {
    /// Off: one chunk a text, where it fits `max_tokens`.
    pub enabled: bool,
    /// Tokens in a chunk as it is sent: prefix and special tokens included.
    pub max_tokens: usize,
    /// Maximum tokens at the end of a chunk that the next chunk repeats.
    pub overlap_tokens: usize,
    /// Tokens in a parent, special tokens included: the text is cut into parents first, which share no text,
    /// and each of them into chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_tokens: Option<usize>,
    /// Which of the possible ends a chunk takes.
    pub boundaries: Boundaries,
    /// What a text is made of, which says where a chunk may end.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// Sections that are left out, by their headings: `*` stands for any text, case does not matter.
    /// Only with [`Strategy::Markdown`].
    pub exclude_headings: Vec<String>,
    /// Blocks that are left out. Only with [`Strategy::Markdown`].
    pub exclude_blocks: Vec<BlockKind>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_tokens: 512,
            overlap_tokens: 128,
            parent_tokens: None,
            boundaries: Boundaries::Greedy,
            strategy: Strategy::Sentence,
            exclude_headings: Vec::new(),
            exclude_blocks: Vec::new(),
        }
    }
}

/// Which of the possible ends a chunk takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundaries {
    /// As late as `max_tokens` allows: the fewest chunks.
    Greedy,
    /// Where the text nearby says: more chunks, and an edit changes few of them.
    Stable,
}

/// What a text is made of, which says where a chunk may end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// Sentences, as UAX #29 finds them, over the lines of wrapped prose.
    Sentence,
    /// Sections, lists, tables, code, paragraphs, and in these sentences.
    Markdown,
    /// Paragraphs with blank lines between them, and in these sentences.
    Paragraph,
    /// Pieces that begin with the first of these separators, in these pieces that begin with the
    /// second, and so on. Graphemes come last, as if `""` were the last of them.
    Recursive(Vec<String>),
    /// [`Strategy::Markdown`] if the text has its structure (see [`Strategy::of`]), else [`Strategy::Paragraph`] or
    /// [`Strategy::Sentence`].
    Auto,
}

impl Strategy {
    /// Its name in settings.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sentence => "sentence",
            Self::Markdown => "markdown",
            Self::Paragraph => "paragraph",
            Self::Recursive(_) => "recursive",
            Self::Auto => "auto",
        }
    }
}

impl serde::Serialize for Strategy {
    /// As the fields `strategy` and, if it has them, `separators`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("strategy", self.name())?;
        if let Self::Recursive(separators) = self {
            fields.serialize_entry("separators", separators)?;
        }
        fields.end()
    }
}

/// A kind of block that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// YAML between `---` or TOML between `+++` at the beginning.
    FrontMatter,
    /// A paragraph of badges alone: images whose address has `badge` or `shield` in it or ends with
    /// `.svg`.
    Badges,
    /// A list whose items are links alone, and definitions of links.
    LinkLists,
    /// HTML comments, except in headings and tables.
    Comments,
    /// A list of links to places in the text itself, with one entry without a link at most, and what stands between `<!-- toc -->` and
    /// `<!-- tocstop -->`.
    Toc,
}
