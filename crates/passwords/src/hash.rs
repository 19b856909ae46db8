//! One hash of a password.

use std::fmt;

use argon2::password_hash::PasswordVerifier;
use argon2::{Argon2, Params, PasswordHash, Version};

/// Highest cost of bcrypt: a verification takes some seconds.
const MAX_BCRYPT_COST: u32 = 16;
/// Most memory of argon2, in KiB.
const MAX_ARGON2_KIB: u32 = 256 * 1024;
/// Most memory times passes of argon2, in KiB.
const MAX_ARGON2_WORK_KIB: u64 = 4 * 1024 * 1024;

/// A hash of a password.
#[derive(Clone)]
pub struct Hash(Kind);

#[derive(Clone)]
enum Kind {
    /// As written: 60 characters that were read once.
    Bcrypt(Box<str>),
    Argon2(Box<PasswordHash>),
}

/// Prints only the kind of the hash.
impl fmt::Debug for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.0 {
            Kind::Bcrypt(_) => "Hash(bcrypt)",
            Kind::Argon2(_) => "Hash(argon2)",
        })
    }
}

/// Why a hash is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashFault {
    /// The hash is missing.
    Empty,
    /// MD5 by Apache's or crypt's way: computed millions of times a second by who tries.
    Md5,
    /// SHA-1 without salt.
    Sha1,
    /// SHA-256 or SHA-512 by crypt's way.
    ShaCrypt,
    /// bcrypt of a version that computes some passwords wrongly.
    Bcrypt2x,
    /// It begins like a hash of bcrypt, but is malformed.
    Bcrypt,
    /// It begins like a hash of argon2, but is malformed.
    Argon2,
    /// One of argon2d, which tells of the password by its timing.
    Argon2d,
    /// It takes too long, or too much memory, to verify.
    Costly,
    /// A function that is not known.
    Unknown,
    /// Not a hash: a password in plain text, or DES in the style of crypt.
    Plain,
}

impl HashFault {
    /// The fault, as the rest of a sentence about the hash.
    pub fn text(self) -> &'static str {
        match self {
            HashFault::Empty => "is missing",
            HashFault::Md5 => "is an MD5 hash, which is easy to crack",
            HashFault::Sha1 => "is a SHA-1 hash, which is easy to crack",
            HashFault::ShaCrypt => "is a `crypt` hash, which is not supported",
            HashFault::Bcrypt2x => "is a bcrypt `$2x$` hash, which accepts wrong passwords",
            HashFault::Bcrypt => "looks like bcrypt but is damaged",
            HashFault::Argon2 => "looks like argon2 but is damaged",
            HashFault::Argon2d => "is an argon2d hash, which leaks the password by its timing",
            HashFault::Costly => "takes too long or too much memory to verify",
            HashFault::Unknown => "has an unknown algorithm",
            HashFault::Plain => "is not a hash, but a plain password or a `crypt` hash",
        }
    }

    /// Advice on what to use instead.
    pub fn help(self) -> &'static str {
        match self {
            HashFault::Argon2d => "use argon2id: `argon2 SALT -id -e`",
            HashFault::Costly => {
                "use bcrypt with a cost of at most 16, or argon2 with at most 256 MiB"
            }
            _ => "create one with `htpasswd -B FILE USER`, or with `argon2 SALT -id -e`",
        }
    }
}

impl Hash {
    /// Parses a hash as it stands in a file.
    ///
    /// # Errors
    /// The hash is not of an accepted kind.
    pub fn read(text: &str) -> Result<Self, HashFault> {
        let begins = |with: &[&str]| with.iter().any(|it| text.starts_with(it));
        if text.is_empty() {
            Err(HashFault::Empty)
        } else if begins(&["$2a$", "$2b$", "$2y$"]) {
            bcrypt_hash(text)
        } else if begins(&["$2x$"]) {
            Err(HashFault::Bcrypt2x)
        } else if begins(&["$argon2id$", "$argon2i$"]) {
            argon2_hash(text)
        } else if begins(&["$argon2d$"]) {
            Err(HashFault::Argon2d)
        } else if begins(&["$apr1$", "$1$", "{SMD5}"]) {
            Err(HashFault::Md5)
        } else if begins(&["{SHA}", "{SSHA}"]) {
            Err(HashFault::Sha1)
        } else if begins(&["$5$", "$6$", "$7$", "$y$", "$gy$"]) {
            Err(HashFault::ShaCrypt)
        } else if begins(&["$"]) {
            Err(HashFault::Unknown)
        } else {
            Err(HashFault::Plain)
        }
    }

    /// Whether it is of this password. Takes milliseconds to seconds of the processor, and
    /// the same time for each password.
    ///
    /// Of bcrypt the first 72 bytes of a password count, as for every other program.
    pub fn verify(&self, password: &[u8]) -> bool {
        match &self.0 {
            Kind::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
            Kind::Argon2(hash) => Argon2::default().verify_password(password, &**hash).is_ok(),
        }
    }
}

fn bcrypt_hash(text: &str) -> Result<Hash, HashFault> {
    let parts: bcrypt::HashParts = text.parse().map_err(|_| HashFault::Bcrypt)?;
    if parts.get_cost() > MAX_BCRYPT_COST {
        return Err(HashFault::Costly);
    }
    // The lowest that the function has.
    if parts.get_cost() < 4 {
        return Err(HashFault::Bcrypt);
    }
    Ok(Hash(Kind::Bcrypt(text.into())))
}

