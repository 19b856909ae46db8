//! The kinds of value that the options of TLS take.

use evenkeel_tls::{CipherSuite, Group};

use crate::setting::{Fault, FromText};

/// A cipher suite, by IANA's name or OpenSSL's.
#[derive(Debug, Clone, Copy)]
pub struct CipherName(pub CipherSuite);

impl FromText for CipherName {
    const FORM: &'static str = "a cipher suite, such as `\"TLS_AES_128_GCM_SHA256\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        CipherSuite::named(text)
            .map(Self)
            .map_err(|error| Fault::new(error.to_string()))
    }
}

/// A group of the key exchange.
#[derive(Debug, Clone, Copy)]
pub struct GroupName(pub Group);

impl FromText for GroupName {
    const FORM: &'static str = "a group, such as `\"X25519\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        Group::named(text)
            .map(Self)
            .map_err(|error| Fault::new(error.to_string()))
    }
}
