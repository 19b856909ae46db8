//! Session tickets: the keys that encrypt them.

use std::path::PathBuf;

use super::Shared;
use crate::EncryptedStore;
use crate::quantity::Timeout;
use crate::setting::{OneOrMore, Placed, options};
use crate::value::FilePath;

options! {
    /// The tickets by which clients resume their TLS sessions, on all listeners.
    pub struct TicketsTable as "the tickets"
    for #[derive(Debug, Clone, PartialEq, Eq)] Tickets with TicketsParts {
        /// Files with the keys that several machines share. The first one encrypts. Empty if
        /// the process makes its own.
        keys: Vec<PathBuf>,
        /// The server through which machines share the keys that they make; `None` for none.
        shared: Option<EncryptedStore>,
    } {
        /// Files with the ticket keys, for several machines: 48 or 80 random bytes each, in
        /// nginx' format. The first key encrypts tickets, and every key decrypts them. The
        /// files are read again when they change. If a file is broken, the previous keys stay
        /// in use.
        keys: OneOrMore<Placed<FilePath>> = Optional("the process makes its own") => by_hand,
        /// How long a client may resume its session, at most 7 days (RFC 8446).
        lifetime: Timeout = Default("'12h'"),
        /// How long a key that the process has made encrypts new tickets. After that time the
        /// process makes another key.
        rotation: Timeout = Default("'12h'"),
        /// A Redis or Valkey server through which machines share the keys that they make: its
        /// URL, or a table. Keys are stored there only encrypted, with `encrypt_with`.
        shared: Shared = Optional("no shared server") => by_hand,
        /// A file with the key of the cluster: at least 32 random bytes, the same on each
        /// machine. It encrypts everything stored at the server.
        encrypt_with: Placed<FilePath> = Optional("nothing is stored at a server") => by_hand,
    }
}
