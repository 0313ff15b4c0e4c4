//! The bytes of a file → its text.

use std::io::{self, Read};

/// The text of a file: UTF-8, with a byte order mark or without, or UTF-16 with one. The error says
/// what else it is.
pub(super) fn decode(bytes: Vec<u8>) -> Result<String, String> {
    let utf16 = |unit: fn([u8; 2]) -> u16| {
        let (units, rest) = bytes[2..].as_chunks();
        let units: Vec<u16> = units.iter().map(|bytes| unit(*bytes)).collect();
        match String::from_utf16(&units) {
            Ok(text) if rest.is_empty() => Ok(text),
            _ => Err("not UTF-16, although it begins like that".to_owned()),
        }
    };
    match bytes.as_slice() {
        [0xff, 0xfe, ..] => utf16(u16::from_le_bytes),
        [0xfe, 0xff, ..] => utf16(u16::from_be_bytes),
        _ => utf8(bytes),
    }
}

/// The text of a part of a file that is no UTF-16.
pub(super) fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        format!("not UTF-8: {error}; convert it, for example with iconv -t UTF-8")
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(text) => text.to_owned(),
        None => text,
    })
}

/// Whether a file begins like UTF-16.
pub(super) fn is_utf16(head: &[u8]) -> bool {
    matches!(head, [0xff, 0xfe, ..] | [0xfe, 0xff, ..])
}

/// Whether bytes are no text in any encoding that is read. A text has no NUL; UTF-16 has a byte order mark.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    !is_utf16(bytes) && bytes.contains(&0)
}

/// Reads to the end of a file that has `most` bytes at most; `None` if it has more.
pub(super) fn read_at_most(reader: impl Read, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn a_byte_order_mark_says_what_the_bytes_are() {
        let utf16 = |unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
            "\u{feff}Größe 😀".encode_utf16().flat_map(unit).collect()
        };
        for bytes in [
            "Größe 😀".into(),
            "\u{feff}Größe 😀".into(),
            utf16(u16::to_le_bytes),
            utf16(u16::to_be_bytes),
        ] {
            assert_eq!(decode(bytes).unwrap(), "Größe 😀");
        }
        assert_eq!(decode(Vec::new()).unwrap(), "");
    }

    #[test]
    fn other_bytes_are_refused() {
        for (bytes, reason) in [
            (b"Caf\xe9".as_slice(), "not UTF-8"),
            // A lone surrogate, and half a character.
            (&[0xff, 0xfe, 0x00, 0xd8], "not UTF-16"),
            (&[0xff, 0xfe, 0x41], "not UTF-16"),
        ] {
            let error = decode(bytes.to_vec()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_nul_is_in_no_text() {
        assert!(is_binary(b"\x7fELF\x01\0"));
        for text in [&b"Caf\xe9"[..], b"", b"\xff\xfea\0"] {
            assert!(!is_binary(text));
        }
    }

    #[test]
    fn a_file_is_read_up_to_a_size() {
        assert_eq!(read_at_most(&b"abc"[..], 3).unwrap().unwrap(), b"abc");
        assert_eq!(read_at_most(&b"abcd"[..], 3).unwrap(), None);
    }
}
