//! Outcomes of lookups and of responses to be stored: one word for each, the
//! same in counters and in the event log.

/// Gives the type, and its words.
macro_rules! outcomes {
    ($($(#[doc = $about:literal])+ $name:ident => $word:literal,)+) => {
        /// The outcome of a lookup, of a response that was to be stored, or of
        /// the connection to the server.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Outcome {
            $($(#[doc = $about])+ $name,)+
        }

        impl Outcome {
            /// All words.
            pub const WORDS: &'static [&'static str] = &[$($word,)+];

            /// Its word.
            pub fn word(self) -> &'static str {
                match self {
                    $(Outcome::$name => $word,)+
                }
            }
        }
    };
}

outcomes! {
    /// A response was found.
    Hit => "hit",
    /// No response was found.
    Absent => "absent",
    /// It was purged.
    Purged => "purged",
    /// A response was stored.
    Stored => "stored",
    /// A response lives too short to be worth it.
    Short => "short",
    /// A response, or another value in its place, is longer than the limit.
    Long => "long",
    /// A response was asked for too long ago to be compared with all purges.
    Old => "old",
    /// A response of this key was removed a moment ago.
    Removed => "removed",
    /// The server would have got it too late.
    Late => "late",
    /// Too much waits already.
    Full => "full",
    /// The server is not asked for a while.
    Down => "down",
    /// No answer in time.
    Slow => "slow",
    /// The log of purges is ahead of this machine.
    Behind => "behind",
    /// The log of purges is not the one that this machine follows.
    Log => "log",
    /// Something else lies in the place of the response.
    Foreign => "foreign",
    /// A response with bytes that have changed.
    Damaged => "damaged",
    /// A response of another version.
    Version => "version",
    /// No connection.
    Connection => "connection",
    /// The server's certificate is not accepted.
    Certificate => "certificate",
    /// No TLS with the server, for another reason.
    Tls => "tls",
    /// The server speaks another protocol.
    Protocol => "protocol",
    /// The server loads its own store (`-LOADING`).
    Loading => "loading",
    /// The server wants another password (`-NOAUTH`, `-WRONGPASS`).
    Password => "password",
    /// The server forbids a command (`-NOPERM`).
    Forbidden => "forbidden",
    /// The server is a replica, or can't write (`-READONLY`, `-MISCONF`).
    ReadOnly => "read_only",
    /// The server is out of memory (`-OOM`).
    Memory => "memory",
    /// The server refuses a command for another reason.
    Refused => "refused",
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Outcome;

    #[test]
    fn words_differ() {
        let words: HashSet<_> = Outcome::WORDS.iter().collect();
        assert_eq!(words.len(), Outcome::WORDS.len());
        assert_eq!(Outcome::Hit.word(), "hit");
    }
}
