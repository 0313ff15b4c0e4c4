//! The lines of JSONL.

use std::fmt;
use std::io::{self, BufRead, Cursor, Read};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::text::{decode, is_utf16, utf8};

/// Where an object is in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Line(u64),
    /// Of an array.
    Item(u64),
    All,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(number) => write!(f, ":{number}"),
            Self::Item(number) => write!(f, ": item {number}"),
            Self::All => Ok(()),
        }
    }
}

/// An object of JSONL with its place, or what is wrong there.
pub(super) type Object = (Place, Result<String, String>);

/// The objects of a file, one a line. A line that is longer than `most` bytes is a problem. An array
/// of objects is read too, and a file in UTF-16; these are held in memory.
pub(super) fn objects<'a>(
    mut reader: impl BufRead + 'a,
    most: u64,
) -> io::Result<Box<dyn Iterator<Item = Object> + 'a>> {
    let mut head = Vec::new();
    reader.by_ref().take(4).read_to_end(&mut head)?;
    let only = |problem: String| Box::new(std::iter::once((Place::All, Err(problem))));
    if is_compressed(&head) {
        return Ok(only("a compressed file; unpack it first".into()));
    }
    let is_wide = is_utf16(&head);
    let mut reader = Cursor::new(head).chain(reader);
    if is_wide {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        return Ok(match decode(bytes) {
            Ok(text) => Box::new(Lines::new(Cursor::new(text), most)),
            Err(problem) => only(problem),
        });
    }
    Ok(Box::new(Lines::new(reader, most)))
}

/// gzip, zip and Zstandard.
fn is_compressed(head: &[u8]) -> bool {
    [&b"\x1f\x8b"[..], b"PK\x03\x04", b"\x28\xb5\x2f\xfd"]
        .iter()
        .any(|magic| head.starts_with(magic))
}

/// Reads a line. The error says at which column it is wrong.
pub(super) fn parse<'l, T: Deserialize<'l>>(line: &'l str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| {
        let said = error.to_string();
        // The line that serde counts is always the first.
        let what = said.split(" at line ").next().unwrap_or(&said);
        let what = what.replace("struct Line", "an object with \"text\"");
        let hint = match line.contains('\0') {
            true => "; it looks like UTF-16 without a byte order mark: convert it to UTF-8",
            false => "",
        };
        format!("column {}: {what}{hint}", error.column())
    })
}

struct Lines<R> {
    reader: R,
    most: u64,
    /// The number of the line, and then of the item.
    number: u64,
    /// Whether a line had something in it.
    has_begun: bool,
    /// The rest of an array.
    items: std::vec::IntoIter<Box<RawValue>>,
    /// Whether no line follows.
    has_ended: bool,
}

impl<R: BufRead> Lines<R> {
    fn new(reader: R, most: u64) -> Self {
        Self {
            reader,
            most,
            number: 0,
            has_begun: false,
            items: Vec::new().into_iter(),
            has_ended: false,
        }
    }

    /// The next line that is not blank; `None` at the end.
    fn next_line(&mut self) -> Option<Result<String, String>> {
        loop {
            let mut line = Vec::new();
            let limited = self.reader.by_ref().take(self.most + 1);
            let read = { limited }.read_until(b'\n', &mut line);
            self.number += 1;
            match read {
                Ok(0) => return None,
                Ok(_) if line.len() as u64 > self.most && !line.ends_with(b"\n") => {
                    return Some(Err(self.skip_line()));
                }
                Ok(_) => {}
                Err(error) => return Some(Err(self.end_by(&error))),
            }
            match utf8(line) {
                Ok(line) if line.trim().is_empty() => {}
                line => return Some(line),
            }
        }
    }

    /// Reads the rest of a line that is too long.
    fn skip_line(&mut self) -> String {
        loop {
            let mut rest = Vec::new();
            match self
                .reader
                .by_ref()
                .take(1 << 16)
                .read_until(b'\n', &mut rest)
            {
                Ok(_) if rest.is_empty() || rest.ends_with(b"\n") => break,
                Ok(_) => {}
                Err(error) => return self.end_by(&error),
            }
        }
        let most = self.most;
        format!("longer than {most} bytes, more than a note of worker.max_note_bytes needs")
    }

