//! Pages whose length and content follow from their number.

use std::sync::Arc;

/// Bytes that bodies are cut out of.
const NOISE_BYTES: usize = 4 << 20;
/// Bodies begin in the first part of them.
const BEGINS: usize = 2 << 20;

/// The host of all pages.
pub const HOST: &str = "site.example";

/// How long bodies are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// One page in a hundred has 100,000 bytes, one in ten thousand 1.2 to 2 MB, and all others
    /// have 200 to 2,000.
    Mixed,
    /// All pages have this many bytes, at most 2 MiB.
    Same(usize),
}

/// All pages of a site: there is one for each number.
#[derive(Debug, Clone)]
pub struct Pages {
    noise: Arc<[u8]>,
    lengths: Lengths,
    /// Further lines of the heads of pages with even and with odd numbers.
    fields: [Arc<str>; 2],
}

impl Pages {
    /// Pages with bodies of these lengths, and with `fields` in their heads.
    pub fn new(lengths: Lengths, fields: &str) -> Self {
        Pages::of_two_kinds(lengths, [fields, fields])
    }

    /// Pages with one value of `fields` for even numbers, and another one for odd numbers.
    pub fn of_two_kinds(lengths: Lengths, fields: [&str; 2]) -> Self {
        let mut random = fastrand::Rng::with_seed(44);
        let noise = std::iter::repeat_with(|| random.u8(..));
        Pages {
            noise: noise.take(NOISE_BYTES).collect(),
            lengths,
            fields: fields.map(Arc::from),
        }
    }

    /// The body of a page. Two pages with the same body are rarer than one in a million.
    pub fn body(&self, number: u64) -> &[u8] {
        let mut random = fastrand::Rng::with_seed(number);
        let begin = random.usize(..BEGINS);
        let len = match self.lengths {
            Lengths::Same(len) => len,
            Lengths::Mixed => match random.u32(..10_000) {
                0 => random.usize(1_200_000..2_000_000),
                1..=100 => 100_000,
                _ => random.usize(200..2_000),
            },
        };
        &self.noise[begin..begin + len]
    }

    /// Appends the response with a page.
    pub fn push_response(&self, number: u64, out: &mut Vec<u8>) {
        let (body, fields) = (self.body(number), &self.fields[(number % 2) as usize]);
        let head = format!(
            "HTTP/1.1 200 OK\r\nPage: {number}\r\nContent-Length: {}\r\n{fields}\r\n",
            body.len()
        );
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body);
    }
}

/// The path of a page: ten thousand are in a folder.
pub fn path(number: u64) -> String {
    format!("/pages/{}/{number}", number / 10_000)
}

/// The number that a path ends with.
pub(super) fn number(path: &str) -> Option<u64> {
    path.rsplit_once('/')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_all_of_a_page() {
        let pages = Pages::new(Lengths::Mixed, "");
        assert_eq!(pages.body(7), Pages::new(Lengths::Mixed, "").body(7));
        assert_ne!(pages.body(7), pages.body(8));
        let lens: Vec<usize> = (0..20_000).map(|it| pages.body(it).len()).collect();
        let count =
            |range: std::ops::Range<usize>| lens.iter().filter(|it| range.contains(it)).count();
        assert!((100..300).contains(&count(100_000..100_001)));
        assert!((1..10).contains(&count(1_200_000..2_000_000)));
        assert!(count(200..2_000) > 19_000);
        assert_eq!(number(&path(123_456)), Some(123_456));
    }
}
