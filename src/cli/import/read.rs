//! The notes of what `elf import` is given: a folder, a file, lines or rows.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::file::Contents;
use super::folder::{Files, PassedOver, is_csv, is_text, is_tsv, key_of, may_be_jsonl, shown};
use super::lines::{self, Place};
use super::note::{self, Line};
use super::table::Table;
use super::write::{Placed, Read, Unread};
use super::{Args, text};
use crate::cli::output::print_error;
use crate::metadata::Declared;
use crate::store::ImportedNote;

/// JSON writes a character in six bytes at most, and a line has other fields.
const JSON_OF_A_BYTE: u64 = 6;
const MAX_OTHER_FIELDS: u64 = 1 << 20;

/// What a file is read with.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub args: &'a Args,
    /// `worker.max_note_bytes`
    pub max_note_bytes: u64,
    /// Which fields of metadata have a type.
    pub declared: &'a Declared,
}

pub(super) type Notes<'a> = Box<dyn Iterator<Item = Read> + 'a>;

impl<'a> Reading<'a> {
    /// The notes of the path of the arguments, and which files in it are none.
    pub fn notes(self) -> anyhow::Result<(Notes<'a>, PassedOver)> {
        let (args, path) = (self.args, &self.args.path);
        let none = PassedOver::default();
        if path.as_os_str() == "-" {
            let stdin = BufReader::new(std::io::stdin());
            return Ok((self.lines_or_rows("stdin".to_owned(), stdin)?, none));
        }
        let name = shown(path);
        let metadata = path
            .metadata()
            .with_context(|| format!("failed to read {name}"))?;
        if metadata.is_dir() || is_text(path) && !args.csv {
            args.refuse_fields(&name)?;
        }
        if metadata.is_dir() {
            return self.folder();
        }
        if is_text(path) && !args.csv {
            let note = match key_of(path) {
                Ok(key) => self.text_file(key, path),
                Err(problem) => Err(Unread::Problem(format!("{name}: {problem}"))),
            };
            return Ok((Box::new(std::iter::once(note)), none));
        }
        anyhow::ensure!(
            args.csv || is_csv(path) || may_be_jsonl(path),
            "cannot import {name}: `elf import` reads folders, .md, .txt, .log and .html files, CSV (.csv, .tsv, or \
             with --csv) and JSONL (.jsonl, .ndjson, .json, or - for stdin)"
        );
        let file = File::open(path).with_context(|| format!("failed to open {name}"))?;
        Ok((self.lines_or_rows(name, BufReader::new(file))?, none))
    }

    fn folder(self) -> anyhow::Result<(Notes<'a>, PassedOver)> {
        let mut files = Files::of(&self.args.path);
        if files.texts.is_empty() && files.problems.is_empty() {
            let reasons = files.passed_over.reasons();
            let reasons = reasons.map(|reasons| format!("; files passed over: {reasons}"));
            anyhow::bail!(
                "no .md, .txt, .log or .html file in {}{}",
                shown(&self.args.path),
                reasons.unwrap_or_default()
            );
        }
        let problems = std::mem::take(&mut files.problems);
        let problems = problems
            .into_iter()
            .map(|problem| Err(Unread::Problem(problem)));
        let passed_over = files.passed_over.clone();
        let texts = std::mem::take(&mut files.texts);
        let notes = texts.into_iter().map(move |file| {
            let path = files.path_of(&file);
            self.text_file(file.key, &path)
        });
        Ok((Box::new(problems.chain(notes)), passed_over))
    }

    fn text_file(self, key: String, file: &Path) -> Read {
        self.file(file, |contents| note::of_file(key, contents, self.args))
    }

