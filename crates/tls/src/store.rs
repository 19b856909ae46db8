//! The certificates of a listener, and the choice among them for a client.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls_pki_types::UnixTime;

use crate::certificate::Certificate;

/// The longest DNS name, in bytes (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;

/// A set of certificates that does not change, and an index of their names.
///
/// An index of 100,000 names takes about 8 MB.
#[derive(Debug, Default)]
pub struct Certificates {
    certificates: Vec<Arc<Certificate>>,
    exact: Index,
    /// By the name that stands after `*.`.
    wildcards: Index,
    /// The first certificate, and those with the same first name.
    first: Vec<u32>,
}

impl Certificates {
    /// A set in this order: the first certificate is the one for clients that name none.
    pub(crate) fn new(certificates: Vec<Arc<Certificate>>) -> Self {
        let mut exact = Vec::new();
        let mut wildcards = Vec::new();
        for (at, certificate) in certificates.iter().enumerate() {
            let at = u32::try_from(at).expect("no memory holds 4 billion certificates");
            for name in certificate.dns_names() {
                match name.strip_prefix("*.") {
                    Some(parent) => wildcards.push((parent.to_owned(), at)),
                    None => exact.push((name, at)),
                }
            }
        }
        let exact = Index::new(exact);
        let wildcards = Index::new(wildcards);
        let first_name = certificates
            .first()
            .and_then(|it| it.dns_names().into_iter().next());
        let first = match &first_name {
            Some(name) => match name.strip_prefix("*.") {
                Some(parent) => wildcards.get(parent).to_vec(),
                None => exact.get(name).to_vec(),
            },
            None => (0..).take(certificates.len().min(1)).collect(),
        };
        Self {
            certificates,
            exact,
            wildcards,
            first,
        }
    }

    /// The certificate for a name that a client has sent.
    ///
    /// Candidates have the exact name, or a wildcard as its first label (RFC 9525, section
    /// 6.3). The best candidate is chosen by these criteria, the first counting most:
    ///
    /// 1. a key that `is_usable` to the client,
    /// 2. validity at `now`,
    /// 3. the exact name,
    /// 4. the kind of the key: ECDSA, then Ed25519, then RSA,
    /// 5. the later end.
    ///
    /// If there is no other candidate, a certificate whose key the client can't use is chosen.
    /// The handshake then fails with the right alert.
    ///
    /// Case and a dot at the end are ignored. Nothing is allocated.
    pub fn find(
        &self,
        server_name: &str,
        now: UnixTime,
        is_usable: impl Fn(SignatureScheme) -> bool,
    ) -> Option<&Arc<Certificate>> {
        let mut buffer = [0; MAX_NAME];
        let name = lower_case(server_name, &mut buffer)?;
        let parent = name.split_once('.').map_or("", |(_, parent)| parent);
        let exact = self.exact.get(name);
        let wildcards = self.wildcards.get(parent);
        self.best(exact, wildcards, now, is_usable)
    }

    /// The first certificate, or one of another key with the same first name.
    ///
    /// Of several the same is chosen as by [`Certificates::find`].
    pub fn first(
        &self,
        now: UnixTime,
        is_usable: impl Fn(SignatureScheme) -> bool,
    ) -> Option<&Arc<Certificate>> {
        self.best(&self.first, &[], now, is_usable)
    }

    /// The certificates for this name, which may begin with `*.`, or for all names beside it.
    pub fn of_name(&self, name: &str) -> impl Iterator<Item = &Arc<Certificate>> {
        let (exact, parent) = match name.strip_prefix("*.") {
            Some(parent) => (&[][..], parent),
            None => {
                let parent = name.split_once('.').map_or("", |(_, parent)| parent);
                (self.exact.get(name), parent)
            }
        };
        let positions = exact.iter().chain(self.wildcards.get(parent));
        positions.map(|at| &self.certificates[*at as usize])
    }

    fn best(
        &self,
        exact: &[u32],
        wildcards: &[u32],
        now: UnixTime,
        is_usable: impl Fn(SignatureScheme) -> bool,
    ) -> Option<&Arc<Certificate>> {
        let exact = exact.iter().map(|at| (true, at));
        let wildcards = wildcards.iter().map(|at| (false, at));
        let mut best = None;
        for (is_exact, at) in exact.chain(wildcards) {
            let certificate = &self.certificates[*at as usize];
            let kind = certificate.key_kind();
            let rank = (
                kind.schemes().iter().any(|it| is_usable(*it)),
                certificate.is_valid_at(now),
                is_exact,
                kind.preference(),
                certificate.not_after(),
            );
            if best.as_ref().is_none_or(|(highest, _)| rank > *highest) {
                best = Some((rank, certificate));
            }
        }
        best.map(|(_, certificate)| certificate)
    }

    /// All certificates, in order.
    #[must_use]
    pub fn all(&self) -> &[Arc<Certificate>] {
        &self.certificates
    }

    /// Whether there are no certificates.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

/// Certificates by name.
#[derive(Debug, Default)]
struct Index {
    /// The range of each name in `positions`.
    ranges: HashMap<Box<str>, (u32, u32)>,
    positions: Vec<u32>,
}

impl Index {
    fn new(mut entries: Vec<(String, u32)>) -> Self {
        entries.sort_unstable();
        let mut ranges = HashMap::new();
        let mut positions = Vec::with_capacity(entries.len());
        for of_name in entries.chunk_by(|one, next| one.0 == next.0) {
            let start = positions.len() as u32;
            positions.extend(of_name.iter().map(|(_, at)| *at));
            let end = positions.len() as u32;
            ranges.insert(of_name[0].0.as_str().into(), (start, end));
        }
        ranges.shrink_to_fit();
        Self { ranges, positions }
    }

    fn get(&self, name: &str) -> &[u32] {
        let range = self.ranges.get(name);
        range.map_or(&[], |(start, end)| {
            &self.positions[*start as usize..*end as usize]
        })
    }
}

/// A name in lower case, without a dot at the end; `None` where it is no DNS name.
fn lower_case<'a>(name: &str, buffer: &'a mut [u8; MAX_NAME]) -> Option<&'a str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let lower = buffer.get_mut(..name.len())?;
    lower.copy_from_slice(name.as_bytes());
    lower.make_ascii_lowercase();
    std::str::from_utf8(lower).ok()
}
