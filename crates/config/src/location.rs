//! The location of a redirect: text with variables, compiled when the configuration
//! is loaded.

use std::fmt;

use super::variable::ExpressionPart;

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
    /// The request's value of what stands in braces.
    Value(ExpressionPart),
}

/// The location of a redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    parts: Box<[LocationPart]>,
}

impl Location {
    /// Compiles a text. A word behind a dollar or in braces that is no variable stays
    /// unchanged.
    pub fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut plain = String::new();
        for token in tokens(text) {
            let part = match token {
                Token::Text(text) => {
                    plain.push_str(text);
                    continue;
                }
                Token::Word(word) => match Variable::from_word(word) {
                    Some(variable) => LocationPart::Variable(variable),
                    None => {
                        plain.push('$');
                        plain.push_str(word);
                        continue;
                    }
                },
                Token::Value(value) => LocationPart::Value(value),
            };
            if !plain.is_empty() {
                let text = std::mem::take(&mut plain);
                parts.push(LocationPart::Text(text.into()));
            }
            parts.push(part);
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

    /// Whether it leads to a path of the same host.
    pub fn is_path(&self) -> bool {
        use super::variable::Variable::{Path, Target};
        match self.parts.first() {
            Some(LocationPart::Text(text)) => text.starts_with('/') && !text.starts_with("//"),
            Some(LocationPart::Variable(variable)) => *variable == Variable::Path,
            Some(LocationPart::Value(value)) => matches!(
                value,
                ExpressionPart::Capture(_) | ExpressionPart::Variable(Path | Target)
            ),
            None => false,
        }
    }

    /// Whether a client can choose the host that the location leads to.
    ///
    /// This is so if a value other than the request's host ends the host, or is the whole text
    /// before the path.
    pub(super) fn may_lead_anywhere(&self) -> bool {
        use super::variable::Variable::{Host, Path, ServerName, Target};
        let begins_path = |it: &LocationPart| {
            matches!(
                it,
                LocationPart::Variable(Variable::Path | Variable::Query)
                    | LocationPart::Value(ExpressionPart::Variable(Path | Target))
            )
        };
        let (mut is_in_host, mut last) = (false, None);
        for part in &self.parts {
            if is_in_host && begins_path(part) {
                break;
            }
            let LocationPart::Text(text) = part else {
                last = Some(part);
                continue;
            };
            let rest = match text.split_once("//") {
                Some((_, rest)) if !is_in_host => {
                    (is_in_host, last) = (true, None);
                    rest
                }
                _ if !is_in_host => return false,
                _ => text,
            };
            match rest.find(['/', '?', '#', ':']) {
                // The value stands right in front of the end of the host.
                Some(0) => break,
                Some(_) => return false,
                None if !rest.is_empty() => last = None,
                None => {}
            }
        }
        let is_value = |it: &LocationPart| match it {
            LocationPart::Value(ExpressionPart::Variable(it)) => !matches!(it, Host | ServerName),
            LocationPart::Value(_) => true,
            LocationPart::Text(_) | LocationPart::Variable(_) => false,
        };
        is_in_host && last.is_some_and(is_value)
    }

    /// The groups of regular expressions that stand in it.
    pub(super) fn captures(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|it| match it {
            LocationPart::Value(ExpressionPart::Capture(name)) => Some(&**name),
            _ => None,
        })
    }
}

/// As it was written.
impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                LocationPart::Text(text) => out.write_str(text)?,
                LocationPart::Variable(variable) => write!(out, "${}", variable.word())?,
                LocationPart::Value(value) => value.fmt(out)?,
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
    /// The value of a name in braces.
    Value(ExpressionPart),
}

fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut pieces = text.split('$');
    let first = pieces.next().map(Token::Text);
    let words = pieces.flat_map(|piece| {
        let word_len = piece.find(|it| !is_of_variable(it)).unwrap_or(piece.len());
        let (word, rest) = piece.split_at(word_len);
        [Token::Word(word), Token::Text(rest)]
    });
    first
        .into_iter()
        .chain(words)
        .flat_map(|token| match token {
            Token::Text(text) => values(text),
            token => vec![token],
        })
}

/// The values in braces in a text, and the text between them.
fn values(text: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut rest, mut from) = (Vec::new(), text, 0);
    while let Some(open) = rest[from..].find('{').map(|at| from + at) {
        let name = rest[open + 1..].split_once('}').map(|(name, _)| name);
        match name.and_then(|it| Some((it, value_named(it)?))) {
            Some((name, value)) => {
                tokens.push(Token::Text(&rest[..open]));
                tokens.push(Token::Value(value));
                (rest, from) = (&rest[open + name.len() + 2..], 0);
            }
            None => from = open + 1,
        }
    }
    tokens.push(Token::Text(rest));
    tokens
}

/// The value that a name in braces stands for in a location; `None` if only a response has it.
pub(super) fn value_named(name: &str) -> Option<ExpressionPart> {
    let part = super::variable::part(name).ok()?;
    (!part.needs_response()).then_some(part)
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
            ("https://{host}/{capture:id}?{query:a}$query", 7),
            ("/{uri}/{status}/{}/{", 1),
        ] {
            let location = Location::new(text);
            assert_eq!(location.to_string(), text);
            assert_eq!(location.parts().len(), parts, "{location:?}");
        }
        for (text, expected) in [
            ("https://{query:to}/", true),
            ("https://example.com{query:to}", true),
            ("https://a.{header:X-Host}:80/", true),
            ("{scheme}://{query:to}", true),
            ("https://{capture:tenant}.example.com/", false),
            ("https://{host}/{query:to}", false),
            ("{scheme}://{host}{path}", false),
            ("https://$host{path}", false),
            ("https://example.com/{query:to}", false),
            ("/{query:to}", false),
            ("{query:to}", false),
        ] {
            assert_eq!(Location::new(text).may_lead_anywhere(), expected, "{text}");
        }
        let unknown: Vec<_> = unknown_words("$a$host/$/$b_1.$c").collect();
        assert_eq!(unknown, ["a", "b_1", "c"]);
    }
}
