//! What is known about each character, found out when a text has the first of them.

use std::sync::OnceLock;

/// Characters whose memory is allocated together.
const PAGE: usize = 128;
const PAGES: usize = (char::MAX as usize + 1) / PAGE;

type Page<T> = Box<[OnceLock<T>; PAGE]>;

/// A `T` for each character.
pub(super) struct Characters<T> {
    pages: Box<[OnceLock<Page<T>>]>,
}

impl<T> Characters<T> {
    pub(super) fn new() -> Self {
        Self {
            pages: std::iter::repeat_with(OnceLock::new).take(PAGES).collect(),
        }
    }

    pub(super) fn get_or_init(&self, c: char, find_out: impl FnOnce() -> T) -> &T {
        let place = c as usize;
        let page =
            self.pages[place / PAGE].get_or_init(|| Box::new([const { OnceLock::new() }; PAGE]));
        page[place % PAGE].get_or_init(find_out)
    }
}

/// The letters of a word after normalisation. Memory that is used again for each word.
#[derive(Debug, Default)]
pub(super) struct Letters {
    pub(super) word: Vec<char>,
    /// Where each letter comes from: first byte, and behind the last.
    places: Vec<(u32, u32)>,
    /// Where the tokens of `word` end, in letters.
    pub(super) ends: Vec<usize>,
}

impl Letters {
    pub(super) fn clear(&mut self) {
        self.word.clear();
        self.places.clear();
        self.ends.clear();
    }

    /// Adds a letter that comes from these bytes.
    pub(super) fn push(&mut self, letter: char, start: usize, end: usize) {
        self.word.push(letter);
        let place = |byte| u32::try_from(byte).expect("a segment of a text has few bytes");
        self.places.push((place(start), place(end)));
    }

    /// The bytes that these letters come from: first, and behind the last.
    pub(super) fn bytes_of(&self, letters: std::ops::Range<usize>) -> (usize, usize) {
        let (start, end) = (self.places[letters.start].0, self.places[letters.end - 1].1);
        (start as usize, end as usize)
    }
}
