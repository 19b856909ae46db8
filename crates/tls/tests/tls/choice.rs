//! Which certificate a name gets.

use evenkeel_testkit::TempDir;
use evenkeel_tls::reading::read;
use evenkeel_tls::{Certificates, Source};
use rcgen::{
    CertificateParams, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, date_time_ymd,
};
use rustls::SignatureScheme;
use rustls_pki_types::UnixTime;
use std::time::Duration;

use crate::issuing::Authority;

const EC: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
const RSA: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;
const ED: SignatureScheme = SignatureScheme::ED25519;

/// Certificates of a folder with these files: name, DNS names, key, first and last year.
fn certificates(files: &[(&str, &[&str], SignatureScheme, i32, i32)]) -> Certificates {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    for (name, dns_names, scheme, first, last) in files {
        let algorithm = match *scheme {
            EC => &PKCS_ECDSA_P256_SHA256,
            RSA => &PKCS_RSA_SHA256,
            _ => &PKCS_ED25519,
        };
        let dates = |it: &mut CertificateParams| {
            it.not_before = date_time_ymd(*first, 1, 1);
            it.not_after = date_time_ymd(*last, 1, 1);
        };
        authority
            .issue_with(dns_names, algorithm, dates)
            .write_bundle(temp.path(), name);
    }
    let (certificates, troubles) = read(&[Source::Folder(temp.path().to_owned())], None);
    assert_eq!(troubles, []);
    certificates
}

/// The start of a year, roughly.
fn year(year: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_556_952))
}

/// The file that a name gets, without its extension.
fn found(certificates: &Certificates, name: &str, schemes: &[SignatureScheme]) -> String {
    let found = certificates.find(name, year(2026), |it| schemes.contains(&it));
    found.map_or("-".to_owned(), |it| {
        it.path().file_stem().unwrap().to_str().unwrap().to_owned()
    })
}

#[test]
fn exact_names_come_before_wildcards_of_one_label() {
    let certificates = certificates(&[
        ("exact", &["www.example.com", "example.com"], EC, 2000, 2050),
        ("wild", &["*.example.com"], EC, 2000, 2090),
        ("deep", &["*.a.example.com"], EC, 2000, 2050),
        ("top", &["localhost", "f*.example.net"], EC, 2000, 2050),
    ]);
    for (name, expected) in [
        ("www.example.com", "exact"),
        ("WWW.eXample.COM.", "exact"),
        ("example.com", "exact"),
        ("api.example.com", "wild"),
        ("API.example.com", "wild"),
        ("b.a.example.com", "deep"),
        ("a.example.com", "wild"),
        ("c.b.a.example.com", "-"),
        ("*.example.com", "wild"),
        ("localhost", "top"),
        ("foo.example.net", "-"),
        ("example.org", "-"),
        ("com", "-"),
        ("", "-"),
        (".", "-"),
        (".example.com", "wild"),
        ("..", "-"),
        (&"a".repeat(254), "-"),
        (&"a.".repeat(5000), "-"),
    ] {
        assert_eq!(found(&certificates, name, &[EC]), expected, "{name:.60}");
    }
}

#[test]
fn the_key_then_validity_then_the_name_then_the_end_decide() {
    let both: &[&str] = &["a.example"];
    let all = [EC, ED, RSA];
    // By the kind of the key.
    let by_key = certificates(&[
        ("rsa", both, RSA, 2000, 2090),
        ("ed", both, ED, 2000, 2080),
        ("ec", both, EC, 2000, 2050),
        ("wild", &["*.example"], EC, 2000, 2090),
    ]);
    for (schemes, expected) in [
        (&all[..], "ec"),
        (&[RSA], "rsa"),
        (&[ED, RSA], "ed"),
        (&[EC], "ec"),
        // None fits: one is found all the same.
        (&[], "ec"),
    ] {
        assert_eq!(
            found(&by_key, "a.example", schemes),
            expected,
            "{schemes:?}"
        );
    }
    let wild_fits = certificates(&[
        ("exact", both, RSA, 2000, 2090),
        ("wild", &["*.example"], EC, 2000, 2090),
    ]);
    assert_eq!(found(&wild_fits, "a.example", &[EC]), "wild");
    assert_eq!(found(&wild_fits, "a.example", &all), "exact");
    // By validity.
    let by_time = certificates(&[
        ("expired", both, EC, 2000, 2010),
        ("future", both, EC, 2050, 2099),
        ("soon", both, EC, 2000, 2030),
        ("late", both, EC, 2000, 2040),
        ("rsa", both, RSA, 2000, 2099),
    ]);
    assert_eq!(found(&by_time, "a.example", &all), "late");
    let at = |time: u64| {
        let found = by_time.find("a.example", year(time), |it| all.contains(&it));
        found.unwrap().path().file_stem().unwrap().to_owned()
    };
    assert_eq!(at(2045), "rsa");
    assert_eq!(at(2060), "future");
}

#[test]
fn the_first_certificate_is_that_of_the_first_source_in_any_key() {
    let certificates = certificates(&[
        ("a", &["first.example", "b.example"], RSA, 2000, 2050),
        ("b", &["b.example"], EC, 2000, 2050),
        ("c", &["first.example"], EC, 2000, 2050),
    ]);
    let first = |schemes: &[SignatureScheme]| {
        let first = certificates.first(year(2026), |it| schemes.contains(&it));
        first.unwrap().path().file_stem().unwrap().to_owned()
    };
    assert_eq!(first(&[EC, RSA]), "c");
    assert_eq!(first(&[RSA]), "a");
    assert!(
        Certificates::default()
            .first(year(2026), |_| true)
            .is_none()
    );
    assert!(
        Certificates::default()
            .find("a", year(2026), |_| true)
            .is_none()
    );
}

#[test]
fn a_certificate_without_a_dns_name_can_be_the_first() {
    let certificates = certificates(&[("a", &["192.0.2.1"], EC, 2000, 2050)]);
    assert!(certificates.first(year(2026), |_| true).is_some());
}
