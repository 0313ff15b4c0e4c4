//! Tokenizers that look at one piece of a text at a time: byte-level BPE, Unigram.
//!
//! Such a tokenizer splits a text into *pieces* (pre-tokens: mostly a word with the space before
//! it) and encodes each piece by itself. It splits from left to right and never looks back. So a
//! text that begins where a piece of a longer text begins has the same pieces from there on. The
//! count of a chunk is a sum of three parts:
//!
//! - the tokens of its first words, encoded again, because the chunk begins with no space;
//! - those of the longer text;
//! - the tokens of its last word, encoded again, because the chunk ends behind it.
//!
//! [`are_independent`] says for which tokenizers that holds at a *joint*: a piece that begins with
//! a single space between two words. What it refuses:
//!
//! - *Added tokens* with a space inside: one could lie across a joint.
//! - *Normalizers* that treat the beginning of a text in a special way (`Prepend`, `Strip`), or
//!   that are not known. Unicode normalisation does not reach across a space.
//! - *Pre-tokenizers* that look back: a pattern with a look-behind, an anchor or a word boundary; a
//!   `Metaspace` that treats the first piece in a special way; scripts, which a space inherits.
//! - *Models* that are random (BPE dropout).
//!
//! A tokenizer without pre-tokenizer has no joints, and is counted in full. A property test
//! compares the sums with real counts.

use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{ModelWrapper, Tokenizer};

/// Whether the pieces behind a joint do not depend on the text before it.
pub(super) fn are_independent(tokenizer: &Tokenizer) -> bool {
    let added_tokens = tokenizer.get_added_tokens_decoder();
    let has_local_tokens = added_tokens.values().all(|token| {
        let spaces = token.content.chars().filter(|c| c.is_whitespace()).count();
        // A run of blanks is no joint, which has one.
        spaces == 0 || (spaces > 1 && spaces == token.content.chars().count())
    });
    let is_deterministic = match tokenizer.get_model() {
        ModelWrapper::BPE(model) => model.dropout.is_none(),
        ModelWrapper::Unigram(_) | ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => true,
    };
    has_local_tokens
        && is_deterministic
        && tokenizer.get_normalizer().is_none_or(is_local)
        && tokenizer
            .get_pre_tokenizer()
            .is_some_and(|pre_tokenizer| never_looks_back(pre_tokenizer, true))
}

fn is_local(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::NFC(_)
        | NormalizerWrapper::NFD(_)
        | NormalizerWrapper::NFKC(_)
        | NormalizerWrapper::NFKD(_)
        | NormalizerWrapper::Lowercase(_)
        | NormalizerWrapper::StripAccents(_)
        | NormalizerWrapper::Nmt(_)
        | NormalizerWrapper::Precompiled(_) => true,
        NormalizerWrapper::StripNormalizer(strip) => !strip.strip_left,
        NormalizerWrapper::Replace(_) => is_replacement_of_blanks(normalizer, None),
        NormalizerWrapper::Sequence(all) => all.as_ref().iter().all(is_local),
        _ => false,
    }
}

/// Runs of blanks become one text, or this one, as in XLM-RoBERTa: a joint has one blank.
pub(super) fn is_replacement_of_blanks(normalizer: &NormalizerWrapper, by: Option<&str>) -> bool {
    let json = serde_json::to_value(normalizer).unwrap_or(Value::Null);
    json["pattern"]["Regex"] == " {2,}" && by.is_none_or(|text| json["content"] == text)
}

/// `is_alone`: no other pre-tokenizer has split the text before.
fn never_looks_back(pre_tokenizer: &PreTokenizerWrapper, is_alone: bool) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::BertPreTokenizer(_)
        | PreTokenizerWrapper::ByteLevel(_)
        | PreTokenizerWrapper::Whitespace(_)
        | PreTokenizerWrapper::WhitespaceSplit(_)
        | PreTokenizerWrapper::Punctuation(_)
        | PreTokenizerWrapper::Digits(_) => true,
        PreTokenizerWrapper::Metaspace(metaspace) => {
            metaspace.split && (is_alone || metaspace.prepend_scheme == PrependScheme::Always)
        }
        PreTokenizerWrapper::Split(split) => match &split.pattern {
            SplitPattern::String(_) => true,
            SplitPattern::Regex(regex) => is_forward(regex),
        },
        PreTokenizerWrapper::Sequence(all) => {
            let all = all.as_ref();
            all.iter().all(|one| never_looks_back(one, all.len() == 1))
        }
        _ => false,
    }
}

/// Whether a pattern matches by what follows alone.
fn is_forward(regex: &str) -> bool {
    let looks_back = ["(?<", r"\b", r"\B", r"\A", r"\G", r"\K"];
    !looks_back.iter().any(|part| regex.contains(part)) && !regex.replace("[^", "").contains('^')
}
