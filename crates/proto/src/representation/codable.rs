//! Whether the representation in a response may get a content coding on its way
//! (RFC 9110 §7.7, §8.4).

use crate::coding::{Gain, gain_of};
use crate::field::{decimal, list_items};

/// The facts on a coding in a response's fields.
#[derive(Debug, Clone, Copy, Default)]
pub struct Codable<'a> {
    content_type: &'a [u8],
    /// Value of `ETag`, with its quotes; empty for none.
    pub entity_tag: &'a [u8],
    announced_len: Option<u64>,
    is_barred: bool,
}

impl<'a> Codable<'a> {
    /// Reads the names and values of a response's fields.
    pub fn of(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut codable = Codable::default();
        for (name, value) in fields {
            codable.read(name, value);
        }
        codable
    }

    fn read(&mut self, name: &[u8], value: &'a [u8]) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        // Most names are told apart by their length.
        match name.len() {
            4 if is("etag") => self.entity_tag = value,
            12 if is("content-type") => self.content_type = value,
            13 if is("content-range") => self.is_barred = true,
            13 if is("cache-control") => {
                let mut directives = list_items(value);
                let forbids = |it: &[u8]| it.eq_ignore_ascii_case(b"no-transform");
                self.is_barred |= directives.any(forbids);
            }
            14 if is("content-length") => self.announced_len = decimal(value),
            16 if is("content-encoding") => {
                let mut codings = list_items(value);
                let is_one = |it: &[u8]| !it.eq_ignore_ascii_case(b"identity");
                self.is_barred |= codings.any(is_one);
            }
            _ => {}
        }
    }

    /// Whether the fields name a type.
    pub fn has_type(&self) -> bool {
        !self.content_type.is_empty()
    }

    /// Whether a response of this status may be coded: one that has a body, and all of
    /// its representation. The body is of one of these types, and no shorter than
    /// `min_bytes` where its length is known. `len` is that; `None` leaves it to the
    /// fields.
    pub fn gains(&self, status: u16, types: &[String], min_bytes: u64, len: Option<u64>) -> bool {
        let has_all = !matches!(status, 0..200 | 204..=206 | 226 | 304);
        let len = len.or(self.announced_len);
        has_all
            && !self.is_barred
            && len.is_none_or(|it| it > 0 && it >= min_bytes)
            && self.is_of(types)
    }

    /// Whether the body is of one of these types, and of one that gains by a coding.
    pub fn is_of(&self, types: &[String]) -> bool {
        let begins = |with: &String| {
            let front = self.content_type.get(..with.len());
            front.is_some_and(|it| it.eq_ignore_ascii_case(with.as_bytes()))
        };
        types.iter().any(begins) && gain_of(self.content_type) == Gain::Possible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gains(status: u16, fields: &[(&str, &str)], len: Option<u64>) -> bool {
        let types = ["text/".to_owned(), "application/".to_owned()];
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        Codable::of(fields).gains(status, &types, 100, len)
    }

    #[test]
    fn what_may_be_coded() {
        for fields in [
            &[("Content-Type", "text/html; charset=utf-8")][..],
            &[("content-type", "TEXT/HTML")],
            &[("Content-Type", "text/html"), ("Content-Length", "100")],
            &[("Content-Type", "text/a"), ("Content-Encoding", "identity")],
            &[("Content-Type", "text/a"), ("Cache-Control", "no-store")],
            &[("Content-Type", "application/json")],
        ] {
            for status in [200, 201, 203, 207, 404, 500] {
                assert!(gains(status, fields, None), "{status} {fields:?}");
            }
            for status in [101, 204, 205, 206, 226, 304] {
                assert!(!gains(status, fields, None), "{status} {fields:?}");
            }
        }
    }

    #[test]
    fn what_may_not_be_coded() {
        for fields in [
            &[][..],
            &[("Content-Type", "image/svg+xml")],
            &[("Content-Type", "text/event-stream")],
            &[("Content-Type", "application/zip")],
            &[("Content-Type", "application/grpc+proto")],
            &[("Content-Type", "text/a"), ("Content-Length", "99")],
            &[("Content-Type", "text/a"), ("Content-Length", "0")],
            &[("Content-Type", "text/a"), ("Content-Encoding", "br")],
            &[
                ("Content-Type", "text/a"),
                ("Content-Encoding", "identity, gzip"),
            ],
            &[("Content-Type", "text/a"), ("Content-Range", "bytes 0-1/2")],
            &[
                ("Content-Type", "text/a"),
                ("Cache-Control", "a, No-Transform"),
            ],
        ] {
            assert!(!gains(200, fields, None), "{fields:?}");
        }
        let text = &[("Content-Type", "text/a")];
        assert!(gains(200, text, Some(100)));
        assert!(!gains(200, text, Some(99)));
        assert!(!gains(200, text, Some(0)));
    }
}
