//! Finds the tokens of a text as the library's tokenizer would make them, several times faster.
//!
//! There is one for byte-level BPE with a known pattern and one for Unigram over words. Other
//! tokenizers have none. Two kinds of text are left to the library: those with an added token (`<s>`),
//! which it looks for before anything else, and those that normalisation changes otherwise than
//! character by character. Property tests compare the tokens with the library's.

use aho_corasick::AhoCorasick;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{ModelWrapper, NormalizedString, Normalizer};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use super::bpe::{Bpe, Parts};
use super::pattern::Pattern;
use super::tokenizer::Token;
use super::unigram::Unigram;

pub(super) struct Scanner {
    added_tokens: AhoCorasick,
    kind: Kind,
}

enum Kind {
    Bpe {
        pattern: Pattern,
        /// Only text that is in NFC already is scanned.
        is_composed: bool,
        merges: Bpe,
    },
    Unigram(Unigram),
}

impl Scanner {
    /// `None` if the tokenizer that `json` describes is of no known kind.
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, json: &[u8]) -> Option<Self> {
        let added_tokens = tokenizer.get_added_tokens_decoder();
        let is_normal = |text: &str| {
            let mut normalized = NormalizedString::from(text);
            tokenizer
                .get_normalizer()
                .is_none_or(|normalizer| normalizer.normalize(&mut normalized).is_ok())
                && normalized.get() == text
        };
        // The library looks for these in the normalised text.
        let mut normalized = added_tokens.values().filter(|token| token.normalized);
        if !normalized.all(|token| is_normal(&token.content)) {
            return None;
        }
        let contents = added_tokens.values().map(|token| token.content.as_str());
        let added_tokens = AhoCorasick::new(contents).ok()?;
        let kind = match tokenizer.get_model() {
            ModelWrapper::BPE(model) => Kind::Bpe {
                pattern: Pattern::of(tokenizer.get_pre_tokenizer()?)?,
                is_composed: match tokenizer.get_normalizer() {
                    None => false,
                    Some(NormalizerWrapper::NFC(_)) => true,
                    Some(_) => return None,
                },
                merges: Bpe::new(model, json)?,
            },
            ModelWrapper::Unigram(_) => Kind::Unigram(Unigram::new(tokenizer, json)?),
            _ => return None,
        };
        Some(Self { added_tokens, kind })
    }

    /// The tokens of a text, in its order. `None` if the library must make them; it makes those of a
    /// single word with `library`. Tokens of a part of a character have that part's bytes.
    pub(super) fn tokens<E>(
        &self,
        text: &str,
        library: impl FnMut(&str) -> Result<Vec<Token>, E>,
    ) -> Result<Option<Vec<Token>>, E> {
        let mut tokens = Vec::with_capacity(text.len() / 4 + 1);
        let is_whole = self.scan(text, library, |token| tokens.push(token))?;
        Ok(is_whole.then_some(tokens))
    }

    /// The number of tokens of a text, likewise.
    pub(super) fn count<E>(
        &self,
        text: &str,
        library: impl FnMut(&str) -> Result<Vec<Token>, E>,
    ) -> Result<Option<usize>, E> {
        let mut count = 0;
        let is_whole = self.scan(text, library, |_| count += 1)?;
        Ok(is_whole.then_some(count))
    }

    /// Calls `each` with the tokens. Returns false if the library must make all of them.
    fn scan<E>(
        &self,
        text: &str,
        library: impl FnMut(&str) -> Result<Vec<Token>, E>,
        mut each: impl FnMut(Token),
    ) -> Result<bool, E> {
        if self.added_tokens.is_match(text) {
            return Ok(false);
        }
        match &self.kind {
            Kind::Bpe {
                pattern,
                is_composed,
                merges,
            } => {
                if *is_composed && is_nfc_quick(text.chars()) != IsNormalized::Yes {
                    return Ok(false);
                }
                let mut parts = Parts::default();
                let mut start = 0;
                while start < text.len() {
                    let end = pattern.piece_end(text, start);
                    let mut token_start = start;
                    let piece = &text.as_bytes()[start..end];
                    merges.token_ends(piece, &mut parts, |token_end| {
                        each(Token {
                            start: token_start,
                            end: start + token_end,
                            begins_piece: token_start == start && start > 0,
                        });
                        token_start = start + token_end;
                    });
                    start = end;
                }
                Ok(true)
            }
            Kind::Unigram(unigram) => unigram.scan(text, library, each),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;
    use tokenizers::Tokenizer;
    use tokenizers::normalizers::replace::ReplacePattern;
    use tokenizers::normalizers::utils::Sequence;
    use tokenizers::normalizers::{NFC, NFKC, Precompiled, Replace};

    use super::super::trained::{self, SENTENCES};
    use super::*;

    fn scanner_of(tokenizer: &Tokenizer) -> Scanner {
        Scanner::new(tokenizer, tokenizer.to_string(false).unwrap().as_bytes()).unwrap()
    }

    /// Tokenizers that have a scanner, and their scanners.
    fn pairs() -> Vec<(&'static str, Tokenizer, Scanner)> {
        let pattern = trained::pattern_bpe().raw().clone();
        let single_digits = with_pattern(&pattern, |pattern| pattern.replace("{1,3}", ""));
        let mut composed = pattern.clone();
        composed.with_normalizer(Some(NFC)).unwrap();
        let mut ignoring = pattern.clone();
        if let ModelWrapper::BPE(model) = &mut ignoring.get_model().clone() {
            model.ignore_merges = true;
            ignoring.with_model(model.clone());
        }
        let words = trained::unigram_of_words().raw().clone();
        let mut blanks = words.clone();
        let one = Replace::new(ReplacePattern::Regex(" {2,}".into()), " ").unwrap();
        blanks
            .with_normalizer(Some(Sequence::new(vec![NFKC.into(), one.into()])))
            .unwrap();
        let mut precompiled = words.clone();
        precompiled
            .with_normalizer(Some(table_of_normal_forms()))
            .unwrap();
        let all = [
            ("GPT-2", trained::byte_level_bpe().raw().clone()),
            ("cl100k", pattern),
            ("single digits", single_digits),
            ("NFC", composed),
            ("whole entries", ignoring),
            ("Unigram", words),
            ("Unigram, blanks", blanks),
            ("Unigram, precompiled", precompiled),
        ];
        all.into_iter()
            .map(|(name, tokenizer)| {
                let scanner = scanner_of(&tokenizer);
                (name, tokenizer, scanner)
            })
            .collect()
    }

    /// What XLM-RoBERTa has instead of NFKC, with a few of its entries. An array of units is the trie (Darts,
    /// double array): a unit has a label, where the children are, and whether one of them is a value.
    fn table_of_normal_forms() -> Precompiled {
        let entries = [
            ("ﬁ", "fi"),
            ("½", "1⁄2"),
            ("＜", "<"),
            ("＞", ">"),
            ("\t", " "),
            ("\n", " "),
            ("\r", " "),
            ("\u{a0}", " "),
            ("\u{200b}", " "),
            ("\u{1}", ""),
            ("e\u{301}", "é"),
            ("a\u{301}", "á"),
            ("가\u{11a8}", "각"),
            ("¨", " \u{308}"),
            ("\u{fdfa}", "صلى الله"),
        ];
        const HAS_VALUE: u32 = 1 << 8;
        const IS_VALUE: u32 = 1 << 31;
        let (mut units, mut values) = (vec![0; 512], String::new());
        // The children of each unit have a block of their own.
        let block_of = |units: &mut Vec<u32>, at: usize| {
            if units[at] >> 10 == 0 {
                let block = units.len();
                units.extend([0; 256]);
                units[at] |= u32::try_from(at ^ block).unwrap() << 10;
            }
            at ^ (units[at] >> 10) as usize
        };
        for (text, normal) in entries {
            let mut at = 0;
            for byte in text.bytes() {
                at = block_of(&mut units, at) ^ usize::from(byte);
                units[at] |= u32::from(byte);
            }
            let value = block_of(&mut units, at);
            units[at] |= HAS_VALUE;
            units[value] = IS_VALUE | u32::try_from(values.len()).unwrap();
            values.extend([normal, "\0"]);
        }
        let mut table = u32::try_from(4 * units.len())
            .unwrap()
            .to_le_bytes()
            .to_vec();
        table.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        table.extend(values.as_bytes());
        let table = Precompiled::from(&table).unwrap();
        assert_eq!(table.transform("ﬁ"), Some("fi"));
        assert_eq!(table.transform("x"), None);
        table
    }

    /// The tokenizer with another pattern.
    fn with_pattern(tokenizer: &Tokenizer, change: impl Fn(&str) -> String) -> Tokenizer {
        let json = tokenizer.to_string(false).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let pattern = &mut json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
        *pattern = change(pattern.as_str().unwrap()).into();
        json.to_string().parse().unwrap()
    }

    fn of_library(tokenizer: &Tokenizer, text: &str) -> Vec<Token> {
        let encoding = tokenizer.encode(text, false).unwrap();
        let tokens = encoding.get_offsets().iter().zip(encoding.get_word_ids());
        let mut before = None;
        let token = |(&(start, end), &piece): (&(usize, usize), &Option<u32>)| Token {
            start,
            end,
            begins_piece: before.replace(piece).is_some_and(|before| before != piece),
        };
        tokens.map(token).collect()
    }

    /// What matters of tokens: the text of each without the spaces around it, and where pieces begin.
    fn essence<'t>(text: &'t str, tokens: &[Token]) -> Vec<(&'t str, bool)> {
        let of_token = |token: &Token| {
            let start = text.floor_char_boundary(token.start);
            let end = text.ceil_char_boundary(token.end).max(start);
            (text[start..end].trim(), token.begins_piece)
        };
        tokens.iter().map(of_token).collect()
    }

    /// Removed by the table of normal forms.
    const REMOVED: char = '\u{1}';

    /// Whether the scanner made the tokens. If it did, they are those of the library.
    fn scans(tokenizer: &Tokenizer, scanner: &Scanner, text: &str) -> bool {
        let library = |word: &str| Ok::<_, ()>(of_library(tokenizer, word));
        let tokens = scanner.tokens(text, library).unwrap();
        let count = scanner.count(text, library).unwrap();
        assert_eq!(count, tokens.as_ref().map(Vec::len));
        let Some(tokens) = tokens else { return false };
        let expected = of_library(tokenizer, text);
        if text.contains(REMOVED) {
            // Behind such a character, the library's offsets are those of other characters: it takes no note of
            // one that is removed at the start of a text.
            let begins = |tokens: &[Token]| tokens.iter().map(|t| t.begins_piece).collect();
            let (found, expected): (Vec<bool>, Vec<bool>) = (begins(&tokens), begins(&expected));
            assert_eq!(found, expected, "{text:?}");
        } else {
            assert_eq!(essence(text, &tokens), essence(text, &expected), "{text:?}");
        }
        true
    }

    #[test]
    fn every_character_has_the_tokens_of_the_library() {
        for (name, tokenizer, scanner) in pairs() {
            // One by one where there are scripts; then by the hundred.
            let single = (0..0x2_0000).filter_map(char::from_u32);
            let single = single.map(|c| format!("sto{c}rm 's{c} '{c} {c}"));
            let rest: Vec<char> = (0x2_0000..=0x10_ffff).filter_map(char::from_u32).collect();
            let several = rest.chunks(100).map(|characters| {
                let words = characters.iter().map(|c| format!("a{c} "));
                words.collect::<String>()
            });
            let (mut scanned, mut all) = (0, 0);
            for text in single.chain(several) {
                all += 1;
                scanned += usize::from(scans(&tokenizer, &scanner, &text));
            }
            println!("{name}: {scanned} of {all} texts scanned");
            assert!(scanned * 100 > all * 97, "{name}: {scanned} of {all}");
        }
    }

    #[test]
    fn sentences_are_scanned() {
        for (name, tokenizer, scanner) in pairs() {
            for sentence in SENTENCES {
                assert!(scans(&tokenizer, &scanner, sentence), "{name}: {sentence}");
            }
        }
    }

    #[test]
    fn a_removed_character_is_in_no_token() {
        let (name, tokenizer, scanner) = &pairs_once()[7];
        assert_eq!(*name, "Unigram, precompiled");
        for text in ["\u{1}½?Ꚏ,\n", "½\u{1}?", "a \u{1}\u{1}½ \u{1}", "\u{1}"] {
            assert!(scans(tokenizer, scanner, text));
            let library = |word: &str| Ok::<_, ()>(of_library(tokenizer, word));
            let tokens = scanner.tokens(text, library).unwrap().unwrap();
            assert!(
                tokens
                    .iter()
                    .all(|token| !text[token.start..token.end].contains(REMOVED))
            );
        }
    }

    #[test]
    fn added_tokens_are_left_to_the_library() {
        for (name, tokenizer, scanner) in pairs() {
            let token = match name.starts_with("Unigram") {
                true => " <mask>",
                false => "<|begin_of_text|><|endoftext|>",
            };
            assert!(!scans(
                &tokenizer,
                &scanner,
                &format!("A text {token} and more")
            ));
        }
        let (tokenizer, scanner) = (
            trained::unigram_of_words().raw(),
            scanner_of(trained::unigram_of_words().raw()),
        );
        assert!(scans(tokenizer, &scanner, "A text ＜mask＞ and more"));
    }

    #[test]
    fn a_tokenizer_with_an_unknown_pattern_has_no_scanner() {
        let pattern = trained::pattern_bpe().raw();
        for change in [("{1,3}", "{1,2}"), (r"\s+(?!\S)|", ""), ("?i:", "?:")] {
            let other = with_pattern(pattern, |regex| regex.replace(change.0, change.1));
            let json = other.to_string(false).unwrap();
            assert!(
                Scanner::new(&other, json.as_bytes()).is_none(),
                "{change:?}"
            );
        }
        let unigram = trained::unigram().raw();
        assert!(Scanner::new(unigram, unigram.to_string(false).unwrap().as_bytes()).is_none());
    }

    #[test]
    fn a_piece_of_any_length_has_the_tokens_of_the_library() {
        let words: String = SENTENCES
            .concat()
            .chars()
            .filter(|c| c.is_alphabetic())
            .collect();
        for (_, tokenizer, scanner) in pairs() {
            for len in [1, 15, 16, 90, 95, 96, 97, 98, 200, 1000, 20_000] {
                let text: String = words.chars().cycle().take(len).collect();
                assert!(scans(&tokenizer, &scanner, &text));
                assert!(scans(
                    &tokenizer,
                    &scanner,
                    &text[..text.floor_char_boundary(len)]
                ));
                assert!(scans(&tokenizer, &scanner, &"a".repeat(len)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

        #[test]
        fn every_text_has_the_tokens_of_the_library(
            text in "(\\PC|[a-zA-Z]{1,8}|[ ]{1,3}|[ \t\r\n]{1,4}|[\\p{M}]{1,3}|'(s|T|re|LL|ve|x)|[0-9]{1,7}|[\\p{Lu}\\p{P}\\p{Han}]{1,3}|\\p{Zs}|ﬁ|½|\u{fdfa}|가\u{11a8}|<mask>|<|[\u{0}-\u{9f}]|[!-/]{1,4}\n){0,24}",
            sentence in prop::sample::select(SENTENCES.to_vec()),
        ) {
            for (_, tokenizer, scanner) in pairs_once() {
                scans(tokenizer, scanner, &text);
                scans(tokenizer, scanner, &format!("{text}{sentence}{text}"));
            }
        }
    }

    fn pairs_once() -> &'static [(&'static str, Tokenizer, Scanner)] {
        static PAIRS: std::sync::OnceLock<Vec<(&'static str, Tokenizer, Scanner)>> =
            std::sync::OnceLock::new();
        PAIRS.get_or_init(pairs)
    }
}
