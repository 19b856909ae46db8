//! Why a file of certificates, keys or tickets cannot be used.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A file that cannot be used, and why.
///
/// The text names the file and never shows what stands in it.
#[derive(Debug)]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// The fault.
    pub fault: Fault,
}

/// The fault of a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The file is missing, or the process may not read it.
    Unreadable(io::Error),
    /// A folder, a pipe or a device.
    NotRegular,
    /// The file is longer than a file of its kind may be.
    TooLarge {
        /// The most that is read, in bytes.
        max: u64,
    },
    /// A section of the PEM does not end, or is no base64.
    BrokenPem,
    /// DER, where PEM is read.
    Der,
    /// No certificate stands in it.
    NoCertificate,
    /// No private key stands in it, nor in a file beside it.
    NoKey,
    /// Its private key is encrypted.
    EncryptedKey,
    /// A certificate in it cannot be parsed.
    BrokenCertificate {
        /// Which one, counted from 1.
        number: usize,
    },
    /// The private key in it cannot be parsed.
    BrokenKey,
    /// The key of its certificate is of a kind that is not supported for TLS connections.
    UnsupportedKey {
        /// The kind, in words.
        kind: String,
    },
    /// The private key is another certificate's.
    KeyOfAnother {
        /// The file of the certificate, where it is another one.
        chain: PathBuf,
        /// Which certificate of that file the key belongs to, counted from 1.
        belongs_to: Option<usize>,
    },
    /// No OCSP response that says that the certificate is good.
    BrokenOcsp,
    /// No certificate revocation list stands in it.
    NoCrl,
    /// A certificate revocation list in it cannot be parsed.
    BrokenCrl,
    /// It has another length than a file of ticket keys.
    TicketKeyLength {
        /// Its length in bytes.
        found: u64,
    },
    /// The file is too short for a key that encrypts secrets.
    ShortKey {
        /// Its length in bytes.
        found: u64,
    },
}

impl Error {
    pub(crate) fn new(path: &Path, fault: Fault) -> Self {
        let path = path.to_owned();
        Self { path, fault }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.fault {
            Fault::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Fault::NotRegular => f.write_str("is not a file, but a folder, a pipe or a device"),
            Fault::TooLarge { max } => write!(f, "is larger than {} KiB", max >> 10),
            Fault::BrokenPem => {
                f.write_str("is not complete PEM: a section has no end, or is not valid base64")
            }
            Fault::Der => f.write_str("is DER: convert it to PEM, for example with `openssl x509`"),
            Fault::NoCertificate => f.write_str("contains no certificate"),
            Fault::NoKey => f.write_str("contains no private key, nor does a file beside it"),
            Fault::EncryptedKey => f.write_str(
                "contains an encrypted private key: decrypt it, for example with `openssl pkey`",
            ),
            Fault::BrokenCertificate { number } => {
                write!(f, "certificate {number} in it cannot be parsed")
            }
            Fault::BrokenKey => f.write_str("the private key in it cannot be parsed"),
            Fault::UnsupportedKey { kind } => write!(
                f,
                "the key of the certificate is {kind}: only ECDSA on P-256, P-384 and P-521, \
                 RSA of 2048 to 8192 bits, and Ed25519 are supported"
            ),
            Fault::KeyOfAnother { chain, belongs_to } => {
                f.write_str("the private key does not belong to the first certificate")?;
                if *chain != self.path {
                    write!(f, " in {}", chain.display())?;
                }
                match belongs_to {
                    Some(number) => write!(
                        f,
                        ", but to certificate {number}: the server's certificate must be first"
                    ),
                    None => Ok(()),
                }
            }
            Fault::BrokenOcsp => {
                f.write_str("is not an OCSP response in DER that says that the certificate is good")
            }
            Fault::NoCrl => f.write_str("contains no certificate revocation list"),
            Fault::BrokenCrl => f.write_str("a certificate revocation list in it cannot be parsed"),
            Fault::TicketKeyLength { found } => {
                write!(
                    f,
                    "has {found} bytes, but a file of ticket keys has 48 or 80"
                )
            }
            Fault::ShortKey { found } => {
                write!(f, "has {found} bytes, but a key needs at least 32")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}
