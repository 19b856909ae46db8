//! Versions of TLS, cipher suites and groups of key exchange.
//!
//! The presets follow Mozilla's guidelines 6.0 of April 2026 exactly: rustls has every suite
//! and group that they name. It has no CBC, no RSA key exchange and no finite-field
//! Diffie-Hellman. The client's order of suites counts, as they recommend.

use std::fmt;

use rustls::crypto::aws_lc_rs::{cipher_suite as suite, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

impl Version {
    fn of(suite: SupportedCipherSuite) -> Self {
        match suite {
            SupportedCipherSuite::Tls12(_) => Self::Tls12,
            SupportedCipherSuite::Tls13(_) => Self::Tls13,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls12 => "TLS 1.2",
            Self::Tls13 => "TLS 1.3",
        })
    }
}

/// A preset, by Mozilla's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Preset {
    /// TLS 1.3 alone: for clients since about 2019.
    Modern,
    /// TLS 1.2 and 1.3: for nearly all clients since about 2014.
    #[default]
    Intermediate,
}

/// A cipher suite, found by its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CipherSuite(SupportedCipherSuite);

/// A group of key exchange, found by its name.
#[derive(Debug, Clone, Copy)]
pub struct Group(&'static dyn SupportedKxGroup);

/// Cipher suites with their names: IANA's and OpenSSL's, and that of TLS 1.3 as rustls
/// writes it.
static SUITES: [(SupportedCipherSuite, &[&str]); 9] = [
    (
        suite::TLS13_AES_128_GCM_SHA256,
        &["TLS_AES_128_GCM_SHA256", "TLS13_AES_128_GCM_SHA256"],
    ),
    (
        suite::TLS13_AES_256_GCM_SHA384,
        &["TLS_AES_256_GCM_SHA384", "TLS13_AES_256_GCM_SHA384"],
    ),
    (
        suite::TLS13_CHACHA20_POLY1305_SHA256,
        &[
            "TLS_CHACHA20_POLY1305_SHA256",
            "TLS13_CHACHA20_POLY1305_SHA256",
        ],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        &[
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        &[
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "ECDHE-RSA-AES128-GCM-SHA256",
        ],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        &[
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
        ],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        &[
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "ECDHE-RSA-AES256-GCM-SHA384",
        ],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        &[
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
        ],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        &[
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            "ECDHE-RSA-CHACHA20-POLY1305",
        ],
    ),
];

/// Groups with their names: IANA's first. The presets have the first four.
static GROUPS: [(&dyn SupportedKxGroup, &[&str]); 7] = [
    (kx_group::X25519MLKEM768, &["X25519MLKEM768"]),
    (kx_group::X25519, &["x25519"]),
    (kx_group::SECP256R1, &["secp256r1", "P-256", "prime256v1"]),
    (kx_group::SECP384R1, &["secp384r1", "P-384"]),
    (kx_group::SECP256R1MLKEM768, &["SecP256r1MLKEM768"]),
    (kx_group::MLKEM768, &["MLKEM768"]),
    (kx_group::MLKEM1024, &["MLKEM1024"]),
];

impl Eq for CipherSuite {}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for Group {}

impl CipherSuite {
    /// Finds a suite by its name, whatever the case.
    ///
    /// # Errors
    /// No suite has this name.
    pub fn named(name: &str) -> Result<Self, UnknownChoice> {
        find(&SUITES, name, "cipher suite").map(Self)
    }

    /// The version that it belongs to.
    #[must_use]
    pub fn version(self) -> Version {
        Version::of(self.0)
    }
}

impl Group {
    /// Finds a group by its name, whatever the case.
    ///
    /// # Errors
    /// No group has this name.
    pub fn named(name: &str) -> Result<Self, UnknownChoice> {
        find(&GROUPS, name, "key exchange group").map(Self)
    }
}

impl fmt::Display for CipherSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = SUITES.iter().find(|(it, _)| *it == self.0);
        f.write_str(known.map_or("", |(_, names)| names[0]))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = GROUPS.iter().find(|(it, _)| it.name() == self.0.name());
        f.write_str(known.map_or("", |(_, names)| names[0]))
    }
}

fn find<T: Copy>(
    known: &'static [(T, &'static [&'static str])],
    name: &str,
    kind: &'static str,
) -> Result<T, UnknownChoice> {
    let is_named = |names: &[&str]| names.iter().any(|it| it.eq_ignore_ascii_case(name));
    if let Some((found, _)) = known.iter().find(|(_, names)| is_named(names)) {
        return Ok(*found);
    }
    let written = name.to_ascii_uppercase();
    let all = known.iter().flat_map(|(_, names)| *names).copied();
    let nearest =
        all.min_by_key(|it| strsim::damerau_levenshtein(&written, &it.to_ascii_uppercase()));
    Err(UnknownChoice {
        kind,
        written: name.to_owned(),
        nearest: nearest.unwrap_or_default(),
        known: known.iter().map(|(_, names)| names[0]).collect(),
    })
}

/// A name of a suite or a group that there is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownChoice {
    kind: &'static str,
    /// The name.
    pub written: String,
    /// The name that is written the most alike.
    pub nearest: &'static str,
    /// All that there is, by IANA's names.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            written,
            nearest,
            ..
        } = self;
        let known = self.known.join(", ");
        write!(
            f,
            "there is no {kind} \"{written}\": did you mean \"{nearest}\"? Known are {known}"
        )
    }
}

