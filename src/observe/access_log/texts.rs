//! Texts of exchanges in a buffer, one after another, with their lengths before them.

use super::escape::are_plain;

/// Stands for an absent text, in place of its length.
const ABSENT: u8 = u8::MAX;
/// Means that the length follows in four bytes.
const LONG: u8 = ABSENT - 1;

/// Appends the lengths of texts, and then the texts.
pub(super) fn push_texts<const COUNT: usize>(out: &mut Vec<u8>, texts: [Option<&[u8]>; COUNT]) {
    let len_of = |text: &[u8]| text.len().min(usize::from(LONG)) as u8;
    let lens = texts.map(|text| text.map_or(ABSENT, len_of));
    out.extend_from_slice(&lens);
    for (text, len) in texts.into_iter().zip(lens) {
        if len == LONG {
            let len = text.unwrap_or_default().len() as u32;
            out.extend_from_slice(&len.to_ne_bytes());
        }
    }
    for text in texts.into_iter().flatten() {
        out.extend_from_slice(text);
    }
}

/// Texts that were read back.
pub(super) struct Texts<'a, const COUNT: usize> {
    pub texts: [Option<&'a [u8]>; COUNT],
    /// Whether all of them are printable ASCII without `"` and `\`.
    pub is_plain: bool,
}

/// Reads back texts from [`push_texts`].
pub(super) fn take_texts<'a, const COUNT: usize>(rest: &mut &'a [u8]) -> Texts<'a, COUNT> {
    let lens = take_array::<COUNT>(rest).map(|len| match len {
        ABSENT => None,
        LONG => Some(u32::from_ne_bytes(take_array(rest)) as usize),
        len => Some(usize::from(len)),
    });
    let before = *rest;
    let texts = lens.map(|len| len.map(|len| take(rest, len)));
    Texts {
        texts,
        is_plain: are_plain(&before[..before.len() - rest.len()]),
    }
}

fn take_array<const LEN: usize>(rest: &mut &[u8]) -> [u8; LEN] {
    let array;
    (array, *rest) = rest.split_first_chunk().expect("it was put there");
    *array
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let text;
    (text, *rest) = rest.split_at(len);
    text
}

/// The texts that only a template shows, in the order of its parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extras<'a>(&'a [u8]);

impl<'a> Extras<'a> {
    /// Reads back the texts in the next `len` bytes.
    pub fn take(rest: &mut &'a [u8], len: usize) -> Self {
        Extras(take(rest, len))
    }

    /// The next text; `None` where the exchange has none for it.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let [text] = take_texts(&mut self.0).texts;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_any_length_are_taken_as_they_were_put() {
        let lens = [
            Some(0),
            None,
            Some(253),
            Some(254),
            Some(255),
            Some(256),
            Some(70_000),
        ];
        let long = vec![b'a'; 70_000];
        let texts = lens.map(|len| len.map(|len| &long[..len]));
        let mut out = Vec::new();
        push_texts(&mut out, texts);
        push_texts(&mut out, [Some(&b"\""[..])]);
        let mut rest = &out[..];
        let taken = take_texts(&mut rest);
        assert_eq!(taken.texts, texts);
        assert!(taken.is_plain);
        let taken = take_texts(&mut rest);
        assert_eq!(taken.texts, [Some(&b"\""[..])]);
        assert!(!taken.is_plain);
        assert!(rest.is_empty());
    }
}
