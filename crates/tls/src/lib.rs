//! TLS without I/O on connections: certificates, keys, tickets and policies, and the rustls
//! configurations that are made of them.
//!
//! Files are read here, on the thread of whoever asks. Records and handshakes are rustls'
//! own, and the sockets below them belong to others.
//!
//! | module | owns |
//! |---|---|
//! | [`certificate`] | a certificate with its chain and its key |
//! | [`facts`] | what stands in a certificate: names, validity, issuer, fingerprint |
//! | [`reading`] | files and folders of certificates, and what has changed in them |
//! | [`store`] | certificates by name, and which of them a client gets |
//! | [`resolver`] | the set that is served, which can be replaced at any time |
//! | [`policy`] | versions, cipher suites and groups |
//! | [`trust`] | authorities, revocation lists, and whether clients show certificates |
//! | [`tickets`] | resumption: the keys of tickets and how they rotate |
//! | [`mac`] | keys that sign what a client keeps |
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
