//! Steps through DER, in place.

use x509_parser::asn1_rs::{Any, Class, FromDer, Tag};

/// The content of a sequence.
pub(crate) fn sequence(der: &[u8]) -> Option<&[u8]> {
    let (_, it) = Any::from_der(der).ok()?;
    sequence_of(&it)
}

pub(crate) fn sequence_of<'a>(it: &Any<'a>) -> Option<&'a [u8]> {
    (it.tag() == Tag::Sequence).then_some(it.data)
}

/// The next element of a sequence's content.
pub(crate) fn next<'a>(content: &mut &'a [u8]) -> Option<Any<'a>> {
    let (rest, it) = Any::from_der(content).ok()?;
    *content = rest;
    Some(it)
}

/// The element with this tag of its context.
pub(crate) fn find(mut content: &[u8], tag: u32) -> Option<Any<'_>> {
    loop {
        let it = next(&mut content)?;
        if it.class() == Class::ContextSpecific && it.tag() == Tag(tag) {
            return Some(it);
        }
    }
}