impl std::error::Error for UnknownChoice {}

/// Versions, suites and groups that connections may use.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Newest first.
    versions: Vec<Version>,
    suites: Vec<CipherSuite>,
    groups: Vec<Group>,
    /// Whether a server prefers the order of `suites` to its client's.
    has_own_order: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self::preset(Preset::default())
    }
}

impl Policy {
    /// The policy of a preset.
    #[must_use]
    pub fn preset(preset: Preset) -> Self {
        let versions = match preset {
            Preset::Modern => vec![Version::Tls13],
            Preset::Intermediate => vec![Version::Tls13, Version::Tls12],
        };
        let suites = SUITES.iter().map(|(it, _)| CipherSuite(*it));
        Self {
            suites: suites
                .filter(|it| versions.contains(&it.version()))
                .collect(),
            groups: GROUPS.iter().take(4).map(|(it, _)| Group(*it)).collect(),
            has_own_order: false,
            versions,
        }
    }

    /// The same for these versions alone. Suites are those of the presets.
    ///
    /// # Errors
    /// No version lies between them.
    pub fn with_versions(mut self, oldest: Version, newest: Version) -> Result<Self, PolicyError> {
        if oldest > newest {
            return Err(PolicyError::NoVersion { oldest, newest });
        }
        let all = [Version::Tls13, Version::Tls12];
        self.versions = all
            .into_iter()
            .filter(|it| (oldest..=newest).contains(it))
            .collect();
        let suites = SUITES.iter().map(|(it, _)| CipherSuite(*it));
        self.suites = suites
            .filter(|it| self.versions.contains(&it.version()))
            .collect();
        Ok(self)
    }

    /// The same with these suites, the preferred one first. A version without a suite in the
    /// list keeps its own: lists for other servers are often for TLS 1.2 alone, and do not
    /// cover TLS 1.3.
    ///
    /// # Errors
    /// A suite belongs to a version that the policy does not have.
    pub fn with_cipher_suites(mut self, suites: &[CipherSuite]) -> Result<Self, PolicyError> {
        let is_of_none = |it: &&CipherSuite| !self.versions.contains(&it.version());
        if let Some(suite) = suites.iter().find(is_of_none) {
            return Err(PolicyError::OtherVersion { suite: *suite });
        }
        let is_given = |version| suites.iter().any(|it| it.version() == version);
        self.suites.retain(|it| !is_given(it.version()));
        self.suites.extend(suites);
        self.has_own_order = true;
        Ok(self)
    }

    /// Whether a server prefers its own order of suites to the client's. The suites of a preset
    /// are equally good, and the client knows which of them it computes fastest.
    #[must_use]
    pub fn has_own_order(&self) -> bool {
        self.has_own_order
    }

    /// The same with these groups. A server takes the first one that the client has.
    ///
    /// # Errors
    /// The list is empty, or a version can use none of the groups: TLS 1.2 has no hybrid
    /// groups.
    pub fn with_groups(mut self, groups: &[Group]) -> Result<Self, PolicyError> {
        if groups.is_empty() {
            return Err(PolicyError::NoGroup);
        }
        let is_usable = |version: &Version| {
            let version = match version {
                Version::Tls12 => rustls::ProtocolVersion::TLSv1_2,
                Version::Tls13 => rustls::ProtocolVersion::TLSv1_3,
            };
            groups.iter().any(|it| it.0.usable_for_version(version))
        };
        if let Some(version) = self.versions.iter().find(|it| !is_usable(it)) {
            return Err(PolicyError::NoGroupFor { version: *version });
        }
        self.groups = groups.to_vec();
        Ok(self)
    }

    /// The versions, newest first.
    #[must_use]
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// The versions, for rustls.
    pub(crate) fn protocol_versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let of_rustls = |it: &Version| match it {
            Version::Tls12 => &TLS12,
            Version::Tls13 => &TLS13,
        };
        self.versions.iter().map(of_rustls).collect()
    }

    /// Suites and groups, for rustls.
    #[must_use]
    pub fn provider(&self) -> CryptoProvider {
        CryptoProvider {
            cipher_suites: self.suites.iter().map(|it| it.0).collect(),
            kx_groups: self.groups.iter().map(|it| it.0).collect(),
            ..default_provider()
        }
    }
}

/// A policy that no connection could use.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The oldest version is newer than the newest.
    NoVersion {
        /// The oldest.
        oldest: Version,
        /// The newest.
        newest: Version,
    },
    /// A suite belongs to a version that is not enabled.
    OtherVersion {
        /// The suite.
        suite: CipherSuite,
    },
    /// The list of groups is empty.
    NoGroup,
    /// A version can use none of the groups.
    NoGroupFor {
        /// The version.
        version: Version,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVersion { oldest, newest } => {
                write!(
                    f,
                    "no TLS version is enabled: the range from {oldest} to {newest} is empty"
                )
            }
            Self::OtherVersion { suite } => {
                write!(
                    f,
                    "{suite} is a cipher suite of {}, which is not enabled",
                    suite.version()
                )
            }
            Self::NoGroup => f.write_str("at least one key exchange group is needed"),
            Self::NoGroupFor { version } => {
                write!(
                    f,
                    "{version} is enabled, but none of the key exchange groups works with it"
                )
            }
        }
    }
}

impl std::error::Error for PolicyError {}
