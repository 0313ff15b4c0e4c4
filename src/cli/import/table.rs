//! The rows of CSV.

use std::io::{self, BufRead, Cursor, Read};

use csv::{ByteRecord, Position, Reader, ReaderBuilder, Terminator};
use serde_json::{Map, Value};

use super::lines::Place;
use super::text::{decode, is_utf16};

/// A row with its place, or what is wrong there.
pub(super) type Row = (Place, Result<Map<String, Value>, String>);

/// The rows of a table whose first row has the names of the columns. A row of more than `most` bytes is a problem. A
/// table in UTF-16 is held in memory.
pub(super) struct Table<'a> {
    reader: Reader<Limited<Box<dyn BufRead + 'a>>>,
    /// The names, in the order of the columns; a column without one is passed over.
    pub columns: Vec<String>,
    most: u64,
    has_ended: bool,
}

impl<'a> Table<'a> {
    /// Reads the header. The error says what is wrong with it.
    pub fn open(
        mut reader: impl BufRead + 'a,
        delimiter: u8,
        most: u64,
    ) -> io::Result<Result<Self, String>> {
        let mut head = Vec::new();
        reader.by_ref().take(4).read_to_end(&mut head)?;
        let is_wide = is_utf16(&head);
        let mut reader = Cursor::new(head).chain(reader);
        let reader: Box<dyn BufRead + 'a> = match is_wide {
            false => Box::new(reader),
            true => {
                let mut bytes = Vec::new();
                reader.read_to_end(&mut bytes)?;
                match decode(bytes) {
                    Ok(text) => Box::new(Cursor::new(text)),
                    Err(problem) => return Ok(Err(problem)),
                }
            }
        };
        let limited = Limited { reader, left: most };
        let mut reader = ReaderBuilder::new()
            .delimiter(delimiter)
            // With `\r\n` as one, the lines that it counts are those before.
            .terminator(Terminator::Any(b'\n'))
            // A row of another length is named, here.
            .flexible(true)
            .from_reader(limited);
        let columns = match reader.byte_headers() {
            Ok(header) => header
                .iter()
                .map(|name| Ok(std::str::from_utf8(name)?.trim().to_owned()))
                .collect(),
            Err(error) => return Ok(Err(format!("its header cannot be read: {error}"))),
        };
        Ok(check_header(columns).map(|columns| Self {
            reader,
            columns,
            most,
            has_ended: false,
        }))
    }

    fn object(&self, row: &ByteRecord) -> Result<Map<String, Value>, String> {
        let (columns, fields) = (self.columns.len(), row.len());
        if columns != fields {
            return Err(format!("{fields} columns instead of {columns}"));
        }
        let mut object = Map::new();
        for (at, (name, field)) in self.columns.iter().zip(row).enumerate() {
            let is_last = at + 1 == columns;
            let field = std::str::from_utf8(field).map_err(|_| {
                format!("{name:?} is not UTF-8; convert the file, for example with iconv -t UTF-8")
            })?;
            let field = field
                .strip_suffix('\r')
                .filter(|_| is_last)
                .unwrap_or(field);
            if !name.is_empty() && !field.is_empty() {
                object.insert(name.clone(), field.into());
            }
        }
        Ok(object)
    }
}

/// Whether a row is a blank line that ends in `\r\n`.
fn is_blank(row: &ByteRecord) -> bool {
    row.len() == 1 && row.get(0) == Some(b"\r")
}

fn check_header(columns: Result<Vec<String>, std::str::Utf8Error>) -> Result<Vec<String>, String> {
    let columns = columns.map_err(|_| {
        "its header is not UTF-8; convert it, for example with iconv -t UTF-8".to_owned()
    })?;
    for (at, name) in columns.iter().enumerate() {
        if !name.is_empty() && columns[..at].contains(name) {
            return Err(format!("two columns have the name {name:?}"));
        }
    }
    match columns.as_slice() {
        [] => Err("it has no header: the first row names the columns".into()),
        [one] if one.contains([';', '\t']) => Err(format!(
            "its header is one column, {one:?}: name what separates the columns with --delimiter"
        )),
        _ => Ok(columns),
    }
}

