//! Which files of a folder `elf import` reads, and which it passes over.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use crate::cli::output::print_error;
use crate::unicode::composed;

/// The files of a folder and of the folders in it.
#[derive(Default)]
pub(super) struct Files {
    root: PathBuf,
    /// Each is a note, in the order of the keys.
    pub texts: Vec<TextFile>,
    pub passed_over: PassedOver,
    /// What cannot be imported, and why.
    pub problems: Vec<String>,
    /// Keys of files and folders that cannot be read now: what is in them is unknown. The folder itself is "".
    unreadable: Vec<String>,
}

/// A file that is a note. Of a million there is a path of each in memory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextFile {
    pub key: String,
    /// Its path below the folder, if that is not the key.
    other_path: Option<Box<Path>>,
}

/// How many files are no notes, by reason.
#[derive(Clone, Default, Serialize)]
pub(super) struct PassedOver {
    /// No text by its name, or no regular file.
    other: u64,
    /// The name begins with a dot. A hidden folder counts once.
    hidden: u64,
    symbolic_links: u64,
    /// A text by its name only.
    pub binary: u64,
}

impl Files {
    /// Finds them. A folder that cannot be listed is a problem, and the others are searched.
    pub fn of(folder: &Path) -> Self {
        let mut files = Self {
            root: folder.to_owned(),
            ..Self::default()
        };
        files.find_in(folder, folder);
        files.texts.sort_unstable();
        files.drop_twins();
        files
    }

    /// Where a file is.
    pub fn path_of(&self, file: &TextFile) -> PathBuf {
        let below = file.other_path.as_deref();
        self.root.join(below.unwrap_or(Path::new(&file.key)))
    }

    /// Whether one of the files has this key.
    pub fn has(&self, key: &str) -> bool {
        let found = self
            .texts
            .binary_search_by(|file| file.key.as_str().cmp(key));
        found.is_ok()
    }

    /// Whether a file of this key may be there, although it could not be listed.
    pub fn may_have(&self, key: &str) -> bool {
        self.unreadable.iter().any(|unreadable| {
            let below = key.strip_prefix(unreadable.as_str());
            below.is_some_and(|rest| {
                unreadable.is_empty() || rest.is_empty() || rest.starts_with('/')
            })
        })
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
            let below = path.strip_prefix(root).unwrap_or(&path);
            match key_of(below) {
                Ok(key) => {
                    let is_other = below != Path::new(&key);
                    let other_path = is_other.then(|| below.into());
                    self.texts.push(TextFile { key, other_path });
                }
                Err(problem) => self.problems.push(format!("{}: {problem}", shown(&path))),
            }
        } else {
            self.passed_over.other += 1;
        }
    }

    fn cannot(&mut self, what: &str, path: &Path, error: &std::io::Error) {
        // A name that is not UTF-8 is no key, and may hide one in the folder around it.
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let known = below.ancestors().find_map(|path| key_of(path).ok());
        self.unreadable.push(known.unwrap_or_default());
        let path = shown(path);
        self.problems
            .push(format!("{path}: cannot {what} it: {error}"));
    }

    /// Of files whose names differ in the form of Unicode alone, the first is the note.
    fn drop_twins(&mut self) {
        let (root, problems) = (&self.root, &mut self.problems);
        let path =
            |file: &TextFile| root.join(file.other_path.as_deref().unwrap_or(Path::new(&file.key)));
        self.texts.dedup_by(|file, first| {
            let is_twin = file.key == first.key;
            if is_twin {
                let (file, first) = (path(file), path(first));
                problems.push(format!(
                    "{file:?}: {first:?} has the same name in another form of Unicode; rename one"
                ));
            }
            is_twin
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
            (self.other, "of other types"),
            (self.hidden, "hidden"),
            (self.binary, "binary"),
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
    has_extension(path, &["md", "txt", "log"]) || is_html(path)
}

/// Whether a file is a page by its name.
pub(super) fn is_html(path: &Path) -> bool {
    has_extension(path, &["html", "htm"])
}

/// Whether a file is CSV by its name.
pub(super) fn is_csv(path: &Path) -> bool {
    has_extension(path, &["csv"]) || is_tsv(path)
}

/// Whether its values are separated by tabs.
pub(super) fn is_tsv(path: &Path) -> bool {
    has_extension(path, &["tsv"])
}

/// Whether a file may be JSONL by its name. A pipe of the shell, such as `/dev/fd/63`, has no extension.
pub(super) fn may_be_jsonl(path: &Path) -> bool {
    path.extension().is_none() || has_extension(path, &["jsonl", "ndjson", "json"])
}

fn has_extension(path: &Path, known: &[&str]) -> bool {
    let is_known = |of_path: &OsStr| {
        known
            .iter()
            .any(|known| of_path.eq_ignore_ascii_case(known))
    };
    path.extension().is_some_and(is_known)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn extensions_compare_without_case() {
        for name in ["a.md", "UPPER.MD", "b.Txt", "c.d.TXT", "e.log", "f.Html"] {
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
            binary: 0,
        };
        let reasons = passed_over.reasons().expect("two reasons hold");
        assert_eq!(reasons, "2 of other types, 1 symbolic link");
    }

    #[test]
    fn what_is_in_an_unreadable_folder_is_unknown() {
        let with = |unreadable: &str| Files {
            unreadable: vec![unreadable.into()],
            ..Files::default()
        };
        for (unreadable, key, is_unknown) in [
            ("a", "a/b.md", true),
            ("a/b.md", "a/b.md", true),
            ("a", "ab/c.md", false),
            ("a/b", "a/c.md", false),
            ("", "a/c.md", true),
        ] {
            assert_eq!(
                with(unreadable).may_have(key),
                is_unknown,
                "{unreadable} {key}"
            );
        }
        assert!(!Files::default().may_have("a.md"));
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