fn argon2_hash(text: &str) -> Result<Hash, HashFault> {
    let hash = PasswordHash::new(text).map_err(|_| HashFault::Argon2)?;
    let params = Params::try_from(&hash).map_err(|_| HashFault::Argon2)?;
    let is_whole = hash.salt.is_some() && hash.hash.is_some();
    let version = hash.version.and_then(|it| Version::try_from(it).ok());
    if !is_whole || version.is_none() {
        return Err(HashFault::Argon2);
    }
    let work = u64::from(params.m_cost()) * u64::from(params.t_cost());
    if params.m_cost() > MAX_ARGON2_KIB || work > MAX_ARGON2_WORK_KIB {
        return Err(HashFault::Costly);
    }
    Ok(Hash(Kind::Argon2(Box::new(hash))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of one.
    const BCRYPT: &str = "$2y$04$abcdefghijklmnopqrstuu";

    fn bcrypt_of(password: &str, prefix: &str) -> String {
        let parts = bcrypt::hash_with_salt(password, 4, *b"0123456789abcdef").unwrap();
        parts.to_string().replacen("$2b$", prefix, 1)
    }

    #[test]
    fn hashes_are_verified() {
        let argon2 = argon2_of("secret", "argon2id");
        let argon2i = argon2_of("secret", "argon2i");
        for text in [
            bcrypt_of("secret", "$2y$"),
            bcrypt_of("secret", "$2a$"),
            bcrypt_of("secret", "$2b$"),
            argon2,
            argon2i,
        ] {
            let hash = Hash::read(&text).expect(&text);
            assert!(hash.verify(b"secret"), "{text}");
            for wrong in ["", "secre", "secret ", "Secret", "secret\0"] {
                assert!(!hash.verify(wrong.as_bytes()), "{text} {wrong:?}");
            }
            assert!(!format!("{hash:?}").contains(&text[10..]));
        }
    }

    fn argon2_of(password: &str, algorithm: &str) -> String {
        use argon2::CustomizedPasswordHasher;
        let params = Params::new(64, 1, 1, None).unwrap();
        let salt = b"0123456789abcdef";
        let hash = Argon2::default().hash_password_customized(
            password.as_bytes(),
            salt,
            Some(algorithm),
            None,
            params,
        );
        hash.unwrap().to_string()
    }

    /// Test vectors of the reference implementation.
    #[test]
    fn hashes_of_other_programs_are_verified() {
        for text in [
            "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
            "$argon2i$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$wWKIMhR9lyDFvRz9YTZweHKfbftvj+qf+YFY4NeBbtA",
            // By crypt(3).
            "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW",
        ] {
            let password = if text.starts_with("$2b") {
                "secret"
            } else {
                "password"
            };
            let hash = Hash::read(text).unwrap();
            assert!(hash.verify(password.as_bytes()), "{text}");
            assert!(!hash.verify(b"Password"), "{text}");
        }
    }

    #[test]
    fn other_hashes_are_refused() {
        let long = bcrypt_of("secret", "$2y$");
        for (text, expected) in [
            ("", HashFault::Empty),
            ("$apr1$abc$def", HashFault::Md5),
            ("$1$abc$def", HashFault::Md5),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", HashFault::Sha1),
            ("{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", HashFault::Sha1),
            ("$5$abc$def", HashFault::ShaCrypt),
            ("$6$abc$def", HashFault::ShaCrypt),
            ("$y$j9T$abc$def", HashFault::ShaCrypt),
            ("$scrypt$ln=1$abc$def", HashFault::Unknown),
            ("secret", HashFault::Plain),
            ("rqXexS6ZhobKA", HashFault::Plain),
            ("$2x$04$abcdefghijklmnopqrstuu", HashFault::Bcrypt2x),
            (BCRYPT, HashFault::Bcrypt),
            (&long.replace("$04$", "$17$"), HashFault::Costly),
            (&long.replace("$04$", "$03$"), HashFault::Bcrypt),
            (&long.replace("$04$", "$xx$"), HashFault::Bcrypt),
            (
                "$argon2d$v=19$m=64,t=1,p=1$MDEyMzQ1Njc$abcd",
                HashFault::Argon2d,
            ),
            ("$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc", HashFault::Argon2),
            (
                "$argon2id$m=64,t=1,p=1$MDEyMzQ1Njc$Zm9vYmFyYmF6MTIz",
                HashFault::Argon2,
            ),
            (
                "$argon2id$v=19$m=1,t=1,p=1$MDEyMzQ1Njc$Zm9vYmFyYmF6MTIz",
                HashFault::Argon2,
            ),
            ("$argon2id$nonsense", HashFault::Argon2),
            (
                "$argon2id$v=19$m=262145,t=1,p=1$MDEyMzQ1Njc$Zm9vYmFyYmF6MTIz",
                HashFault::Costly,
            ),
            (
                "$argon2id$v=19$m=65536,t=65,p=1$MDEyMzQ1Njc$Zm9vYmFyYmF6MTIz",
                HashFault::Costly,
            ),
        ] {
            assert_eq!(Hash::read(text).err(), Some(expected), "{text}");
        }
    }
}
