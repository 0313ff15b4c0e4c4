//! How errors are classed: by what has to change before the same work can succeed.

/// What has to change before the same work can succeed. The errors of Postgres, index,
/// provider, hub, tokenizer, chunker and serving, and of the commands over them, return it from
/// `class()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The note, or the content of the request. It counts as an attempt of that note alone.
    Item,
    /// The state of the provider or of the hub. It recovers by itself and costs no attempt.
    Provider,
    /// The state of Postgres or of the vector engine. It recovers by itself and costs no
    /// attempt.
    Storage,
    /// What is there does not allow the command yet: another command has to run, or end, first.
    Precondition,
    /// Settings, rights or schema: an operator has to change something.
    Configuration,
}

impl ErrorClass {
    /// Whether the same work may succeed later although nothing is changed.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Provider | Self::Storage)
    }
}
