//! Versions, suites and groups by their names.

use evenkeel_tls::policy::PolicyError;
use evenkeel_tls::{CipherSuite, Group, Policy, Preset, Version};

/// The suites and groups that rustls gets.
fn offered(policy: &Policy) -> (Vec<String>, Vec<String>) {
    let provider = policy.provider();
    let suites = provider
        .cipher_suites
        .iter()
        .map(|it| format!("{:?}", it.suite()));
    let groups = provider
        .kx_groups
        .iter()
        .map(|it| format!("{:?}", it.name()));
    (suites.collect(), groups.collect())
}

#[test]
fn presets_are_mozillas() {
    let (suites, groups) = offered(&Policy::preset(Preset::Modern));
    let modern = [
        "TLS13_AES_128_GCM_SHA256",
        "TLS13_AES_256_GCM_SHA384",
        "TLS13_CHACHA20_POLY1305_SHA256",
    ];
    assert_eq!(suites, modern);
    assert_eq!(
        groups,
        ["X25519MLKEM768", "X25519", "secp256r1", "secp384r1"]
    );
    assert_eq!(Policy::preset(Preset::Modern).versions(), [Version::Tls13]);
    let intermediate = Policy::default();
    let (suites, same_groups) = offered(&intermediate);
    let more = [
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ];
    assert_eq!(suites, [&modern[..], &more].concat());
    assert_eq!(same_groups, groups);
    assert_eq!(intermediate.versions(), [Version::Tls13, Version::Tls12]);
}

#[test]
fn names_are_those_of_iana_and_openssl() {
    for (written, iana) in [
        ("TLS13_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("tls_aes_128_gcm_sha256", "TLS_AES_128_GCM_SHA256"),
        (
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        ),
        (
            "ECDHE-RSA-CHACHA20-POLY1305",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        ),
    ] {
        assert_eq!(CipherSuite::named(written).unwrap().to_string(), iana);
    }
    for (written, iana) in [
        ("X25519", "x25519"),
        ("x25519mlkem768", "X25519MLKEM768"),
        ("P-256", "secp256r1"),
        ("prime256v1", "secp256r1"),
        ("secp384r1", "secp384r1"),
    ] {
        assert_eq!(Group::named(written).unwrap().to_string(), iana);
    }
    let unknown = CipherSuite::named("ECDHE-RSA-AES128-SHA256").unwrap_err();
    assert_eq!(unknown.nearest, "ECDHE-RSA-AES128-GCM-SHA256");
    assert_eq!(unknown.known.len(), 9);
    let text = Group::named("P-265").unwrap_err().to_string();
    let start = "there is no key exchange group \"P-265\": did you mean \"P-256\"? Known are ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn lists_replace_those_of_their_version_alone() {
    let suite = |name: &str| CipherSuite::named(name).unwrap();
    let old = suite("ECDHE-RSA-AES256-GCM-SHA384");
    let policy = Policy::default().with_cipher_suites(&[old]).unwrap();
    let (suites, _) = offered(&policy);
    assert_eq!(suites.len(), 4);
    assert_eq!(suites[3], "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384");
    let error = Policy::preset(Preset::Modern)
        .with_cipher_suites(&[old])
        .unwrap_err();
    let text = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is a cipher suite of TLS 1.2, \
                which is not enabled";
    assert_eq!(error.to_string(), text);
}

#[test]
fn versions_and_groups_leave_something_to_agree_on() {
    let old = Policy::default()
        .with_versions(Version::Tls12, Version::Tls12)
        .unwrap();
    assert_eq!(old.versions(), [Version::Tls12]);
    assert_eq!(offered(&old).0.len(), 6);
    let none = Policy::default().with_versions(Version::Tls13, Version::Tls12);
    assert!(matches!(none, Err(PolicyError::NoVersion { .. })));
    let hybrid = [Group::named("X25519MLKEM768").unwrap()];
    let error = Policy::default().with_groups(&hybrid).unwrap_err();
    assert_eq!(
        error,
        PolicyError::NoGroupFor {
            version: Version::Tls12
        }
    );
    let policy = Policy::preset(Preset::Modern).with_groups(&hybrid).unwrap();
    assert_eq!(offered(&policy).1, ["X25519MLKEM768"]);
    assert_eq!(
        Policy::default().with_groups(&[]).unwrap_err(),
        PolicyError::NoGroup
    );
}
