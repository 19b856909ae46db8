//! OCSP responses that are sent along with a certificate (RFC 6960).

use rustls_pki_types::UnixTime;
use x509_parser::asn1_rs::{Class, FromDer, Tag};
use x509_parser::prelude::ASN1Time;

use crate::der::{find, next, sequence, sequence_of};
use crate::facts::unix_time;

/// An OCSP response in DER.
pub(crate) struct Staple {
    pub(crate) response: Box<[u8]>,
    /// The last second at which clients take it; `None` where the responder named none.
    until: Option<UnixTime>,
}

impl Staple {
    /// Parses a response; `None` unless it says that the certificate of this serial number
    /// is good.
    pub(crate) fn parse(response: &[u8], serial: &[u8]) -> Option<Self> {
        let mut fields = sequence(response)?;
        let status = next(&mut fields)?;
        if status.tag() != Tag::Enumerated || status.data != [0] {
            return None;
        }
        // The kind of response and its bytes, in an explicit tag.
        let mut typed = sequence(next(&mut fields)?.data)?;
        next(&mut typed)?;
        let mut basic = sequence(next(&mut typed)?.data)?;
        let mut data = sequence_of(&next(&mut basic)?)?;
        // Version, responder and time come before the answers.
        let mut answers = loop {
            if let Some(answers) = sequence_of(&next(&mut data)?) {
                break answers;
            }
        };
        loop {
            let mut answer = sequence_of(&next(&mut answers)?)?;
            let mut id = sequence_of(&next(&mut answer)?)?;
            for _ in 0..3 {
                next(&mut id)?;
            }
            if next(&mut id)?.data != serial {
                continue;
            }
            let status = next(&mut answer)?;
            if status.class() != Class::ContextSpecific || status.tag() != Tag(0) {
                return None;
            }
            next(&mut answer)?;
            let until = match find(answer, 0) {
                Some(time) => Some(unix_time(ASN1Time::from_der(time.data).ok()?.1)),
                None => None,
            };
            let response = response.into();
            return Some(Self { response, until });
        }
    }

    pub(crate) fn is_valid_at(&self, now: UnixTime) -> bool {
        self.until.is_none_or(|until| now <= until)
    }
}
