//! Finds the tokens of a piece as byte-level BPE would make them, without making them.
//!
//! BPE begins with the bytes of the piece and merges, as long as it can, the neighbours whose merge
//! was learnt first. Most pieces of a text are one token: a set of the pieces that become one answers
//! for them. For the others there is the table of merges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use serde::Deserialize;
use tokenizers::models::bpe::BPE;

/// A merge's place in the table: 20 bits for each of its parts, 24 for its rank.
const ID_BITS: u32 = 20;
const RANK_BITS: u32 = 24;

/// No pair of tokens has all of these bits.
const EMPTY: u64 = u64::MAX;

/// "These neighbours do not merge."
const NEVER: u32 = u32::MAX;

/// In a longer piece, the next merge comes from a heap. In a shorter one it is faster to look at all.
const LONG_PIECE: usize = 96;

/// The longest piece whose bytes fit a `u128`, with their number.
const PACKED: usize = 15;

/// The merges of a vocabulary. Tokens are numbers.
pub(super) struct Bpe {
    /// The token of each byte.
    bytes: Box<[u32; 256]>,
    /// A hash table: the parts and the rank of each merge.
    merges: Box<[u64]>,
    /// What the merge of each rank makes.
    merged: Vec<u32>,
    /// Pieces of up to [`PACKED`] bytes that become one token, another hash table.
    short: Box<[u128]>,
    long: HashSet<Box<[u8]>>,
}

/// Memory that is used again for each piece.
#[derive(Debug, Default)]
pub(super) struct Parts {
    tokens: Vec<u32>,
    /// Where each token ends, in bytes of the piece.
    ends: Vec<usize>,
    /// The rank of the merge of each token and the next one.
    ranks: Vec<u32>,
}

/// What the library does not tell of its model: pairs, or lines as in older files.
#[derive(Deserialize)]
struct File<M> {
    model: ModelOfFile<M>,
}

#[derive(Deserialize)]
struct ModelOfFile<M> {
    merges: Vec<M>,
}

fn merges_of(json: &[u8]) -> Option<Vec<(String, String)>> {
    if let Ok(file) = serde_json::from_slice::<File<(String, String)>>(json) {
        return Some(file.model.merges);
    }
    let file: File<String> = serde_json::from_slice(json).ok()?;
    let merges = file
        .model
        .merges
        .iter()
        .filter(|line| !line.starts_with("#version"));
    merges
        .map(|line| line.split_once(' '))
        .map(|parts| parts.map(|(left, right)| (left.to_owned(), right.to_owned())))
        .collect()
}

impl Bpe {
    /// The model of a `tokenizer.json`. `None` if it does more than merge bytes.
    pub(super) fn new(model: &BPE, json: &[u8]) -> Option<Self> {
        let is_plain = model.dropout.is_none()
            && model
                .continuing_subword_prefix
                .as_deref()
                .unwrap_or_default()
                .is_empty()
            && model
                .end_of_word_suffix
                .as_deref()
                .unwrap_or_default()
                .is_empty();
        if !is_plain {
            return None;
        }
        let vocabulary = model.get_vocab();
        let letters = letters_of_bytes();
        let mut bytes = Box::new([0; 256]);
        for (token, letter) in bytes.iter_mut().zip(letters) {
            *token = *vocabulary.get(letter.encode_utf8(&mut [0; 4]))?;
        }

        let merges = merges_of(json)?;
        let mut parts_of_merges = Vec::with_capacity(merges.len());
        let mut merged = Vec::with_capacity(merges.len());
        for (left, right) in merges {
            parts_of_merges.push((*vocabulary.get(&left)?, *vocabulary.get(&right)?));
            merged.push(*vocabulary.get(&(left + &right))?);
        }
        let largest = vocabulary.values().copied().max()?;
        if largest >= 1 << ID_BITS || merged.len() >= 1 << RANK_BITS {
            return None;
        }

        let mut bpe = Self {
            bytes,
            merges: vec![EMPTY; (2 * merged.len()).next_power_of_two()].into(),
            merged,
            short: Box::default(),
            long: HashSet::new(),
        };
        for (rank, (left, right)) in parts_of_merges.into_iter().enumerate() {
            let slot = bpe.slot_of_merge(left, right);
            bpe.merges[slot] = pair(left, right) << RANK_BITS | rank as u64;
        }
        bpe.remember_whole_pieces(vocabulary.keys(), &letters, model.ignore_merges);
        Some(bpe)
    }

