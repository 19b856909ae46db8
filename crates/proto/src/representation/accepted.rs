//! The content codings that `Accept-Encoding` accepts (RFC 9110 §12.5.3).

use crate::coding::Coding;
use crate::field::list_items;

/// Weights in thousandths, as far as they are stated.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// In the order of `Coding::ALL`.
    codings: [Option<u16>; Coding::ALL.len()],
    identity: Option<u16>,
    /// The weight of `*`: all codings that are not named.
    others: Option<u16>,
}

impl Weights {
    /// Takes in a line. The highest weight of a coding counts if it is named
    /// more than once. A malformed weight is 0.
    pub fn add(&mut self, line: &[u8]) {
        for item in list_items(line) {
            let (name, weight) = match memchr::memchr(b';', item) {
                Some(at) => (item[..at].trim_ascii_end(), weight(&item[at + 1..])),
                None => (item, MAX_WEIGHT),
            };
            if let Some(slot) = self.slot(name) {
                *slot = (*slot).max(Some(weight));
            }
        }
    }

    fn slot(&mut self, name: &[u8]) -> Option<&mut Option<u16>> {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("*") {
            return Some(&mut self.others);
        }
        if is("identity") {
            return Some(&mut self.identity);
        }
        let coding = if is("x-gzip") {
            Coding::Gzip
        } else {
            Coding::ALL.into_iter().find(|coding| is(coding.name()))?
        };
        Some(&mut self.codings[coding as usize])
    }

    /// The first of `offered` with the highest weight, if it is accepted and no
    /// less welcome than none.
    pub fn best(&self, offered: &[Coding]) -> Option<Coding> {
        let weight = |stated: Option<u16>| stated.or(self.others).unwrap_or(0);
        let (mut best, mut highest) = (None, 0);
        for &coding in offered {
            let weight = weight(self.codings[coding as usize]);
            if weight > highest {
                (best, highest) = (Some(coding), weight);
            }
        }
        best.filter(|_| highest >= weight(self.identity))
    }
}

const MAX_WEIGHT: u16 = 1000;

/// Reads `q=0.5`, with white space around it (§12.4.2); 0 if it is malformed.
fn weight(parameter: &[u8]) -> u16 {
    let (whole, fraction) = match parameter.trim_ascii() {
        [b'q' | b'Q', b'=', whole @ (b'0' | b'1')] => (whole, &[][..]),
        [b'q' | b'Q', b'=', whole @ (b'0' | b'1'), b'.', rest @ ..] => (whole, rest),
        _ => return 0,
    };
    if fraction.len() > 3 || !fraction.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    let digits = fraction.iter().chain(b"000").take(3);
    let fraction = digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    match whole {
        b'0' => fraction,
        _ if fraction == 0 => MAX_WEIGHT,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_weights() {
        for (parameter, thousandths) in [
            ("q=1", 1000),
            ("q=0", 0),
            ("q=1.", 1000),
            ("q=1.000", 1000),
            ("q=0.5", 500),
            ("q=0.05", 50),
            ("q=0.001", 1),
            (" Q=0.999\t", 999),
            ("q=1.001", 0),
            ("q=0.0001", 0),
            ("q=0.5555", 0),
            ("q=2", 0),
            ("q=-1", 0),
            ("q=.5", 0),
            ("q=10", 0),
            ("q= 1", 0),
            ("q =1", 0),
            ("q=", 0),
            ("q", 0),
            ("", 0),
            ("x=1", 0),
            ("q=1;x=1", 0),
        ] {
            assert_eq!(weight(parameter.as_bytes()), thousandths, "{parameter}");
        }
    }

    #[test]
    fn chooses_as_weighted() {
        use Coding::*;
        let all = [Zstd, Brotli, Gzip];
        for (line, offered, chosen) in [
            ("gzip, deflate, br, zstd", &all[..], Some(Zstd)),
            ("gzip, deflate, br", &all, Some(Brotli)),
            ("gzip;q=1, br;q=0.9", &all, Some(Gzip)),
            ("gzip;q=0.9, br;q=0.9", &all, Some(Brotli)),
            ("GZip", &all, Some(Gzip)),
            ("x-gzip", &all, Some(Gzip)),
            ("gzip;q=0, x-gzip;q=0.1", &all, Some(Gzip)),
            ("gzip, gzip;q=0, br;q=0.5", &all, Some(Gzip)),
            ("gzip ; q=0.5 ,\tbr ;q=0.4", &all, Some(Gzip)),
            ("*", &all, Some(Zstd)),
            ("*, zstd;q=0", &all, Some(Brotli)),
            ("*;q=0", &all, None),
            ("*;q=0, gzip", &all, Some(Gzip)),
            ("gzip;q=0", &[Gzip], None),
            ("gzip;q=0.000", &[Gzip], None),
            ("gzip;q=x, *", &[Gzip], None),
            ("identity", &all, None),
            ("identity, gzip", &all, Some(Gzip)),
            ("identity;q=0.5, gzip;q=0.4", &all, None),
            ("identity;q=0.5, gzip;q=0.5", &all, Some(Gzip)),
            ("identity;q=0", &all, None),
            ("gzip;q=0.3, *;q=0.5", &[Gzip], None),
            ("gzip;q=0.3, *;q=0.5", &all, Some(Zstd)),
            ("gzip;q=0.3, *;q=0.5, identity;q=0.1", &[Gzip], Some(Gzip)),
            ("deflate, compress, gzippy, brotli", &all, None),
            (",, gzip ,", &all, Some(Gzip)),
            ("", &all, None),
            ("gzip, br", &[], None),
        ] {
            let mut weights = Weights::default();
            weights.add(line.as_bytes());
            assert_eq!(weights.best(offered), chosen, "{line:?} of {offered:?}");
        }
    }
}
