//! Keys of requests: requests with the same key are counted, or kept, together.

use crate::setting::{Fault, FromText, resolve_to};
use crate::variable::Expression;

/// The common property of the requests that are counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestKey {
    /// The client's address, or the network that contains it.
    Client,
    /// The value of this text.
    Text(Expression),
}

/// The key as it was written.
impl std::fmt::Display for RequestKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestKey::Client => out.write_str("client"),
            RequestKey::Text(text) => text.fmt(out),
        }
    }
}

/// A key of requests as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKeyText(pub RequestKey);

impl FromText for RequestKeyText {
    const FORM: &'static str =
        "`\"client\"`, or a text with variables, such as `\"{header:X-Api-Key}\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        if text == "client" {
            return Ok(Self(RequestKey::Client));
        }
        let key = Expression::read(text)?;
        if key.is_constant() {
            return Err(Fault::new(format!(
                "`{text}` has no variable, so it is the same for every request"
            ))
            .help(
                "write \"client\", or a text with variables, such as \"{header:X-Api-Key}\"; \
                     \"{route}\" counts all requests of a route together",
            ));
        }
        match key.needs_response() {
            Some(variable) => Err(Fault::new(format!(
                "`{{{}}}` is not known until there is a response",
                variable.word()
            ))),
            None => Ok(Self(RequestKey::Text(key))),
        }
    }
}

resolve_to!(RequestKeyText => RequestKey);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for text in ["client", "{header:X-Api-Key}", "{route}/{client_ip}"] {
            let RequestKeyText(key) = RequestKeyText::from_text(text).expect(text);
            assert_eq!(key.to_string(), text);
        }
        for text in ["", "all", "{status}", "{client}", "{nothing"] {
            assert!(RequestKeyText::from_text(text).is_err(), "{text}");
        }
    }
}
