//! Which files of a folder `elf import` reads, and which it passes over.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::cli::output::print_error;

/// The files of a folder and of the folders in it.
#[derive(Default)]
pub(super) struct Files {
    /// Each is a note, in the order of their paths.
    pub texts: Vec<PathBuf>,
    pub passed_over: PassedOver,
}

/// How many files are no notes, by reason.
#[derive(Default, Serialize)]
pub(super) struct PassedOver {
    /// Neither .md nor .txt, or no regular file.
    other: u64,
    /// The name begins with a dot. A hidden folder counts once.
    hidden: u64,
    symbolic_links: u64,
}

impl Files {
    /// Finds them.
    pub fn of(folder: &Path) -> anyhow::Result<Self> {
        let mut files = Self::default();
        files.find_in(folder)?;
        files.texts.sort();
        Ok(files)
    }

    fn find_in(&mut self, folder: &Path) -> anyhow::Result<()> {
        let entries = folder
            .read_dir()
            .with_context(|| format!("failed to list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            // A link may lead out of the folder, or back into it for ever.
            if entry.file_type()?.is_symlink() {
                print_error(&format!("elf: ignored {}: a symbolic link", path.display()));
                self.passed_over.symbolic_links += 1;
            } else if entry.file_name().as_encoded_bytes().starts_with(b".") {
                self.passed_over.hidden += 1;
            } else if path.is_dir() {
                self.find_in(&path)?;
            } else if is_text(&path) && path.is_file() {
                self.texts.push(path);
            } else {
                self.passed_over.other += 1;
            }
        }
        Ok(())
    }
}

impl PassedOver {
    /// The reasons in words; `None` if no file was passed over.
    pub fn reasons(&self) -> Option<String> {
        let links = match self.symbolic_links {
            1 => "symbolic link",
            _ => "symbolic links",
        };
        let counted = [
            (self.other, "neither .md nor .txt"),
            (self.hidden, "hidden"),
            (self.symbolic_links, links),
        ];
        let reasons: Vec<String> = counted
            .into_iter()
            .filter(|(files, _)| *files > 0)
            .map(|(files, reason)| format!("{files} {reason}"))
            .collect();
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }
}

/// Whether a file is a note by its name: `.md` or `.txt`, in capitals or not.
pub(super) fn is_text(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("md") || e.eq_ignore_ascii_case("txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_compare_without_case() {
        for name in ["a.md", "UPPER.MD", "b.Txt", "c.d.TXT"] {
            assert!(is_text(Path::new(name)), "{name}");
        }
        for name in ["md", "a.mdx", "a.pdf", ".md"] {
            assert!(!is_text(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn only_reasons_that_hold_are_named() {
        assert_eq!(PassedOver::default().reasons(), None);
        let passed_over = PassedOver {
            other: 2,
            hidden: 0,
            symbolic_links: 1,
        };
        let reasons = passed_over.reasons().expect("two reasons hold");
        assert_eq!(reasons, "2 neither .md nor .txt, 1 symbolic link");
    }
}
