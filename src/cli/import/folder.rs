//! Which files of a folder `elf import` reads, and which it passes over.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::DirEntry;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use crate::cli::output::print_error;
use crate::unicode::composed;

/// The files of a folder and of the folders in it.
#[derive(Default)]
pub(super) struct Files {
    /// Each is a note, with its key, in the order of the keys.
    pub texts: Vec<(String, PathBuf)>,
    pub passed_over: PassedOver,
    /// What cannot be imported, and why.
    pub problems: Vec<String>,
}

/// How many files are no notes, by reason.
#[derive(Default, Serialize)]
pub(super) struct PassedOver {
    /// No text by its name, or no regular file.
    other: u64,
    /// The name begins with a dot. A hidden folder counts once.
    hidden: u64,
    symbolic_links: u64,
}

impl Files {
    /// Finds them. A folder that cannot be listed is a problem, and the others are searched.
    pub fn of(folder: &Path) -> Self {
        let mut files = Self::default();
        files.find_in(folder, folder);
        files.texts.sort();
        files.drop_twins();
        files
    }

    fn find_in(&mut self, root: &Path, folder: &Path) {
        let entries = match folder.read_dir() {
            Ok(entries) => entries,
            Err(error) => return self.cannot("list", folder, &error),
        };
        for entry in entries {
            match entry {
                Ok(entry) => self.add(root, &entry),
                Err(error) => self.cannot("list all of", folder, &error),
            }
        }
    }

    fn add(&mut self, root: &Path, entry: &DirEntry) {
        let path = entry.path();
        // Not what the name leads to: a folder may be listed that may not be entered.
        let kind = match entry.file_type() {
            Ok(kind) => kind,
            Err(error) => return self.cannot("read", &path, &error),
        };
        // A link may lead out of the folder, or back into it for ever.
        if kind.is_symlink() {
            print_error(&format!("elf: ignored {}: a symbolic link", shown(&path)));
            self.passed_over.symbolic_links += 1;
        } else if entry.file_name().as_encoded_bytes().starts_with(b".") {
            self.passed_over.hidden += 1;
        } else if kind.is_dir() {
            self.find_in(root, &path);
        } else if is_text(&path) && kind.is_file() {
            match key_of(path.strip_prefix(root).unwrap_or(&path)) {
                Ok(key) => self.texts.push((key, path)),
                Err(problem) => self.problems.push(format!("{}: {problem}", shown(&path))),
            }
        } else {
            self.passed_over.other += 1;
        }
    }

    fn cannot(&mut self, what: &str, path: &Path, error: &std::io::Error) {
        let path = shown(path);
        self.problems
            .push(format!("{path}: cannot {what} it: {error}"));
    }

    /// Of files whose names differ in the form of Unicode alone, the first is the note.
    fn drop_twins(&mut self) {
        let mut first: HashMap<String, PathBuf> = HashMap::new();
        let (texts, problems) = (&mut self.texts, &mut self.problems);
        texts.retain(|(key, path)| match first.get(key) {
            Some(twin) => {
                problems.push(format!(
                    "{path:?}: {twin:?} has the same name in another form of Unicode; rename one"
                ));
                false
            }
            None => {
                first.insert(key.clone(), path.clone());
                true
            }
        });
    }
}

/// The key of a file: its path, cleaned and in NFC. macOS and Linux write one name in two forms.
pub(super) fn key_of(path: &Path) -> Result<String, &'static str> {
    let mut key: Vec<&str> = Vec::new();
    for component in path.components() {
        let name = component.as_os_str().to_str();
        let name =
            name.ok_or("its name is not UTF-8, and the name is the key of the note; rename it")?;
        match (component, key.last()) {
            (Component::CurDir, _) | (Component::ParentDir, Some(&"")) => {}
            (Component::ParentDir, Some(last)) if *last != ".." => drop(key.pop()),
            (Component::RootDir, _) => key.push(""),
            _ => key.push(name),
        }
    }
    Ok(composed(&key.join("/")).into_owned())
}

/// A path for a message: escaped where it is not UTF-8 or has a line break.
pub(super) fn shown(path: &Path) -> String {
    match path.to_str() {
        Some(name) if !name.contains(char::is_control) => name.to_owned(),
        _ => format!("{path:?}"),
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
            (self.other, "neither .md, .txt nor .log"),
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

/// Whether a file is a note by its name, in capitals or not.
pub(super) fn is_text(path: &Path) -> bool {
    let is_known = |e: &OsStr| {
        let known = ["md", "txt", "log"];
        known.iter().any(|known| e.eq_ignore_ascii_case(known))
    };
    path.extension().is_some_and(is_known)
}

/// Whether a file may be JSONL by its name. A pipe of the shell, such as `/dev/fd/63`, has no extension.
pub(super) fn may_be_jsonl(path: &Path) -> bool {
    let is_known = |e: &OsStr| {
        let known = ["jsonl", "ndjson", "json"];
        known.iter().any(|known| e.eq_ignore_ascii_case(known))
    };
    path.extension().is_none_or(is_known)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn extensions_compare_without_case() {
        for name in ["a.md", "UPPER.MD", "b.Txt", "c.d.TXT", "e.log"] {
            assert!(is_text(Path::new(name)), "{name}");
        }
        for name in ["md", "a.mdx", "a.pdf", ".md"] {
            assert!(!is_text(Path::new(name)), "{name}");
        }
        for name in ["a.jsonl", "a.JSON", "b.ndjson", "/dev/fd/63"] {
            assert!(may_be_jsonl(Path::new(name)), "{name}");
        }
        for name in ["a.docx", "a.csv", "a.jsonl.gz"] {
            assert!(!may_be_jsonl(Path::new(name)), "{name}");
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
        assert_eq!(reasons, "2 neither .md, .txt nor .log, 1 symbolic link");
    }

    #[test]
    fn a_key_is_the_cleaned_path() {
        for (path, key) in [
            ("README.md", "README.md"),
            ("./x//README.md", "x/README.md"),
            ("x/./y/../README.md", "x/README.md"),
            ("../y/README.md", "../y/README.md"),
            ("../../a.md", "../../a.md"),
            ("/srv/notes/a.md", "/srv/notes/a.md"),
            ("/../a.md", "/a.md"),
            ("Mu\u{308}hle.md", "M\u{fc}hle.md"),
        ] {
            assert_eq!(key_of(Path::new(path)).unwrap(), key, "{path}");
        }
        let name = Path::new(OsStr::from_bytes(b"log\xff.md"));
        assert!(key_of(name).unwrap_err().contains("not UTF-8"));
        assert_eq!(shown(name), r#""log\xFF.md""#);
        assert_eq!(shown(Path::new("two\nlines.md")), r#""two\nlines.md""#);
    }
}
