//! Parts of SQL.

/// A name, quoted.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A string, whatever `standard_conforming_strings` is.
pub fn literal(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!(
        "{escape}'{}'",
        text.replace('\\', "\\\\").replace('\'', "''")
    )
}

/// A text with a value in the place of each `{name}`. Values are not read again: they may have braces. `{quote}` is a
/// quote of Postgres that no value contains.
pub fn fill(text: &str, values: &[(&str, String)]) -> String {
    let quotes = (0..).map(|n| match n {
        0 => "$elf$".to_owned(),
        n => format!("$elf{n}$"),
    });
    let is_free = |quote: &String| {
        !values
            .iter()
            .any(|(_, value)| value.contains(quote.as_str()))
    };
    let quote = quotes.into_iter().find(is_free);
    let quote = quote.expect("the values contain finitely many");
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        let (name, behind) = behind.split_once('}').expect("the brace has an end");
        filled.push_str(before);
        match values.iter().find(|(known, _)| *known == name) {
            _ if name == "quote" => filled.push_str(&quote),
            Some((_, value)) => filled.push_str(value),
            None => panic!("nothing fills {name:?}"),
        }
        rest = behind;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_read_again() {
        let values = [("a", "{b} $elf$".to_owned()), ("b", "2".to_owned())];
        assert_eq!(
            fill("{quote}{a}, {b}{quote}", &values),
            "$elf1${b} $elf$, 2$elf1$"
        );
    }

    #[test]
    fn names_and_strings_are_quoted() {
        assert_eq!(quoted("a \"b\""), "\"a \"\"b\"\"\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\b"), "E'a\\\\b'");
    }
}