impl Iterator for Table<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        if self.has_ended {
            return None;
        }
        let mut row = ByteRecord::new();
        loop {
            self.reader.get_mut().left = self.most;
            match self.reader.read_byte_record(&mut row) {
                Ok(false) => return None,
                Ok(true) if is_blank(&row) => {}
                Ok(true) => {
                    let line = row.position().map_or(0, Position::line);
                    return Some((Place::Line(line), self.object(&row)));
                }
                Err(error) => {
                    self.has_ended = true;
                    let place = Place::Line(self.reader.position().line());
                    let problem = format!("this and what follows cannot be read: {error}");
                    return Some((place, Err(problem)));
                }
            }
        }
    }
}

/// A reader that fails where a row is too long: a quote that nothing closes makes one of the rest of the file.
struct Limited<R> {
    reader: R,
    /// Bytes until that.
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other(
                "a row is too long; a quote may not be closed",
            ));
        }
        let read = self.reader.read(buffer)?;
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use serde_json::json;

    use super::*;

    fn open(bytes: &[u8], delimiter: u8) -> Result<Table<'_>, String> {
        Table::open(Cursor::new(bytes), delimiter, 100_000).unwrap()
    }

    fn rows(bytes: &[u8]) -> Vec<(Place, Value)> {
        let rows = open(bytes, b',').unwrap();
        rows.map(|(place, row)| (place, row.map_or_else(Value::from, Value::Object)))
            .collect()
    }

    #[test]
    fn rows_have_quotes_line_breaks_and_marks() {
        let table =
            "\u{feff}sku,name,,note\r\n1,\"A \"\"b\"\", c\",x,\"two\nlines\"\r\n\r\n2,,,\r\n";
        let expected = [
            (
                Place::Line(2),
                json!({"sku": "1", "name": "A \"b\", c", "note": "two\nlines"}),
            ),
            (Place::Line(5), json!({"sku": "2"})),
        ];
        assert_eq!(rows(table.as_bytes()), expected);
        let wide: Vec<u8> = table.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(rows(&wide), expected);
        let mut tabs = open(b"a\tb\n1\t2,3\n", b'\t').unwrap();
        assert_eq!(
            Value::Object(tabs.next().unwrap().1.unwrap()),
            json!({"a": "1", "b": "2,3"})
        );
    }

    #[test]
    fn bad_rows_are_named_and_the_others_are_read() {
        let read = rows(b"a,b\n1,2\n3\n4,5,6\n7,\xff\n8,9\n");
        let places: Vec<Place> = read.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [2, 3, 4, 5, 6].map(Place::Line));
        for (at, problem) in [
            (1, "1 columns instead of 2"),
            (2, "3 columns"),
            (3, "\"b\" is not UTF-8"),
        ] {
            assert!(
                read[at].1.as_str().unwrap().contains(problem),
                "{:?}",
                read[at]
            );
        }
        assert_eq!(read[4].1, json!({"a": "8", "b": "9"}));
        let open = format!("a,b\n1,2\n3,\"not closed\n{}", "x,y\n".repeat(100_000));
        let read = rows(open.as_bytes());
        assert_eq!(read.len(), 2);
        assert!(
            read[1]
                .1
                .as_str()
                .unwrap()
                .contains("a quote may not be closed"),
            "{:?}",
            read[1]
        );
    }

    #[test]
    fn a_header_that_names_no_columns_is_named() {
        for (table, problem) in [
            (&b""[..], "no header"),
            (b"a;b\n1;2\n", "--delimiter"),
            (b"a,b,a\n", "two columns have the name \"a\""),
            (b"\xff,b\n", "not UTF-8"),
        ] {
            let said = open(table, b',').err().unwrap();
            assert!(said.contains(problem), "{said}");
        }
    }
}
