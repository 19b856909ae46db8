//! The systemd journal, by its native protocol: a datagram for each entry,
//! with fields of their own (systemd, "Native Journal Protocol").
//!
//! Ours rather than a library's so that a journal that goes away is noticed,
//! and lines then go to standard error.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::line::EventContent;

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Longest message: well within what a datagram holds.
const MAX_MESSAGE_LEN: usize = 32 * 1024;

/// A connection to the journal.
#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// Connects to the journal of this machine.
    ///
    /// # Errors
    /// This machine has no journal, or it does not listen.
    pub fn open() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A journal that takes nothing now counts as absent, so that nobody waits for it.
        socket.set_nonblocking(true)?;
        let journal = Journal {
            socket,
            path: path.to_owned(),
        };
        // The journal ignores an entry without fields, but the send shows whether it listens.
        journal.socket.send_to(&[], &journal.path)?;
        Ok(journal)
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// The journal is away, or takes nothing for now.
    pub fn write(&self, level: tracing::Level, said: &EventContent) -> io::Result<()> {
        self.socket.send_to(&entry(level, said), &self.path)?;
        Ok(())
    }
}

fn entry(level: tracing::Level, said: &EventContent) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + said.message.len());
    // As syslog numbers them.
    let priority = match level {
        tracing::Level::ERROR => "3",
        tracing::Level::WARN => "4",
        tracing::Level::INFO => "6",
        _ => "7",
    };
    push(&mut out, "PRIORITY", priority);
    push(&mut out, "SYSLOG_IDENTIFIER", "evenkeel");
    let len = said.message.floor_char_boundary(MAX_MESSAGE_LEN);
    push(&mut out, "MESSAGE", &said.message[..len]);
    for (name, value) in &said.fields {
        let name = format!("EVENKEEL_{}", name.to_ascii_uppercase());
        match value {
            Value::String(text) => push(&mut out, &name, text),
            other => push(&mut out, &name, &other.to_string()),
        }
    }
    out
}

/// A field; with its length in front where it has more than one line.
fn push(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=')
    }
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        let said = EventContent {
            message: "two\nMESSAGE=forged".into(),
            fields: vec![("upstream", "app".into()), ("up", 2.into())],
        };
        let expected = [
            b"PRIORITY=4\nSYSLOG_IDENTIFIER=evenkeel\nMESSAGE\n".as_slice(),
            &18u64.to_le_bytes(),
            b"two\nMESSAGE=forged\nEVENKEEL_UPSTREAM=app\nEVENKEEL_UP=2\n",
        ];
        assert_eq!(entry(tracing::Level::WARN, &said), expected.concat());
    }

    #[test]
    fn reaches_who_listens_and_notices_who_does_not() {
        let path = std::env::temp_dir().join(format!("evenkeel-journal-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert!(Journal::at(&path).is_err());
        let listening = UnixDatagram::bind(&path).expect("a path of its own");
        let journal = Journal::at(&path).expect("it listens");
        let said = EventContent {
            message: "hello".into(),
            ..EventContent::default()
        };
        journal
            .write(tracing::Level::INFO, &said)
            .expect("it listens");
        let mut bytes = [0; 100];
        assert_eq!(listening.recv(&mut bytes).expect("the first, empty"), 0);
        let len = listening.recv(&mut bytes).expect("an entry");
        assert_eq!(&bytes[..len], entry(tracing::Level::INFO, &said));
        drop(listening);
        assert!(journal.write(tracing::Level::INFO, &said).is_err());
        let _ = std::fs::remove_file(&path);
    }
}
