//! Identities of requests: `X-Request-ID` and the `traceparent` of W3C Trace
//! Context, as text and back.

/// Longest request id that is believed, in bytes.
pub const MAX_REQUEST_ID_LEN: usize = 128;

/// Whether a value may serve as a request id.
///
/// Allowed are letters, digits and `-._~:/+=@`, so that it can stand in any log
/// as it is.
pub fn is_request_id(value: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:/+=@".contains(byte);
    (1..=MAX_REQUEST_ID_LEN).contains(&value.len()) && value.iter().all(is_allowed)
}

/// A UUID of version 7 (RFC 9562 §5.7): it begins with the time, so that ids
/// sort by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uuid(u128);

impl Uuid {
    /// Length of its text.
    pub const LEN: usize = 36;

    /// One of this moment, from 128 random bits.
    pub fn at(unix_ms: u64, random: u128) -> Self {
        let time = u128::from(unix_ms) << 80;
        let random = random & ((1 << 80) - 1);
        let marked = random & !(0xf << 76) & !(0b11 << 62) | 0x7 << 76 | 0b10 << 62;
        Uuid(time | marked)
    }

    /// `01890a5d-ac96-774b-bcce-b302099a8057`.
    pub fn text(self) -> [u8; Self::LEN] {
        let mut text = [b'-'; Self::LEN];
        let digits = hex::<32>(self.0);
        for (from, to, at) in [
            (0, 8, 0),
            (8, 12, 9),
            (12, 16, 14),
            (16, 20, 19),
            (20, 32, 24),
        ] {
            text[at..at + to - from].copy_from_slice(&digits[from..to]);
        }
        text
    }
}

/// The place of a request in a trace (W3C Trace Context, `traceparent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace, not 0.
    pub trace_id: u128,
    /// Id of the span that the request was sent in, not 0.
    pub parent_id: u64,
    /// Flags, as sent.
    pub flags: u8,
}

impl TraceParent {
    /// Length of its text.
    pub const LEN: usize = 55;
    /// The flag of a trace that is recorded.
    pub const SAMPLED: u8 = 1;
    /// The flag of a trace id that is random (level 2 of the specification).
    pub const RANDOM: u8 = 2;

    /// Reads a value; of a later version the part that this version knows.
    /// `None` for values that the specification calls invalid.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(Self::LEN)?;
        let part = |from: usize, to: usize| number(&known[from..to]);
        let dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
        let version = part(0, 2)?;
        let goes_on = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest[0] == b'-',
        };
        let parent = TraceParent {
            trace_id: part(3, 35)?,
            parent_id: part(36, 52)? as u64,
            flags: part(53, 55)? as u8,
        };
        let is_valid = dashes && goes_on && parent.trace_id != 0 && parent.parent_id != 0;
        is_valid.then_some(parent)
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(self) -> bool {
        self.flags & Self::SAMPLED != 0
    }

    /// Its text, of version 00, with the flags that this version knows.
    pub fn text(self) -> [u8; Self::LEN] {
        let mut text = [b'-'; Self::LEN];
        text[..2].copy_from_slice(b"00");
        text[3..35].copy_from_slice(&hex::<32>(self.trace_id));
        text[36..52].copy_from_slice(&hex::<16>(u128::from(self.parent_id)));
        let flags = self.flags & (Self::SAMPLED | Self::RANDOM);
        text[53..].copy_from_slice(&hex::<2>(u128::from(flags)));
        text
    }
}

/// The last digits of a number, in hexadecimal.
pub fn hex<const LEN: usize>(number: u128) -> [u8; LEN] {
    let mut text = [b'0'; LEN];
    let mut rest = number;
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 0xf) as usize];
        rest >>= 4;
    }
    text
}

/// A number in hexadecimal of lower case, as the specification wants it.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |sum: u128, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(sum << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn reads_what_it_writes() {
        let parent = TraceParent::parse(VALID.as_bytes()).unwrap();
        assert_eq!(parent.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(parent.parent_id, 0x00f0_67aa_0ba9_02b7);
        assert!(parent.is_sampled());
        assert_eq!(parent.text(), *VALID.as_bytes());
    }

    #[test]
    fn traceparents() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let span = "00f067aa0ba902b7";
        for (value, valid) in [
            (format!("00-{trace}-{span}-00"), true),
            (format!("00-{trace}-{span}-ff"), true),
            (format!("01-{trace}-{span}-01"), true),
            (format!("cc-{trace}-{span}-01-what-comes"), true),
            (format!("cc-{trace}-{span}-01.what-comes"), false),
            (format!("00-{trace}-{span}-01-"), false),
            (format!("00-{trace}-{span}-01-x"), false),
            (format!("ff-{trace}-{span}-01"), false),
            (format!("0-{trace}-{span}-01"), false),
            (format!("00-{trace}-{span}-1"), false),
            (format!("00-{trace}-{span}"), false),
            (format!("00_{trace}-{span}-01"), false),
            (format!("00-{}-{span}-01", trace.to_uppercase()), false),
            (format!("00-{}-{span}-01", "0".repeat(32)), false),
            (format!("00-{trace}-{}-01", "0".repeat(16)), false),
            (format!("00-{trace}-{span}-0x"), false),
            (format!("00-{}-{span}-01", "g".repeat(32)), false),
            (String::new(), false),
        ] {
            let parsed = TraceParent::parse(value.as_bytes());
            assert_eq!(parsed.is_some(), valid, "{value}");
        }
        // Every prefix is short of something, and no byte is free.
        for len in 0..VALID.len() {
            assert_eq!(TraceParent::parse(&VALID.as_bytes()[..len]), None);
            for byte in [b' ', b'G', b'\t', 0, 0x80] {
                let mut value = VALID.as_bytes().to_vec();
                value[len] = byte;
                assert_eq!(TraceParent::parse(&value), None, "{len}");
            }
        }
    }

    #[test]
    fn flags_of_later_versions_are_left_out() {
        let value = VALID.replace("-01", "-ff");
        let parent = TraceParent::parse(value.as_bytes()).unwrap();
        assert!(parent.text().ends_with(b"-03"));
    }

    #[test]
    fn uuids() {
        // The example of RFC 9562, appendix A.6.
        let random = 0xcc3 << 64 | 0x18c4_dc0c_0c07_398f;
        let uuid = Uuid::at(0x017f_22e2_79b0, random);
        let text = uuid.text();
        assert_eq!(&text, b"017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
        assert!(is_request_id(&text));
        let full = Uuid::at(u64::MAX >> 16, u128::MAX).text();
        assert_eq!(&full, b"ffffffff-ffff-7fff-bfff-ffffffffffff");
    }

    #[test]
    fn request_ids() {
        for (value, valid) in [
            ("a", true),
            ("01890a5d-ac96-774b-bcce-b302099a8057", true),
            ("Root=1-67891233-abcdef012345678912345678", true),
            ("a/b+c=@~._:-", true),
            ("", false),
            ("a b", false),
            ("a,b", false),
            ("a\"b", false),
            ("a\\", false),
            ("\u{e4}", false),
        ] {
            assert_eq!(is_request_id(value.as_bytes()), valid, "{value}");
        }
        assert!(is_request_id(&[b'a'; MAX_REQUEST_ID_LEN]));
        assert!(!is_request_id(&[b'a'; MAX_REQUEST_ID_LEN + 1]));
    }
}
