//! In which form ELF asks for vectors. Servers differ in what they take and in what they do with
//! the rest: refuse it, ignore it, answer without vectors. The first answer shows it.

use std::sync::Mutex;

use crate::lock::lock;

/// The field `encoding_format`, in the order in which ELF tries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A third of the bytes of decimal numbers, and nothing to parse.
    Base64,
    /// Decimal numbers.
    Float,
    /// The field is left out: some servers refuse every field that they do not know.
    Unsaid,
}

/// Whether a failure is about the form that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AboutFormat {
    /// The server says so.
    Yes,
    /// The server gives no reason. Only the first answer is doubted: later ones are about texts.
    Perhaps,
    /// The server did not come so far.
    No,
}

impl Format {
    /// The value of the field.
    pub fn value(self) -> Option<&'static str> {
        match self {
            Self::Base64 => Some("base64"),
            Self::Float => Some("float"),
            Self::Unsaid => None,
        }
    }

    fn next(self) -> Option<Self> {
        match self {
            Self::Base64 => Some(Self::Float),
            Self::Float => Some(Self::Unsaid),
            Self::Unsaid => None,
        }
    }
}

/// The form that ELF asks for now.
#[derive(Debug)]
pub struct Negotiation(Mutex<State>);

#[derive(Debug, Clone, Copy)]
struct State {
    format: Format,
    /// Whether the server has given vectors in this form.
    proven: bool,
}

impl Negotiation {
    /// Begins with base64.
    pub fn new() -> Self {
        Self(Mutex::new(State {
            format: Format::Base64,
            proven: false,
        }))
    }

    /// The form to ask for.
    pub fn current(&self) -> Format {
        lock(&self.0).format
    }

    /// The form to ask for after `format` failed; `None` if the failure is about something else.
    pub fn after(&self, format: Format, failure: AboutFormat) -> Option<Format> {
        let mut state = lock(&self.0);
        let next = format.next()?;
        match failure {
            AboutFormat::Yes if state.format == format => {
                *state = State {
                    format: next,
                    proven: false,
                };
                Some(next)
            }
            AboutFormat::Yes => Some(next),
            AboutFormat::Perhaps if !state.proven => Some(next),
            AboutFormat::Perhaps | AboutFormat::No => None,
        }
    }

    /// Records that the server gave vectors. Returns whether that is news.
    pub fn worked(&self, format: Format) -> bool {
        let mut state = lock(&self.0);
        let is_news = !state.proven && format != state.format;
        if !state.proven {
            *state = State {
                format,
                proven: true,
            };
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_gives_no_reason_is_doubted_until_it_gives_vectors() {
        let formats = Negotiation::new();
        assert_eq!(
            formats.after(Format::Base64, AboutFormat::Perhaps),
            Some(Format::Float)
        );
        assert_eq!(
            formats.current(),
            Format::Base64,
            "it may have been the text"
        );
        assert!(formats.worked(Format::Float));
        assert_eq!(formats.current(), Format::Float);
        assert_eq!(formats.after(Format::Float, AboutFormat::Perhaps), None);
        assert!(!formats.worked(Format::Float));
    }

    #[test]
    fn a_form_that_the_server_names_is_not_asked_for_again() {
        let formats = Negotiation::new();
        assert!(!formats.worked(Format::Base64));
        assert_eq!(
            formats.after(Format::Base64, AboutFormat::Yes),
            Some(Format::Float)
        );
        assert_eq!(formats.current(), Format::Float);
        assert_eq!(
            formats.after(Format::Float, AboutFormat::Yes),
            Some(Format::Unsaid)
        );
        assert_eq!(formats.after(Format::Unsaid, AboutFormat::Yes), None);
        assert_eq!(formats.after(Format::Base64, AboutFormat::No), None);
    }
}
