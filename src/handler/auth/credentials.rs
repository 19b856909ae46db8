//! The user and the password of a request (RFC 7617).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use evenkeel_proto::{FieldKind, RequestHead};

use crate::passwords::Pair;

/// Longest `USER:PASSWORD`, in bytes.
const MAX_LEN: usize = 1024;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A user and a password, as a client gives them.
pub(super) struct Credentials {
    /// `USER:PASSWORD`.
    text: String,
    colon: usize,
}

impl Credentials {
    /// The credentials of a request with exactly one `Authorization`, by Basic, in UTF-8 and
    /// without control characters.
    pub fn of(head: &RequestHead, bytes: &[u8]) -> Option<Self> {
        let mut fields = head.fields.iter();
        let field = fields.find(|it| it.kind == FieldKind::Authorization)?;
        // An endpoint might read either of two fields.
        if fields.any(|it| it.kind == FieldKind::Authorization) {
            return None;
        }
        Self::read(field.value.of(bytes))
    }

    fn read(value: &[u8]) -> Option<Self> {
        let (scheme, rest) = value.split_at_checked("Basic ".len())?;
        if !scheme.eq_ignore_ascii_case(b"basic ") || rest.len() > MAX_LEN / 3 * 4 + 4 {
            return None;
        }
        let decoded = BASE64.decode(rest.trim_ascii()).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        if text.len() > MAX_LEN || text.chars().any(char::is_control) {
            return None;
        }
        let colon = text.find(':')?;
        Some(Credentials { text, colon })
    }

    /// The user.
    pub fn user(&self) -> &str {
        &self.text[..self.colon]
    }

    /// User and password.
    pub fn pair(&self) -> Pair<'_> {
        Pair {
            user: self.user(),
            password: &self.text.as_bytes()[self.colon + 1..],
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::http1::parse_request;

    use super::*;

    fn read(lines: &str) -> Option<(String, String)> {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut head = RequestHead::default();
        parse_request(bytes.as_bytes(), &mut head).unwrap();
        let credentials = Credentials::of(&head, bytes.as_bytes())?;
        let password = String::from_utf8_lossy(credentials.pair().password);
        Some((credentials.user().to_owned(), password.into_owned()))
    }

    #[test]
    fn a_user_and_a_password() {
        let encode = |text: &str| BASE64.encode(text);
        for (text, user, password) in [
            ("kim:secret", "kim", "secret"),
            ("kim:", "kim", ""),
            (":secret", "", "secret"),
            ("kim:a:b", "kim", "a:b"),
            ("müller:ü", "müller", "ü"),
        ] {
            let expected = Some((user.to_owned(), password.to_owned()));
            for scheme in ["Basic", "basic", "BASIC", "Basic "] {
                let line = format!("Authorization: {scheme} {}\r\n", encode(text));
                assert_eq!(read(&line), expected, "{line}");
            }
            let unpadded = encode(text).replace('=', "");
            assert_eq!(
                read(&format!("authorization: Basic {unpadded}\r\n")),
                expected
            );
        }
    }

    #[test]
    fn nothing_else_counts() {
        let good = format!("Authorization: Basic {}\r\n", BASE64.encode("kim:secret"));
        assert!(read(&good).is_some());
        let long = BASE64.encode(format!("kim:{}", "x".repeat(MAX_LEN)));
        for lines in [
            String::new(),
            "Authorization:\r\n".to_owned(),
            "Authorization: Basic\r\n".to_owned(),
            "Authorization: Basic ???\r\n".to_owned(),
            "Authorization: Bearer a2ltOnNlY3JldA==\r\n".to_owned(),
            format!("Authorization: Basic {}\r\n", BASE64.encode("kim")),
            format!("Authorization: Basic {}\r\n", BASE64.encode(b"kim:\xff")),
            format!("Authorization: Basic {}\r\n", BASE64.encode("kim:a\nb")),
            format!("Authorization: Basic {}\r\n", BASE64.encode("kim:a\0")),
            format!("Authorization: Basic {long}\r\n"),
            format!("{good}{good}"),
            format!("{good}AUTHORIZATION: Bearer x\r\n"),
            good.replace("Authorization", "Proxy-Authorization"),
        ] {
            assert_eq!(read(&lines), None, "{lines}");
        }
    }
}
