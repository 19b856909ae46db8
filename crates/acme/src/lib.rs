//! Automatic certificates by ACME (RFC 8555).
//!
//! No socket of the load balancer is touched here: the program answers challenges with
//! [`Challenges`], and serves the files that [`Manager::certificate_path`] names.
//!
//! ```no_run
//! # async fn run() -> Result<(), evenkeel_acme::Error> {
//! use evenkeel_acme::{ChallengeKind, Issuer, Manager, Settings};
//!
//! let manager = Manager::new(Settings {
//!     storage: "/var/lib/evenkeel/acme".into(),
//!     issuers: vec![Issuer {
//!         directory: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
//!         ca: None,
//!         email: Some("admin@example.com".to_owned()),
//!         profile: None,
//!         external_account: None,
//!     }],
//!     challenges: vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
//!     dns: None,
//!     on_demand: None,
//!     shared: None,
//! })?;
//! let answers = manager.challenges();
//! manager.follow(vec!["example.com".to_owned()]);
//! // Elsewhere: `answers.key_authorization(token)` and `answers.tls_alpn(server_name)`.
//! manager.keep().await;
//! # Ok(())
//! # }
//! ```
//!
//! | module | owns |
//! |---|---|
//! | [`settings`] | issuers, challenges, and the storage of files |
//! | [`manager`] | the names, and the schedule of each |
//! | [`status`] | the state of each name, as an operator sees it |
//! | [`challenges`] | the answers to running challenges |
//! | [`clock`] | the time, which tests set |
//! | [`shared`] | a server through which machines share certificates |
//! | [`key_file`] | files with the key of a name server |
//! | [`error`] | why the settings or the storage cannot be used |
#![forbid(unsafe_code)]

mod attempt;
mod certificate;
pub mod challenges;
mod changes;
pub mod clock;
mod dns;
pub mod error;
mod http;
mod issuer;
pub mod key_file;
mod lease;
pub mod manager;
mod name;
mod on_demand;
mod order;
mod placeholder;
mod schedule;
pub mod settings;
pub mod shared;
mod sharing;
pub mod status;
mod storage;

pub use challenges::{ACME_TLS_ALPN, Challenges};
pub use clock::{Clock, SystemClock};
pub use dns::clean_up::finish_clean_ups;
pub use error::Error;
pub use manager::{Demand, Manager};
pub use placeholder::placeholder;
pub use settings::{
    ChallengeKind, DnsSettings, ExternalAccount, Issuer, OnDemand, Settings, TsigAlgorithm,
    UpdateSettings,
};
pub use shared::Shared;
pub use status::{LastError, NotFollowed, State, Status};