    fn remember_whole_pieces<'v>(
        &mut self,
        vocabulary: impl Iterator<Item = &'v String>,
        letters: &[char; 256],
        ignore_merges: bool,
    ) {
        let mut bytes = vec![None; 0x200];
        for (byte, &letter) in letters.iter().enumerate() {
            bytes[letter as usize] = u8::try_from(byte).ok();
        }
        let bytes_of = |token: &String| -> Option<Vec<u8>> {
            token
                .chars()
                .map(|letter| bytes.get(letter as usize).copied().flatten())
                .collect()
        };
        let mut parts = Parts::default();
        let pieces = vocabulary.filter_map(bytes_of);
        let pieces: Vec<Vec<u8>> = pieces
            .filter(|piece| {
                ignore_merges || {
                    self.merge(piece, &mut parts);
                    parts.ends.len() == 1
                }
            })
            .collect();
        self.short = vec![0; (2 * pieces.len()).next_power_of_two()].into();
        for piece in pieces {
            match packed(&piece) {
                Some(key) => {
                    let slot = self.slot_of_piece(key);
                    self.short[slot] = key;
                }
                None => {
                    self.long.insert(piece.into());
                }
            }
        }
    }

    /// Calls `each` with the end of every token of a piece, in bytes of the piece.
    pub(super) fn token_ends(&self, piece: &[u8], parts: &mut Parts, mut each: impl FnMut(usize)) {
        let is_whole = match packed(piece) {
            Some(key) => piece.len() == 1 || self.short[self.slot_of_piece(key)] == key,
            None => self.long.contains(piece),
        };
        if is_whole {
            return each(piece.len());
        }
        self.merge(piece, parts);
        parts.ends.iter().copied().for_each(each);
    }

    /// Fills `parts` with the tokens of a piece.
    fn merge(&self, piece: &[u8], parts: &mut Parts) {
        let Parts {
            tokens,
            ends,
            ranks,
        } = parts;
        tokens.clear();
        tokens.extend(piece.iter().map(|&byte| self.bytes[usize::from(byte)]));
        ends.clear();
        ends.extend(1..=piece.len());
        if piece.len() > LONG_PIECE {
            return self.merge_long(tokens, ends);
        }
        ranks.clear();
        ranks.extend(tokens.windows(2).map(|pair| self.rank(pair[0], pair[1])));
        // The first one of equal ranks, as the library.
        while let Some((at, &rank)) = ranks.iter().enumerate().min_by_key(|(_, rank)| **rank)
            && rank != NEVER
        {
            tokens[at] = self.merged[rank as usize];
            tokens.remove(at + 1);
            ends.remove(at);
            ranks.remove(at);
            if at > 0 {
                ranks[at - 1] = self.rank(tokens[at - 1], tokens[at]);
            }
            if at < ranks.len() {
                ranks[at] = self.rank(tokens[at], tokens[at + 1]);
            }
        }
    }

    /// The same in a time that does not grow with the square of the piece's length. In the end, `ends`
    /// has the ends of the tokens.
    fn merge_long(&self, tokens: &mut [u32], ends: &mut Vec<usize>) {
        let len = tokens.len();
        // A token that was merged into the one before begins nowhere.
        let mut before: Vec<usize> = (0..len).map(|at| at.wrapping_sub(1)).collect();
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, tokens: &[u32], left: usize, right: usize| {
            let rank = self.rank(tokens[left], tokens[right]);
            if rank != NEVER {
                heap.push(Reverse((rank, left, right)));
            }
        };
        for left in 0..len - 1 {
            offer(&mut heap, tokens, left, left + 1);
        }
        while let Some(Reverse((rank, left, right))) = heap.pop() {
            // The pair may have changed since it was offered.
            let is_there = ends[left] == right && self.rank(tokens[left], tokens[right]) == rank;
            if !is_there {
                continue;
            }
            tokens[left] = self.merged[rank as usize];
            ends[left] = ends[right];
            ends[right] = 0;
            let next = ends[left];
            if next < len {
                before[next] = left;
                offer(&mut heap, tokens, left, next);
            }
            if left > 0 {
                offer(&mut heap, tokens, before[left], left);
            }
        }
        ends.retain(|&end| end > 0);
    }

    fn rank(&self, left: u32, right: u32) -> u32 {
        match self.merges[self.slot_of_merge(left, right)] {
            EMPTY => NEVER,
            slot => (slot & ((1 << RANK_BITS) - 1)) as u32,
        }
    }

    /// Where the merge is, or would be.
    fn slot_of_merge(&self, left: u32, right: u32) -> usize {
        let pair = pair(left, right);
        let is_it = |slot: u64| slot == EMPTY || slot >> RANK_BITS == pair;
        probe(pair, self.merges.len(), |slot| is_it(self.merges[slot]))
    }

    /// Where the piece is, or would be.
    fn slot_of_piece(&self, key: u128) -> usize {
        let hash = (key as u64) ^ ((key >> 64) as u64).rotate_left(25).wrapping_mul(HASH);
        let is_it = |slot: u128| slot == 0 || slot == key;
        probe(hash, self.short.len(), |slot| is_it(self.short[slot]))
    }
}

/// The golden ratio, which spreads neighbours over the table (Knuth, TAOCP 3, 6.4).
const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

/// The first slot from that of `key` on which is the right one. At least half of the table is empty.
fn probe(key: u64, slots: usize, is_it: impl Fn(usize) -> bool) -> usize {
    let bits = slots.trailing_zeros();
    let mut slot = (key.wrapping_mul(HASH) >> 32).wrapping_mul(1 << bits) as usize >> 32;
    while !is_it(slot) {
        slot = (slot + 1) & (slots - 1);
    }
    slot
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

/// The bytes of a piece and their number, if it is short.
fn packed(piece: &[u8]) -> Option<u128> {
    if piece.len() > PACKED {
        return None;
    }
    let mut key = [0; 16];
    key[..piece.len()].copy_from_slice(piece);
    key[PACKED] = piece.len() as u8;
    Some(u128::from_le_bytes(key))
}

/// The letter that a byte-level tokenizer writes for each byte: itself where it is printable.
fn letters_of_bytes() -> [char; 256] {
    let is_printable = |byte| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let mut letter = |byte| match is_printable(byte) {
        true => char::from(byte),
        false => others.next().and_then(char::from_u32).unwrap_or_default(),
    };
    std::array::from_fn(|byte| letter(byte as u8))
}