    /// Reading on would give the same error for ever.
    fn end_by(&mut self, error: &io::Error) -> String {
        self.has_ended = true;
        format!("this and what follows cannot be read: {error}")
    }

    /// Reads the rest of an array that begins with `line`.
    fn read_array(&mut self, line: String) -> Option<Object> {
        let begin = Place::Line(self.number);
        let mut text = line.into_bytes();
        if let Err(error) = self.reader.read_to_end(&mut text) {
            return Some((begin, Err(self.end_by(&error))));
        }
        self.has_ended = true;
        match serde_json::from_slice::<Vec<Box<RawValue>>>(&text) {
            Ok(items) => {
                self.items = items.into_iter();
                self.number = 0;
                self.next_item()
            }
            Err(error) => {
                let problem = format!("neither JSONL nor an array of JSON: {error}");
                Some((begin, Err(problem)))
            }
        }
    }

    fn next_item(&mut self) -> Option<Object> {
        let item = self.items.next()?;
        self.number += 1;
        Some((Place::Item(self.number), Ok(item.get().to_owned())))
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Object;

    fn next(&mut self) -> Option<Object> {
        if self.has_ended {
            return self.next_item();
        }
        let line = self.next_line()?;
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        match line {
            Ok(line) if is_first && line.trim_start().starts_with('[') => self.read_array(line),
            line => Some((Place::Line(self.number), line)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::Place::{All, Item, Line};
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Object> {
        objects(Cursor::new(bytes), 20).unwrap().collect()
    }

    fn object(place: Place, text: &str) -> Object {
        (place, Ok(text.into()))
    }

    #[track_caller]
    fn assert_wrong((place, object): &Object, at: Place, word: &str) {
        let problem = object.as_ref().unwrap_err();
        assert!(
            *place == at && problem.contains(word),
            "{place:?}: {problem}"
        );
    }

    #[test]
    fn lines_end_in_several_ways_and_blank_ones_count() {
        let expected = [object(Line(1), "{1}\n"), object(Line(4), "{2}")];
        assert_eq!(read(b"{1}\n\n  \t\n{2}"), expected);
        let marked = read(b"\xef\xbb\xbf{1}\r\n\r\n\xef\xbb\xbf{2}\r\n");
        let expected = [object(Line(1), "{1}\r\n"), object(Line(3), "{2}\r\n")];
        assert_eq!(marked, expected);
        assert_eq!(read(b""), []);
        assert_eq!(read(b"\xef\xbb\xbf"), []);
    }

    #[test]
    fn utf16_and_arrays_are_read() {
        let wide = "\u{feff}{1}\n{2}".encode_utf16();
        let wide: Vec<u8> = wide.flat_map(u16::to_le_bytes).collect();
        assert_eq!(
            read(&wide),
            [object(Line(1), "{1}\n"), object(Line(2), "{2}")]
        );
        let items = [object(Item(1), "{\"a\":1}"), object(Item(2), "2")];
        assert_eq!(read(b"[{\"a\":1},2]"), items);
        assert_eq!(read(b"\n[\n  {\"a\":1},\n  2\n]\n"), items);
    }

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_is_read() {
        let objects = read(&[&b"{1}\n"[..], &[b'x'; 100], b"\n{2}"].concat());
        assert_wrong(&objects[1], Line(2), "longer than 20 bytes");
        assert_eq!(objects[2], object(Line(3), "{2}"));
        let objects = read(b"{1}\n\xff\n{2}");
        assert_wrong(&objects[1], Line(2), "not UTF-8");
        assert_eq!(objects.len(), 3);
        for packed in [&b"\x1f\x8b\x08\0"[..], b"PK\x03\x04..."] {
            let objects = read(packed);
            assert_wrong(&objects[0], All, "compressed");
            assert_eq!(objects.len(), 1);
        }
        let objects = read(b"[1, 2\n{3}");
        assert_wrong(&objects[0], Line(1), "neither");
        assert_eq!(objects.len(), 1);
    }

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is broken"))
        }
    }

    #[test]
    fn a_disk_that_fails_ends_the_lines() {
        let reader = io::BufReader::new(b"{1}\n{2}\n".chain(Broken));
        let objects: Vec<Object> = objects(reader, 20).unwrap().collect();
        assert_eq!(objects.len(), 3);
        assert_wrong(&objects[2], Line(3), "the disk is broken");
    }
}
