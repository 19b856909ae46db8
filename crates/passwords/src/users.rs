//! The users of a file: one a line, with the hash of the password.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;

use sha2::{Digest, Sha256};

use crate::hash::{Hash, HashFault};

/// Longest name of a user, in bytes.
const MAX_NAME: usize = 255;

/// Users, and the hashes of their passwords.
///
/// Safety: an unknown user takes as long as a known one, so that response times do not reveal
/// names.
#[derive(Clone)]
pub struct Users {
    /// The index of each one's hash.
    by_name: HashMap<Box<str>, usize>,
    hashes: Vec<Hash>,
    digest: [u8; 32],
}

/// Tells neither names nor hashes.
impl fmt::Debug for Users {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Users({})", self.hashes.len())
    }
}

/// A line that is no user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub number: usize,
    /// The mistake. It contains no hash and no password.
    pub what: String,
    /// Advice on how to correct it.
    pub help: &'static str,
}

const FORM: &str = "write `USER:HASH`, as `htpasswd -B FILE USER` does";

/// No users.
impl Default for Users {
    fn default() -> Self {
        Users {
            by_name: HashMap::new(),
            hashes: Vec::new(),
            digest: Sha256::digest(b"").into(),
        }
    }
}

impl Users {
    /// Reads lines of `USER:HASH`. The text behind a further colon is a comment, and so is a
    /// line that begins with `#`.
    ///
    /// # Errors
    /// The first line that is neither a user nor a comment.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadLine> {
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let mut users = Users {
            by_name: HashMap::new(),
            hashes: Vec::new(),
            digest: Sha256::digest(bytes).into(),
        };
        let mut numbers = Vec::new();
        for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let bad = |what: String, help| BadLine {
                number: at + 1,
                what,
                help,
            };
            let line = std::str::from_utf8(line)
                .map_err(|_| bad("this is not valid UTF-8".into(), FORM))?;
            let Some((name, rest)) = line.split_once(':') else {
                return Err(bad("there is no colon after the user".into(), FORM));
            };
            check_name(name).map_err(|what| bad(what.into(), FORM))?;
            let hash = rest.split(':').next().unwrap_or_default();
            let hash = Hash::read(hash).map_err(|fault: HashFault| {
                let what = format!("the hash of user `{name}` {}", fault.text());
                bad(what, fault.help())
            })?;
            let index = users.hashes.len();
            if let Some(before) = users.by_name.insert(name.into(), index) {
                let before: usize = numbers[before];
                return Err(bad(
                    format!("user `{name}` is already in line {before}"),
                    "remove one of them",
                ));
            }
            users.hashes.push(hash);
            numbers.push(at + 1);
        }
        Ok(users)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are no users.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// A digest of the whole file: another file has another one.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Whether this is the user's password. Takes milliseconds to seconds of the processor.
    ///
    /// For a user who is not there, the hash of another one is verified, which is the same
    /// one for the same name: so it takes as long.
    pub fn verify(&self, name: &str, password: &[u8]) -> bool {
        let known = self.by_name.get(name).copied();
        let index = known.or_else(|| self.stand_in(name));
        let Some(hash) = index.and_then(|it| self.hashes.get(it)) else {
            return false;
        };
        hash.verify(password) && known.is_some()
    }

    /// The index of the hash that is verified for a user who is not there.
    fn stand_in(&self, name: &str) -> Option<usize> {
        let drawn = self.by_name.hasher().hash_one(name);
        drawn
            .checked_rem(self.hashes.len() as u64)
            .map(|it| it as usize)
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        Err("the user has no name")
    } else if name.len() > MAX_NAME {
        Err("the name of the user is longer than 255 bytes")
    } else if name.chars().any(char::is_control) {
        Err("the name of the user has a control character")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash_of(password: &str) -> String {
        let parts = bcrypt::hash_with_salt(password, 4, *b"0123456789abcdef");
        parts.unwrap().to_string()
    }

    #[test]
    fn users_of_a_file() {
        let text = format!(
            "\u{feff}# the office\r\nkim:{}\r\n\n  jo:{}:of sales\nmüller:{}",
            hash_of("a"),
            hash_of("b"),
            hash_of("ü")
        );
        let users = Users::parse(text.as_bytes()).unwrap();
        assert_eq!(users.len(), 3);
        for (name, password, expected) in [
            ("kim", "a", true),
            ("kim", "b", false),
            ("jo", "b", true),
            ("müller", "ü", true),
            ("Kim", "a", false),
            ("", "a", false),
            ("nobody", "a", false),
            ("nobody", "b", false),
            ("nobody", "ü", false),
        ] {
            let found = users.verify(name, password.as_bytes());
            assert_eq!(found, expected, "{name} {password}");
        }
        assert_eq!(format!("{users:?}"), "Users(3)");
        let same = Users::parse(text.as_bytes()).unwrap();
        assert_eq!(users.digest(), same.digest());
        let other = Users::parse(text.replace("kim", "kom").as_bytes()).unwrap();
        assert_ne!(users.digest(), other.digest());
    }

    #[test]
    fn who_is_not_there_has_the_hash_of_one_who_is() {
        let text = format!("kim:{}\njo:{}\n", hash_of("a"), hash_of("b"));
        let users = Users::parse(text.as_bytes()).unwrap();
        for name in ["x", "y", "z", "nobody"] {
            let index = users.stand_in(name).unwrap();
            assert!(index < 2);
            assert_eq!(users.stand_in(name), Some(index), "it is always the same");
        }
        let nobody = Users::parse(b"# nobody\n").unwrap();
        assert!(nobody.is_empty() && !nobody.verify("kim", b"a"));
    }

    #[test]
    fn a_broken_line_is_named_without_its_secret() {
        let good = format!("kim:{}\n", hash_of("a"));
        for (line, what) in [
            ("jo", "no colon"),
            (":x", "has no name"),
            ("a\u{7}b:x", "control character"),
            ("jo:hunter2", "`jo` is not a hash"),
            ("jo:$apr1$hunter2$x", "MD5"),
            ("jo:{SHA}hunter2", "SHA-1"),
            (&good, "`kim` is already in line 1"),
        ] {
            let text = format!("{good}\n{line}\n");
            let bad = Users::parse(text.as_bytes()).unwrap_err();
            assert_eq!(bad.number, 3, "{line}");
            assert!(bad.what.contains(what), "{line}: {}", bad.what);
            assert!(!bad.what.contains("hunter2"), "{}", bad.what);
        }
        let bad = Users::parse(b"kim:\xff").unwrap_err();
        assert!(bad.what.contains("UTF-8"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Users::parse(&bytes);
        }

        #[test]
        fn lines_that_look_like_users_are_read(text in "([a-z:$]{0,12}\\$(2y|argon2id|apr1)\\$[0-9a-z$=,:]{0,70}\n){0,4}") {
            let _ = Users::parse(text.as_bytes());
        }
    }
}
