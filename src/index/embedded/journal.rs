//! The journal of a collection: updates that are answered but not yet flushed.
//!
//! A flush of the engine syncs about a hundred files: 0.47 s for one point, on a disk
//! where one sync of one file takes 4 ms. So the writer writes an update here first,
//! then applies it, then answers it. The engine flushes when the journal has grown.
//!
//! After a crash the journal is applied again from its beginning, over segments
//! that may hold any part of it already. That gives the same points: the updates
//! come in the same order, each meets the points that the ones before it wrote, and
//! the last update of a point is applied again.
//!
//! A record is `length: u32 LE`, the first 8 bytes of the SHA-256 of what follows,
//! and `length` bytes of JSON. The first record whose length or hash is wrong is the
//! torn end of the last write, which was never answered.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use qdrant_edge::UpdateOperation;
use sha2::{Digest, Sha256};

use super::folder::private_file;

const LENGTH_BYTES: usize = 4;
const CHECK_BYTES: usize = 8;

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// Length of the whole records.
    bytes: u64,
    /// Whether a torn record may follow them. It must be cut off before the next append,
    /// because reading stops at it.
    torn: bool,
}

/// The record of operations that are one update.
pub(super) fn record(operations: &[UpdateOperation]) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(operations)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    let mut record = Vec::with_capacity(LENGTH_BYTES + CHECK_BYTES + json.len());
    record.extend(length.to_le_bytes());
    record.extend(check(&json));
    record.extend(json);
    Ok(record)
}

impl Journal {
    /// Opens the journal, or makes it, and passes every whole record to `apply`, in
    /// order.
    pub(super) fn open(
        path: &Path,
        mut apply: impl FnMut(Vec<UpdateOperation>),
    ) -> io::Result<Self> {
        let file = private_file().read(true).truncate(false).open(path)?;
        let mut reader = BufReader::new(&file);
        let mut bytes = 0;
        while let Some(json) = next(&mut reader)? {
            bytes += (LENGTH_BYTES + CHECK_BYTES + json.len()) as u64;
            apply(serde_json::from_slice(&json)?);
        }
        let mut journal = Self {
            file,
            bytes,
            torn: true,
        };
        journal.cut()?;
        Ok(journal)
    }

    /// Appends records. They are on disk when this returns `Ok`; none of them is
    /// in the journal when it fails.
    pub(super) fn append<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        if self.torn {
            self.cut()?;
        }
        let records: Vec<u8> = records.flatten().copied().collect();
        // Until the sync has succeeded. On a full disk the cut may fail, too.
        self.torn = true;
        let written = self.file.write_all(&records);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            let _ = self.cut();
            return Err(error);
        }
        self.torn = false;
        self.bytes += records.len() as u64;
        Ok(())
    }

    /// Removes all records. The engine must have flushed their updates.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.bytes = 0;
        self.torn = true;
        self.cut()?;
        self.file.sync_all()
    }

    /// Length of all records.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts off whatever follows the last whole record.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.bytes)?;
        self.file.seek(SeekFrom::Start(self.bytes))?;
        self.torn = false;
        Ok(())
    }
}

/// The next whole record; `None` at the end or at a torn one.
fn next(reader: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; LENGTH_BYTES + CHECK_BYTES];
    if !filled(reader.read_exact(&mut head))? {
        return Ok(None);
    }
    let (length, wanted) = head.split_at(LENGTH_BYTES);
    let length = u32::from_le_bytes(length.try_into().expect("split there"));
    let mut json = Vec::new();
    // Reads only what exists: a torn length does not allocate gigabytes.
    reader.take(length.into()).read_to_end(&mut json)?;
    let whole = json.len() == length as usize && check(&json) == wanted;
    Ok(whole.then_some(json))
}

