//! Loops of proxies, found by `CDN-Loop` (RFC 8586).

use crate::field::FieldKind;
use crate::field::list_items;
use crate::head::RequestHead;

/// The pseudonym of a process in `CDN-Loop`. No other process has it, so that
/// several in a chain are no loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopId {
    /// The field's line and the end of the head: two stores of 16 bytes.
    end_of_head: [u8; 32],
}

impl LoopId {
    /// The pseudonym of no process, for code that only shows or tests a head.
    pub const ZERO: Self = LoopId {
        end_of_head: *b"CDN-Loop: evenkeel-000000000\r\n\r\n",
    };
    /// The name within the line, and the part of it that is the process's own.
    const NAME: std::ops::Range<usize> = 10..28;
    const OWN: std::ops::Range<usize> = 19..28;

    /// The pseudonym of 45 of these random bits.
    pub fn new(random: u64) -> Self {
        let mut end_of_head = Self::ZERO.end_of_head;
        let mut rest = random;
        for digit in &mut end_of_head[Self::OWN] {
            *digit = b"0123456789abcdefghijklmnopqrstuv"[(rest % 32) as usize];
            rest /= 32;
        }
        LoopId { end_of_head }
    }

    /// `evenkeel-` and nine letters or digits.
    pub fn name(&self) -> &[u8] {
        &self.end_of_head[Self::NAME]
    }

    /// The last line of a head, and the empty line behind it.
    pub(crate) fn end_of_head(&self) -> &[u8; 32] {
        &self.end_of_head
    }

    /// Whether the request has been sent by this process before.
    #[cold]
    pub fn is_named_in(&self, head: &RequestHead, buf: &[u8]) -> bool {
        let fields = head.fields.iter();
        let mut values = fields.filter(|field| field.kind == FieldKind::CdnLoop);
        values.any(|field| {
            list_items(field.value.of(buf)).any(|item| {
                // Parameters follow the name.
                let name = item.split(|&byte| byte == b';').next().unwrap_or(item);
                name.trim_ascii() == self.name()
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{Parsed, parse_request};

    #[test]
    fn finds_its_own_name_among_others() {
        let own = LoopId::new(0x1_8765_4321);
        let name = String::from_utf8(own.name().to_vec()).unwrap();
        assert!(name.starts_with("evenkeel-") && name.len() == 18, "{name}");
        let other = String::from_utf8(LoopId::new(7).name().to_vec()).unwrap();
        for (lines, expected) in [
            (String::new(), false),
            (format!("CDN-Loop: {name}\r\n"), true),
            (format!("cdn-loop: a, b;c=d,{name} ; v=1\r\n"), true),
            (format!("CDN-Loop: a\r\nX: y\r\nCDN-LOOP: {name}\r\n"), true),
            (
                format!("CDN-Loop: {name}\r\nConnection: cdn-loop\r\n"),
                true,
            ),
            (format!("CDN-Loop: {other}, a; v={name}\r\n"), false),
            (format!("CDN-Loop: {name}x, x{name}\r\n"), false),
            (format!("Via: 1.1 {name}\r\n"), false),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let mut head = RequestHead::default();
            let parsed = parse_request(request.as_bytes(), &mut head);
            assert_eq!(parsed, Ok(Parsed::Complete));
            assert_eq!(
                head.has_cdn_loop,
                lines.to_lowercase().contains("cdn-loop:")
            );
            assert_eq!(
                own.is_named_in(&head, request.as_bytes()),
                expected,
                "{lines}"
            );
        }
    }
}
