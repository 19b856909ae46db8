//! Secrets that are sealed for a place that others can read, with a key from a file.
//!
//! Machines that share a server have the same key file. A secret opens only with this key, for
//! the same purpose and under the same name. Anyone who can write to the server can thus
//! neither read a secret nor swap two of them.
//!
//! Sealed bytes are `version (1) ‖ nonce (12) ‖ sealed ‖ tag (16)`, by AES-256-GCM-SIV (RFC
//! 8452). Nonces are random: this cipher tolerates a repeated nonce.

use std::fmt;
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use zeroize::Zeroizing;

use crate::error::{Error, Fault};
use crate::file;

/// The first byte.
const VERSION: u8 = 1;
/// Fewer bytes can be guessed.
const MIN_LEN: usize = 32;

/// The key of a cluster.
pub struct SealingKey {
    aead: LessSafeKey,
    /// Tells keys apart, and is no secret.
    mark: [u8; 32],
}

/// The use of a secret: it opens for no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A key of tickets.
    TicketKey,
    /// A record of ACME: an account, an order, a certificate with its key, an answer.
    AcmeRecord,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Purpose::TicketKey => b"ticket key",
            Purpose::AcmeRecord => b"ACME record",
        }
    }
}

impl SealingKey {
    /// Reads it from a file with at least 32 random bytes.
    ///
    /// # Errors
    /// The file can't be used.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (bytes, _) = file::read(path, 1 << 20)?;
        let found = bytes.len() as u64;
        let wrong = || Error::new(path, Fault::ShortKey { found });
        if bytes.len() < MIN_LEN {
            return Err(wrong());
        }
        let seed = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let derived = |label: &[u8]| Zeroizing::new(hmac::sign(&seed, label).as_ref().to_vec());
        let secret = derived(b"evenkeel cluster key, AES-256-GCM-SIV");
        let key = UnboundKey::new(&AES_256_GCM_SIV, &secret).map_err(|_| wrong())?;
        let mut mark = [0; 32];
        mark.copy_from_slice(&derived(b"evenkeel cluster key, mark"));
        Ok(Self {
            aead: LessSafeKey::new(key),
            mark,
        })
    }

    /// Tells this key apart from others, and is no secret: 16 hexadecimal digits.
    #[must_use]
    pub fn mark(&self) -> String {
        let digits = self.mark[..8].iter().map(|it| format!("{it:02x}"));
        digits.collect()
    }

    /// Seals a secret; `None` if the system provides no random bytes.
    #[must_use]
    pub fn seal(&self, purpose: Purpose, name: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let tag_len = AES_256_GCM_SIV.tag_len();
        let mut sealed = Vec::with_capacity(1 + NONCE_LEN + secret.len() + tag_len);
        sealed.push(VERSION);
        sealed.extend_from_slice(&nonce);
        let sealed_from = sealed.len();
        sealed.extend_from_slice(secret);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.aead.seal_in_place_separate_tag(
            nonce,
            context(purpose, name),
            &mut sealed[sealed_from..],
        );
        sealed.extend_from_slice(tag.ok()?.as_ref());
        Some(sealed)
    }

    /// Opens it; `None` where it was sealed by another key, for another purpose or under
    /// another name, or was changed.
    #[must_use]
    pub fn open(&self, purpose: Purpose, name: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (&VERSION, rest) = sealed.split_first()? else {
            return None;
        };
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut opened = Zeroizing::new(sealed.to_vec());
        let aead = &self.aead;
        let secret = aead.open_in_place(nonce, context(purpose, name), &mut opened);
        let len = secret.ok()?.len();
        opened.truncate(len);
        Some(opened)
    }
}

/// Purpose and name, which are authenticated beside a secret.
fn context(purpose: Purpose, name: &[u8]) -> Aad<Vec<u8>> {
    let label = purpose.label();
    let mut context = Vec::with_capacity(2 + label.len() + name.len());
    context.extend_from_slice(&[VERSION, label.len() as u8]);
    context.extend_from_slice(label);
    context.extend_from_slice(name);
    Aad::from(context)
}

impl PartialEq for SealingKey {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

impl Eq for SealingKey {}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey").finish_non_exhaustive()
    }
}
