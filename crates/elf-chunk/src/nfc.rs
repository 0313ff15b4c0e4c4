//! The form in which a text is sent to a model.

use std::borrow::Cow;

use unicode_normalization_alignments::{UnicodeNormalization, is_nfc};

/// A text in NFC: `é` is one code point, however it was typed. Send this to the model: a chunk's tokens are
/// counted so.
pub fn composed(text: &str) -> Cow<'_, str> {
    match text.is_ascii() || is_nfc(text) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(text.nfc().map(|(c, _)| c).collect()),
    }
}
