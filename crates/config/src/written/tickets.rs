//! Session tickets: the keys that seal them.

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
        /// Files with the keys that several machines share, the one that seals first; empty
        /// where the process makes its own.
        keys: Vec<PathBuf>,
        /// The server by which machines share the keys that they make; `None` for none.
        shared: Option<EncryptedStore>,
    } {
        /// Files with the keys of tickets, for several machines: 48 or 80 random bytes each,
        /// as nginx has them. The first key seals tickets, and all of them open tickets. The
        /// files are read again when they change; a broken one leaves the keys of before in
        /// use.
        keys: OneOrMore<Placed<FilePath>> = Optional("the process makes its own") => by_hand,
        /// How long a client can resume its session, at most 7 days (RFC 8446).
        lifetime: Timeout = Default("'12h'"),
        /// How long a key seals tickets that the process has made. Then it makes another
        /// one.
        rotation: Timeout = Default("'12h'"),
        /// A server of Redis or Valkey by which machines share the keys that they make: its
        /// URL, or a table. Keys are stored there only encrypted, with `encrypt_with`.
        shared: Shared = Optional("shared with none") => by_hand,
        /// A file with the key of the cluster: at least 32 random bytes, the same on each
        /// machine. It encrypts what is stored at the server.
        encrypt_with: Placed<FilePath> = Optional("nothing is stored at a server") => by_hand,
    }
}
