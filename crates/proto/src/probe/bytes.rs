//! Bytes of the operator's: some are sent, others must come back.

use super::{Dialogue, Fault, Step, excerpt};

/// Most bytes of an answer that are looked at.
pub const MAX_LOOKED_AT: usize = 4096;

/// Sends bytes, and looks for others in the answer.
#[derive(Debug)]
pub struct Bytes<'a> {
    /// The bytes to send; may be empty.
    pub send: &'a [u8],
    /// The bytes that must be among the first [`MAX_LOOKED_AT`] of the answer.
    pub receive: &'a [u8],
}

impl Dialogue for Bytes<'_> {
    fn opening(&self) -> Vec<u8> {
        self.send.to_vec()
    }

    fn awaited(&self) -> String {
        excerpt(self.receive)
    }

    fn handle_input(&mut self, input: &[u8]) -> Result<Step, Fault> {
        let looked_at = &input[..input.len().min(MAX_LOOKED_AT)];
        if memchr::memmem::find(looked_at, self.receive).is_some() {
            return Ok(Step::Alive {
                seen: format!("{} came", excerpt(self.receive)),
                farewell: Vec::new(),
            });
        }
        if looked_at.len() < MAX_LOOKED_AT {
            return Ok(Step::Wait);
        }
        Err(Fault::Missing {
            wanted: excerpt(self.receive),
            looked_at: MAX_LOOKED_AT,
            came: excerpt(looked_at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::end_of;
    use super::*;

    #[test]
    fn answers() {
        let begin = || Bytes {
            send: b"PING\r\n",
            receive: b"+PONG",
        };
        assert_eq!(begin().opening(), b"PING\r\n");
        assert_eq!(begin().awaited(), "\"+PONG\"");
        let found = Some(Ok("\"+PONG\" came".to_owned()));
        assert_eq!(end_of(begin, b"+PONG\r\n"), found);
        assert_eq!(end_of(begin, b"welcome\r\n++PONG"), found);
        assert_eq!(end_of(begin, b""), None);
        assert_eq!(end_of(begin, b"+PON"), None);
        let mut late = vec![b'x'; MAX_LOOKED_AT - 5];
        late.extend_from_slice(b"+PONG");
        assert_eq!(end_of(begin, &late), found);
        late.insert(0, b'x');
        let missing = format!(
            "\"+PONG\" is not in the first 4096 bytes, which begin with \"{}…\"",
            "x".repeat(64)
        );
        assert_eq!(end_of(begin, &late), Some(Err(missing)));
    }
}
