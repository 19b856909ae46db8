//! The location of a redirect: text with variables, compiled when the configuration
//! is loaded.

use std::fmt;

/// A variable of a location: a part of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variable {
    /// The scheme that the client asked by.
    Scheme,
    /// The request's host, without its port.
    Host,
    /// The request's path.
    Path,
    /// The request's query with a leading `?`, where there is one.
    Query,
}

impl Variable {
    const ALL: [Variable; 4] = [
        Variable::Scheme,
        Variable::Host,
        Variable::Path,
        Variable::Query,
    ];

    /// Its name, behind the dollar.
    pub fn word(self) -> &'static str {
        match self {
            Variable::Scheme => "scheme",
            Variable::Host => "host",
            Variable::Path => "path",
            Variable::Query => "query",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.word() == word)
    }
}

/// A part of a location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocationPart {
    /// This text.
    Text(Box<str>),
    /// The request's value of this.
    Variable(Variable),
}

/// The location of a redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    parts: Box<[LocationPart]>,
}

impl Location {
    /// Compiles a text; a word behind a dollar that is no variable stays as it is.
    pub fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut plain = String::new();
        for token in tokens(text) {
            let variable = match token {
                Token::Text(text) => {
                    plain.push_str(text);
                    continue;
                }
                Token::Word(word) => Variable::from_word(word).ok_or(word),
            };
            match variable {
                Ok(variable) => {
                    if !plain.is_empty() {
                        let text = std::mem::take(&mut plain);
                        parts.push(LocationPart::Text(text.into()));
                    }
                    parts.push(LocationPart::Variable(variable));
                }
                Err(word) => {
                    plain.push('$');
                    plain.push_str(word);
                }
            }
        }
        if !plain.is_empty() {
            parts.push(LocationPart::Text(plain.into()));
        }
        Location {
            parts: parts.into(),
        }
    }

    /// Its parts, in order.
    pub fn parts(&self) -> &[LocationPart] {
        &self.parts
    }
}

/// As it was written.
impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                LocationPart::Text(text) => out.write_str(text)?,
                LocationPart::Variable(variable) => write!(out, "${}", variable.word())?,
            }
        }
        Ok(())
    }
}

/// The words behind dollars in a text that are no variables.
pub(super) fn unknown_words(text: &str) -> impl Iterator<Item = &str> {
    tokens(text).filter_map(|token| match token {
        Token::Word(word) if !word.is_empty() && Variable::from_word(word).is_none() => Some(word),
        _ => None,
    })
}

/// Whether a letter may be in the name of a variable.
pub(super) fn is_of_variable(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

enum Token<'a> {
    Text(&'a str),
    /// The word behind a dollar; may be empty.
    Word(&'a str),
}

fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut pieces = text.split('$');
    let first = pieces.next().map(Token::Text);
    let words = pieces.flat_map(|piece| {
        let word_len = piece.find(|it| !is_of_variable(it)).unwrap_or(piece.len());
        let (word, rest) = piece.split_at(word_len);
        [Token::Word(word), Token::Text(rest)]
    });
    first.into_iter().chain(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_was_written() {
        for (text, parts) in [
            ("", 0),
            ("/fixed", 1),
            ("https://$host$path$query", 4),
            ("/$hostname/$/$uri$", 1),
            ("$scheme:$host-$path_", 4),
        ] {
            let location = Location::new(text);
            assert_eq!(location.to_string(), text);
            assert_eq!(location.parts().len(), parts, "{location:?}");
        }
        let unknown: Vec<_> = unknown_words("$a$host/$/$b_1.$c").collect();
        assert_eq!(unknown, ["a", "b_1", "c"]);
    }
}
