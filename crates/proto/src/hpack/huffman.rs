//! The Huffman code of field names and values (RFC 7541 §5.2, Appendix B).
//!
//! The code is canonical: of two symbols the one with the longer code, or the greater
//! number, has the greater code. So the lengths alone make all tables, at compile time.

/// The symbol that ends no string: it is for padding alone.
const EOS: u16 = 256;

/// Number of bits of each symbol's code, in the order of the symbols.
#[rustfmt::skip]
const LENS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// The longest code, in bits.
const LONGEST: usize = 30;
/// Codes of up to so many bits are found by one look.
const SHORT: usize = 10;

/// Symbols in the order of their codes, and where each length begins.
struct Ordered {
    symbols: [u16; 257],
    /// Codes, in the order of the symbols.
    codes: [u32; 257],
    /// For each length, its first code, and that one's place among `symbols`.
    first: [(u32, u16); LONGEST + 1],
    /// For each length, the number of its codes.
    count: [u16; LONGEST + 1],
}

const ORDERED: Ordered = ordered();

const fn ordered() -> Ordered {
    let mut it = Ordered {
        symbols: [0; 257],
        codes: [0; 257],
        first: [(0, 0); LONGEST + 1],
        count: [0; LONGEST + 1],
    };
    let (mut len, mut code, mut place) = (1, 0, 0);
    while len <= LONGEST {
        code <<= 1;
        it.first[len] = (code, place as u16);
        let mut symbol = 0;
        while symbol < LENS.len() {
            if LENS[symbol] as usize == len {
                it.symbols[place] = symbol as u16;
                it.codes[symbol] = code;
                it.count[len] += 1;
                place += 1;
                code += 1;
            }
            symbol += 1;
        }
        len += 1;
    }
    it
}

/// By the next [`SHORT`] bits: the symbol, and the length of its code; 0 where that is
/// longer.
static BY_BITS: [(u8, u8); 1 << SHORT] = by_bits();

const fn by_bits() -> [(u8, u8); 1 << SHORT] {
    let mut table = [(0, 0); 1 << SHORT];
    let mut symbol = 0;
    while symbol < 256 {
        let len = LENS[symbol] as usize;
        if len <= SHORT {
            let spare = SHORT - len;
            let start = (ORDERED.codes[symbol] as usize) << spare;
            let mut bits = start;
            while bits < start + (1 << spare) {
                table[bits] = (symbol as u8, len as u8);
                bits += 1;
            }
        }
        symbol += 1;
    }
    table
}

static LONG: Ordered = ORDERED;

/// A string that no encoder makes.
///
/// Its padding is not the beginning of the last code, or is a byte long, or that code stands in
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Appends the text of a coded string: at most 8 bytes for each 5.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    // The next bits stand at the top.
    let (mut bits, mut have) = (0u64, 0u32);
    let mut rest = coded.iter();
    loop {
        while have <= 56 {
            let Some(byte) = rest.next() else { break };
            bits |= u64::from(*byte) << (56 - have);
            have += 8;
        }
        let (symbol, len) = match BY_BITS[(bits >> (64 - SHORT)) as usize] {
            (_, 0) => match long(bits) {
                Some(found) => found,
                None => break,
            },
            (symbol, len) => (u16::from(symbol), u32::from(len)),
        };
        if len > have {
            break;
        }
        if symbol == EOS {
            return Err(Malformed);
        }
        out.push(symbol as u8);
        bits <<= len;
        have -= len;
    }
    let is_padding = have < 8 && bits.leading_ones() >= have;
    is_padding.then_some(()).ok_or(Malformed)
}

/// The symbol at the top of these bits whose code is longer than `SHORT`, and its length.
fn long(bits: u64) -> Option<(u16, u32)> {
    for len in SHORT + 1..=LONGEST {
        let (first, place) = LONG.first[len];
        let beyond = ((bits >> (64 - len)) as u32).wrapping_sub(first);
        if beyond < u32::from(LONG.count[len]) {
            let symbol = LONG.symbols[usize::from(place) + beyond as usize];
            return Some((symbol, len as u32));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Length of a text's coded string, in bytes.
    fn coded_len(text: &[u8]) -> usize {
        let bits: usize = text
            .iter()
            .map(|it| usize::from(LENS[usize::from(*it)]))
            .sum();
        bits.div_ceil(8)
    }

    /// Appends the coded string of a text.
    fn encode(text: &[u8], out: &mut Vec<u8>) {
        let (mut bits, mut have) = (0u64, 0u32);
        for byte in text {
            let symbol = usize::from(*byte);
            let len = u32::from(LENS[symbol]);
            bits = bits << len | u64::from(LONG.codes[symbol]);
            have += len;
            while have >= 8 {
                have -= 8;
                out.push((bits >> have) as u8);
            }
        }
        if have > 0 {
            let spare = 8 - have;
            out.push((bits << spare) as u8 | ((1 << spare) - 1) as u8);
        }
    }

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(coded, &mut out).ok().map(|()| out)
    }

    /// RFC 7541 §C.4 and §C.6.
    #[test]
    fn the_examples_of_the_specification() {
        for (text, coded) in [
            ("www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
            ("no-cache", "a8eb10649cbf"),
            ("302", "6402"),
            ("private", "aec3771a4b"),
            (
                "Mon, 21 Oct 2013 20:13:21 GMT",
                "d07abe941054d444a8200595040b8166e082a62d1bff",
            ),
            ("", ""),
        ] {
            let bytes: Vec<u8> = (0..coded.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&coded[at..at + 2], 16).unwrap())
                .collect();
            assert_eq!(decoded(&bytes).as_deref(), Some(text.as_bytes()));
            let mut out = Vec::new();
            encode(text.as_bytes(), &mut out);
            assert_eq!(out, bytes, "{text}");
            assert_eq!(coded_len(text.as_bytes()), bytes.len());
        }
    }

    #[test]
    fn padding_is_of_ones_and_short() {
        // `a` is 00011.
        assert_eq!(decoded(&[0b0001_1111]).as_deref(), Some(&b"a"[..]));
        assert_eq!(decoded(&[0b0001_1110]), None);
        assert_eq!(decoded(&[0b0001_1111, 0xff]), None);
        assert_eq!(decoded(&[0xff]), None);
        // The code that ends no string.
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), None);
    }

    proptest! {
        #[test]
        fn what_is_coded_is_read_back(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut coded = Vec::new();
            encode(&text, &mut coded);
            prop_assert_eq!(coded.len(), coded_len(&text));
            prop_assert_eq!(decoded(&coded), Some(text));
        }

        #[test]
        fn nothing_panics_and_grows_beyond_bounds(coded in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(text) = decoded(&coded) {
                prop_assert!(text.len() * 5 <= coded.len() * 8);
                let mut again = Vec::new();
                encode(&text, &mut again);
                prop_assert_eq!(again, coded);
            }
        }
    }
}