fn filled(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn check(json: &[u8]) -> [u8; CHECK_BYTES] {
    let digest = Sha256::digest(json);
    std::array::from_fn(|i| digest[i])
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::config::Bm25Options;
    use crate::index::embedded::convert;
    use crate::index::payload::test_payload;
    use crate::index::{Filter, Point, Relabel, UpsertMode};
    use crate::metadata::{self, FieldType};

    fn updates() -> Vec<Vec<UpdateOperation>> {
        let bm25 = convert::bm25(&Bm25Options::default()).unwrap();
        let vector = vec![0.1, -1.0 / 3.0, f32::MIN_POSITIVE, 3.402_823_5e38];
        let point = Point {
            payload: test_payload(),
            vector: Some(vector),
            lead: String::new(),
            text: "a pump".into(),
        };
        let filter = Filter {
            chunk_ids: Some(vec![uuid::Uuid::nil(), uuid::Uuid::max()]),
            note_ids: Some(vec![uuid::Uuid::nil()]),
            except_chunk_ids: Some(vec![uuid::Uuid::max()]),
            revision_below: Some(7),
            revision_above: Some(3),
            live_at: Some(test_payload().note.labels.updated_at),
            updated_after: Some(test_payload().note.labels.updated_at),
            updated_before: Some(test_payload().note.labels.updated_at),
            min_importance: Some(0.7),
            keywords: [("scope".to_owned(), "my team".to_owned())].into(),
            fields: {
                let asked = serde_json::json!({"n": {"gte": 3}, "at": "2026-01-01", "k": "a"});
                let declared = [
                    ("n", FieldType::Number),
                    ("at", FieldType::Datetime),
                    ("k", FieldType::Keyword),
                ];
                let declared = declared.map(|(name, kind)| (name.to_owned(), kind)).into();
                metadata::conditions(asked.as_object().unwrap(), &declared).unwrap()
            },
        };
        let relabel = Relabel {
            from: 3,
            to: test_payload().note,
        };
        vec![
            convert::upserts(vec![point.clone()], UpsertMode::NotNewer, &bm25),
            convert::upserts(vec![point], UpsertMode::InsertOnly, &bm25),
            vec![
                convert::delete(&filter),
                convert::delete(&Filter::default()),
                convert::relabel(&relabel),
            ],
        ]
    }

    fn read(path: &Path) -> Vec<Vec<UpdateOperation>> {
        let mut found = Vec::new();
        Journal::open(path, |operations| found.push(operations)).unwrap();
        found
    }

    fn write(path: &Path, updates: &[Vec<UpdateOperation>]) {
        let mut journal = Journal::open(path, |_| {}).unwrap();
        let records: Vec<_> = updates
            .iter()
            .map(|operations| record(operations).unwrap())
            .collect();
        journal.append(records.iter().map(Vec::as_slice)).unwrap();
    }

    #[test]
    fn updates_come_back_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        write(&path, &updates());
        assert_eq!(read(&path), updates());
    }

    #[test]
    fn a_torn_end_costs_only_itself_wherever_it_tears() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let updates = updates();
        write(&path, &updates[..2]);
        let whole = std::fs::metadata(&path).unwrap().len();
        write(&path, &updates[2..]);
        let full = std::fs::read(&path).unwrap();
        for torn in whole as usize..full.len() {
            std::fs::write(&path, &full[..torn]).unwrap();
            assert_eq!(read(&path), updates[..2], "torn at byte {torn}");
            assert_eq!(
                std::fs::metadata(&path).unwrap().len(),
                whole,
                "the rest is cut off"
            );
        }
        // A block that never reached the disk reads as zeros.
        let mut zeros = full.clone();
        zeros[whole as usize + 20..].fill(0);
        std::fs::write(&path, zeros).unwrap();
        write(&path, &updates[..1]);
        assert_eq!(read(&path), [&updates[..2], &updates[..1]].concat());
    }

    /// A write fails halfway, and then the cut that should undo it fails as well.
    #[test]
    fn what_a_double_fault_left_does_not_hide_what_comes_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let records: Vec<_> = updates().iter().map(|u| record(u).unwrap()).collect();
        let append = |journal: &mut Journal, of: &[u8]| journal.append(std::iter::once(of));
        let mut journal = Journal::open(&path, |_| {}).unwrap();
        append(&mut journal, &records[0]).unwrap();
        // A file that cannot be written cannot be cut either.
        let writable = std::mem::replace(&mut journal.file, File::open(&path).unwrap());
        append(&mut journal, &records[1]).unwrap_err();
        journal.file = writable;
        journal.file.write_all(&records[1][..20]).unwrap();
        append(&mut journal, &records[2]).unwrap();
        assert_eq!(read(&path), [updates()[0].clone(), updates()[2].clone()]);
    }

    #[test]
    fn a_cleared_journal_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        write(&path, &updates());
        let mut journal = Journal::open(&path, |_| {}).unwrap();
        assert!(journal.bytes() > 0);
        journal.clear().unwrap();
        let records = record(&updates()[2]).unwrap();
        journal.append(std::iter::once(records.as_slice())).unwrap();
        assert_eq!(journal.bytes(), records.len() as u64);
        assert_eq!(read(&path), updates()[2..]);
    }
}
