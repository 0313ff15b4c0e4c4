//! What a server does differently from others, and from one request to the next.

use serde_json::Value;

/// Which requests a rule is for.
#[derive(Debug, Clone, PartialEq)]
pub enum When {
    /// All that have no other rule, after the script.
    Always,
    /// Those with this word in a text.
    Contains(String),
    /// Those with more texts.
    MoreThan(usize),
    /// Those whose body has this field.
    Has(&'static str),
    /// Those whose body has none of these values in a field.
    Lacks(&'static str, &'static [&'static str]),
}

impl When {
    /// Whether a request is one of them.
    pub fn is_for(&self, body: &Value, texts: &[String]) -> bool {
        match self {
            Self::Always => true,
            Self::Contains(word) => texts.iter().any(|text| text.contains(word)),
            Self::MoreThan(most) => texts.len() > *most,
            Self::Has(field) => body.get(field).is_some(),
            Self::Lacks(field, values) => !values.iter().any(|value| body[field] == *value),
        }
    }
}

/// What servers do differently.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dialect {
    pub base64: Base64,
    pub indexes: Indexes,
    /// Whether one vector stands for all texts.
    pub fused: bool,
    /// The most tokens that it reads of a text, which it counts by words.
    pub window: Option<usize>,
}

/// What a server does when it is asked for base64.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Base64 {
    #[default]
    Given,
    /// It gives decimal numbers.
    Ignored,
    /// It answers 400.
    Refused,
    /// It answers 200 with this body.
    Answered(String),
}

/// Which `index` the vectors have.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Indexes {
    #[default]
    Given,
    /// The right ones, last one first.
    Reversed,
    LeftOut,
    FirstLeftOut,
    FromOne,
    Zero,
}

impl Indexes {
    /// That of the vector of the text at `place`.
    pub fn of(self, place: usize) -> Option<usize> {
        match self {
            Self::Given | Self::Reversed => Some(place),
            Self::LeftOut => None,
            Self::FirstLeftOut => (place > 0).then_some(place),
            Self::FromOne => Some(place + 1),
            Self::Zero => Some(0),
        }
    }
}