    /// Reads a file, and makes a note of it.
    pub fn file(
        self,
        file: &Path,
        note: impl FnOnce(Contents) -> anyhow::Result<ImportedNote>,
    ) -> Read {
        let place = shown(file);
        let problem = |problem: anyhow::Error| {
            let words = format!("{place}: {problem:#}");
            match problem.is::<std::io::Error>() {
                true => Unread::Unreadable(words),
                false => Unread::Problem(words),
            }
        };
        let Some(contents) = self.contents(file).map_err(problem)? else {
            print_error(&format!("elf: ignored {place}: a binary file"));
            return Err(Unread::Binary);
        };
        if let Some(warning) = &contents.warning {
            print_error(&format!(
                "elf: {place}: {warning}; it is a part of the text"
            ));
        }
        let note = note(contents).map_err(problem)?;
        Ok(Placed::new(place, note))
    }

    /// What a file says; `None` if it is binary.
    pub fn contents(self, file: &Path) -> anyhow::Result<Option<Contents>> {
        let most = self.max_note_bytes;
        let bytes = text::read_at_most(File::open(file)?, most)?;
        let bytes =
            bytes.with_context(|| format!("longer than worker.max_note_bytes, {most} bytes"))?;
        if text::is_binary(&bytes) {
            return Ok(None);
        }
        let contents = Contents::read(file, bytes);
        contents.map(Some).map_err(anyhow::Error::msg)
    }

    fn lines_or_rows(self, name: String, reader: impl BufRead + 'a) -> anyhow::Result<Notes<'a>> {
        let most = JSON_OF_A_BYTE * self.max_note_bytes + MAX_OTHER_FIELDS;
        match self.args.csv || is_csv(&self.args.path) {
            true => self.rows(name, reader, most),
            false => self.lines(name, reader, most),
        }
    }

    fn rows(self, name: String, reader: impl BufRead + 'a, most: u64) -> anyhow::Result<Notes<'a>> {
        let default = if is_tsv(&self.args.path) { b'\t' } else { b',' };
        let delimiter = self.args.delimiter.unwrap_or(default);
        let table = Table::open(reader, delimiter, most);
        let table = table.with_context(|| format!("failed to read {name}"))?;
        let mapping = self.args.mapping().of_texts(self.declared);
        let checked = table.and_then(|table| mapping.check_columns(&table.columns).map(|()| table));
        let table =
            checked.map_err(|problem| anyhow::anyhow!("cannot import {name}: {problem}"))?;
        let lines = table.map(move |(place, row)| (place, row.and_then(|row| mapping.line(row))));
        Ok(self.distinct(name, lines))
    }

    fn lines(
        self,
        name: String,
        reader: impl BufRead + 'a,
        most: u64,
    ) -> anyhow::Result<Notes<'a>> {
        anyhow::ensure!(
            self.args.delimiter.is_none(),
            "--delimiter is for CSV; with --csv, {name} is read as CSV"
        );
        let objects = lines::objects(reader, most);
        let objects = objects.with_context(|| format!("failed to read {name}"))?;
        let mapping = self.args.has_mapping().then(|| self.args.mapping());
        let parse = move |object: String| match &mapping {
            None => lines::parse(&object),
            Some(mapping) => {
                let object: Map<String, Value> = lines::parse(&object)?;
                mapping.line(object)
            }
        };
        let lines = objects.map(move |(place, object)| (place, object.and_then(&parse)));
        Ok(self.distinct(name, lines))
    }

    /// The notes of lines. Of two lines of one note, the second replaces the first.
    fn distinct(
        self,
        name: String,
        lines: impl Iterator<Item = (Place, Result<Line, String>)> + 'a,
    ) -> Notes<'a> {
        let mut seen: HashMap<Uuid, Place> = HashMap::new();
        Box::new(lines.map(move |(place, line)| {
            let note = line.and_then(|line| {
                let note = note::of_line(line, self.args);
                note.map_err(|problem| format!("{problem:#}"))
            });
            let note =
                note.map_err(|problem| Unread::Problem(format!("{name}{place}: {problem}")))?;
            if let Some(before) = seen.insert(note.note_id, place) {
                print_error(&format!(
                    "elf: {name}{place} replaces what {name}{before} says of the same note"
                ));
            }
            Ok(Placed::new(format!("{name}{place}"), note))
        }))
    }
}
