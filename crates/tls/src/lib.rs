//! TLS without I/O on connections: certificates, keys, tickets and policies, and the rustls
//! configurations made from them.
//!
//! Files are read here, on the caller's thread. Records and handshakes are handled by rustls;
//! the sockets below belong to the callers.
//!
//! | module | owns |
//! |---|---|
//! | [`certificate`] | a certificate with its chain and its key |
//! | [`facts`] | the contents of a certificate: names, validity, issuer, fingerprint |
//! | [`reading`] | files and folders of certificates, and their changes |
//! | [`store`] | certificates by name, and the choice for a client |
//! | [`resolver`] | the served set, which can be replaced at any time |
//! | [`policy`] | versions, cipher suites and groups |
//! | [`trust`] | authorities, revocation lists, and whether clients show certificates |
//! | [`tickets`] | resumption: the keys of tickets and their rotation |
//! | [`mac`] | keys that sign data which a client keeps |
//! | [`sealed`] | secrets that are stored where others can read |
//! | [`server`] | the configuration for connections from clients |
//! | [`client`] | the configuration for connections to endpoints |
//! | [`key_log`] | a file with the secrets of connections |
//! | [`handshake_fault`] | why a handshake with an endpoint failed, in words |
//! | [`error`] | why a file cannot be used |
#![forbid(unsafe_code)]

pub mod certificate;
pub mod client;
mod der;
pub mod error;
pub mod facts;
mod file;
pub mod handshake_fault;
pub mod key;
pub mod key_log;
pub mod mac;
mod pem;
pub mod policy;
pub mod reading;
pub mod resolver;
pub mod sealed;
pub mod server;
mod staple;
pub mod store;
pub mod tickets;
pub mod trust;

pub use certificate::Certificate;
pub use client::{ClientSettings, Pin, Verify, client_config};
pub use error::{Error, Fault};
pub use facts::Facts;
pub use handshake_fault::HandshakeFault;
pub use key::KeyKind;
pub use key_log::KeyLogFile;
pub use mac::MacKey;
pub use policy::{CipherSuite, Group, Policy, Preset, Version};
pub use reading::{Source, Trouble, Watched};
pub use resolver::{Placeholder, Served, UnknownName};
pub use rustls_pki_types::UnixTime;
pub use sealed::SealingKey;
pub use server::{ServerSettings, handshake_config, server_config};
pub use store::Certificates;
pub use tickets::{FileKeys, Lifetimes, TicketCounts, TicketKeys};
pub use trust::{Authorities, ClientAuth};
