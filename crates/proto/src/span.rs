//! Ranges of bytes in the buffer that a head was read from.

/// A range of bytes in the buffer that a head was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The span from `start` to `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The bytes that the span stands for; empty if it lies outside of `buf`.
    pub fn of(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether it holds no byte.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_outside_is_empty() {
        let span = Span { start: 3, end: 2 };
        assert_eq!(
            (span.len(), span.is_empty(), span.of(b"abcd")),
            (0, true, &b""[..])
        );
        assert_eq!(Span::new(2, 9).of(b"abcd"), b"");
    }
}
