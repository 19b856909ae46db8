//! Files with keys: of a name server, as `tsig-keygen` of BIND writes them, and of an external
//! account.

use std::fmt;
use std::net::SocketAddr;

use data_encoding::{BASE64, BASE64URL_NOPAD};

use crate::settings::{DnsSettings, ExternalAccount, TsigAlgorithm, UpdateSettings};

/// The text is no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoKey {
    what: &'static str,
    expected: &'static str,
}

/// The error for a text that is not a key of a name server.
fn no_key(what: &'static str) -> NoKey {
    let expected = "write it like the output of `tsig-keygen`";
    NoKey { what, expected }
}

impl fmt::Display for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, expected } = self;
        write!(f, "{what}: {expected}")
    }
}

impl std::error::Error for NoKey {}

impl DnsSettings {
    /// Updates of a server, signed with the key in this text:
    ///
    /// ```text
    /// key "acme" {
    ///     algorithm hmac-sha256;
    ///     secret "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IQ==";
    /// };
    /// ```
    ///
    /// # Errors
    /// The text has no key, several keys, or a key of another algorithm.
    pub fn with_key_file(server: SocketAddr, text: &str) -> Result<Self, NoKey> {
        let text = without_comments(text);
        let mut words = words(&text);
        let name = match (words.next(), words.next()) {
            (Some("key"), Some(name)) => name,
            _ => return Err(no_key("there is no key in it")),
        };
        if words.next() != Some("{") {
            return Err(no_key("the `{` after the key's name is missing"));
        }
        let (mut algorithm, mut secret) = (None, None);
        loop {
            match words.next() {
                Some("algorithm") => algorithm = words.next(),
                Some("secret") => secret = words.next(),
                Some(";") => {}
                Some("}") => break,
                _ => {
                    return Err(no_key(
                        "the key has other entries than `algorithm` and `secret`",
                    ));
                }
            }
        }
        if words.any(|it| it != ";") {
            return Err(no_key("there is more text after the key"));
        }
        let algorithm = match algorithm {
            Some("hmac-sha256") => TsigAlgorithm::HmacSha256,
            Some("hmac-sha384") => TsigAlgorithm::HmacSha384,
            Some("hmac-sha512") => TsigAlgorithm::HmacSha512,
            _ => {
                return Err(no_key(
                    "its algorithm is not hmac-sha256, -sha384 or -sha512",
                ));
            }
        };
        let secret =
            secret.filter(|it| BASE64.decode(it.as_bytes()).is_ok_and(|it| !it.is_empty()));
        Ok(Self::Update(UpdateSettings {
            server,
            zone: None,
            key_name: name.to_owned(),
            algorithm,
            secret: secret
                .ok_or(no_key("its secret is not valid base64"))?
                .to_owned(),
        }))
    }
}

impl ExternalAccount {
    /// The HMAC key in this text, in base64url.
    ///
    /// # Errors
    /// The text has no key.
    pub fn decode_key(text: &str) -> Result<Vec<u8>, NoKey> {
        let text = text.trim().trim_end_matches('=');
        let key = BASE64URL_NOPAD.decode(text.as_bytes());
        key.ok().filter(|it| !it.is_empty()).ok_or(NoKey {
            what: "there is no key in base64url in it",
            expected: "write the HMAC key that the issuer gave you",
        })
    }
}

/// The text without what stands behind `//` and `#`.
fn without_comments(text: &str) -> String {
    let line = |line: &str| {
        let ends = [line.find("//"), line.find('#')];
        // In a secret, `//` occurs only within quotes.
        let is_quoted = |at: usize| line[..at].matches('"').count() % 2 == 1;
        let end = ends
            .into_iter()
            .flatten()
            .filter(|at| !is_quoted(*at))
            .min();
        line[..end.unwrap_or(line.len())].to_owned() + "\n"
    };
    text.lines().map(line).collect()
}

/// Words, texts in quotes without them, and the signs `{`, `}` and `;`.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let (word, after) = match first {
            '"' => {
                let (word, after) = rest[1..].split_once('"')?;
                (word, after)
            }
            '{' | '}' | ';' => rest.split_at(1),
            _ => {
                let is_end = |it: char| it.is_whitespace() || "{};\"".contains(it);
                rest.split_at(rest.find(is_end).unwrap_or(rest.len()))
            }
        };
        rest = after;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<UpdateSettings, NoKey> {
        let server = SocketAddr::from(([127, 0, 0, 1], 53));
        match DnsSettings::with_key_file(server, text)? {
            DnsSettings::Update(settings) => Ok(settings),
            DnsSettings::Hook { .. } => unreachable!("no program was asked for"),
        }
    }

    #[test]
    fn a_key_is_read_as_tsig_keygen_writes_it() {
        let text = "key \"acme.example\" {\n\talgorithm hmac-sha512;\n\tsecret \"ab//cd8=\";\n};\n";
        let key = read(text).expect("a key");
        assert_eq!(key.key_name, "acme.example");
        assert_eq!(key.algorithm, TsigAlgorithm::HmacSha512);
        assert_eq!(key.secret, "ab//cd8=");
        let text =
            "# made today\nkey acme { // ours\n secret \"YWJj\"; algorithm \"hmac-sha256\"; };";
        assert_eq!(
            read(text).expect("a key").algorithm,
            TsigAlgorithm::HmacSha256
        );
    }

    #[test]
    fn the_key_of_an_account_is_base64url() {
        for (text, expected) in [
            ("YWJj", Some(&b"abc"[..])),
            (" -_8=\n", Some(&[0xfb, 0xff])),
            ("+/8", None),
            ("", None),
            ("=", None),
            ("a secret", None),
        ] {
            let key = ExternalAccount::decode_key(text).ok();
            assert_eq!(key.as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let key = |algorithm: &str, secret: &str| {
            format!("key \"a\" {{ algorithm {algorithm}; secret \"{secret}\"; }};")
        };
        assert!(read(&key("hmac-sha256", "YWJj")).is_ok());
        for wrong in [
            String::new(),
            "secret".to_owned(),
            "key \"a".to_owned(),
            key("hmac-md5", "YWJj"),
            key("hmac-sha256", "?"),
            key("hmac-sha256", ""),
            key("hmac-sha256", "YWJj") + &key("hmac-sha256", "YWJj"),
            "key \"a\" { algorithm hmac-sha256; ".to_owned(),
        ] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
    }
}
