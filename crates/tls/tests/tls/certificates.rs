//! Reading files and folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testkit::TempDir;
use evenkeel_tls::reading::{read, watched};
use evenkeel_tls::{Certificates, Facts, KeyKind, Source, Trouble, Watched};
use rcgen::{
    CertificateParams, DnType, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    PKCS_RSA_SHA256, SanType, date_time_ymd,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::issuing::{Authority, write};

fn folder(path: &Path) -> [Source; 1] {
    [Source::Folder(path.to_owned())]
}

/// The certificates of a source without any trouble.
fn read_well(sources: &[Source]) -> Certificates {
    let (certificates, troubles) = read(sources, None);
    assert_eq!(troubles, []);
    certificates
}

/// The file names of certificates, as they lie below a folder.
fn names(certificates: &Certificates, below: &Path) -> Vec<String> {
    let name = |path: &Path| path.strip_prefix(below).unwrap().display().to_string();
    certificates
        .all()
        .iter()
        .map(|it| name(it.path()))
        .collect()
}

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

#[test]
fn a_pair_has_its_facts() {
    let temp = TempDir::new().unwrap();
    let issued = Authority::new("Test CA").issue_with(
        &["Example.com", "*.example.com", "192.0.2.7", "2001:db8::1"],
        &PKCS_ECDSA_P256_SHA256,
        |it: &mut CertificateParams| {
            it.distinguished_name
                .push(DnType::CommonName, "not\nused.example");
            it.subject_alt_names
                .push(SanType::URI("spiffe://example/a".try_into().unwrap()));
            it.not_before = date_time_ymd(2001, 9, 9);
            it.not_after = date_time_ymd(2033, 5, 18);
        },
    );
    let chain = write(temp.path(), "site.pem", &issued.chain);
    let key = write(temp.path(), "site.key", &issued.key);
    let certificates = read_well(&[Source::Pair {
        chain: chain.clone(),
        key,
    }]);
    let certificate = &certificates.all()[0];
    let facts = certificate.facts();
    assert_eq!(facts.dns_names, ["example.com", "*.example.com"]);
    let addresses: Vec<_> = facts.ip_addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["192.0.2.7", "2001:db8::1"]);
    assert_eq!(facts.uris, ["spiffe://example/a"]);
    assert!(
        facts.subject.contains("not\\nused.example"),
        "{}",
        facts.subject
    );
    assert!(facts.issuer.contains("CN=Test CA"), "{}", facts.issuer);
    assert_eq!(u64::from_str_radix(&facts.serial, 16), Ok(issued.serial));
    assert_eq!(facts.not_before.as_secs(), 999_993_600);
    assert_eq!(facts.not_after.as_secs(), 1_999_987_200);
    assert_eq!(facts.key, KeyKind::EcdsaP256);
    assert_eq!(certificate.not_after(), facts.not_after);
    let output = Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(&chain)
        .output()
        .unwrap();
    let seen = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .replace(':', "");
    let own: String = facts
        .fingerprint
        .iter()
        .map(|it| format!("{it:02X}"))
        .collect();
    assert!(seen.ends_with(&own), "{seen} {own}");
}

#[test]
fn a_common_name_counts_only_without_alternative_names() {
    let temp = TempDir::new().unwrap();
    let names_of = |common: &str, names: &[&str]| {
        let with_name = |it: &mut CertificateParams| {
            it.distinguished_name.push(DnType::CommonName, common);
        };
        let issued = Authority::new("CA").issue_with(names, &PKCS_ECDSA_P256_SHA256, with_name);
        issued.write_bundle(temp.path(), "site");
        let certificates = read_well(&folder(temp.path()));
        certificates.all()[0].facts().dns_names
    };
    assert_eq!(names_of("Common.example", &[]), ["common.example"]);
    assert_eq!(names_of("Common.example", &["192.0.2.1"]), [] as [&str; 0]);
    // Neither an address nor a person's name is a DNS name.
    assert_eq!(names_of("192.0.2.1", &[]), [] as [&str; 0]);
    assert_eq!(names_of("Jane Doe", &[]), [] as [&str; 0]);
}

#[test]
fn mangled_certificates_are_none_or_others_but_never_a_panic() {
    let issued = Authority::new("CA").issue(&["a.example", "192.0.2.1"]);
    let der = CertificateDer::from_pem_slice(issued.chain.as_bytes()).unwrap();
    assert!(Facts::of(&der).is_some());
    for at in 0..der.len() {
        assert_eq!(Facts::of(&der[..at]), None);
        for bit in 0..8 {
            let mut mangled = der.to_vec();
            mangled[at] ^= 1 << bit;
            if let Some(facts) = Facts::of(&mangled) {
                assert!(!facts.subject.chars().any(char::is_control));
            }
        }
    }
    assert_eq!(Facts::of(&[&der[..], &[0]].concat()), None);
}

#[test]
fn every_form_of_key_belongs_to_its_certificate() {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    for (algorithm, kind, old_form) in [
        (&PKCS_ECDSA_P256_SHA256, "ECDSA P-256", Some("ec")),
        (&PKCS_ECDSA_P384_SHA384, "ECDSA P-384", Some("ec")),
        (&PKCS_RSA_SHA256, "RSA 2048", Some("rsa")),
        (&PKCS_ED25519, "Ed25519", None),
    ] {
        let issued = authority.issue_with(&["a.example"], algorithm, |_| {});
        let other = authority.issue_with(&["a.example"], algorithm, |_| {});
        let chain = write(temp.path(), "site.crt", &issued.chain);
        let key = write(temp.path(), "key", &issued.key);
        let mut keys = vec![key.clone()];
        let at = |name: &str| temp.path().join(name).display().to_string();
        if let Some(form) = old_form {
            let mut arguments = vec![form, "-in", "", "-out", ""];
            let (from, to) = (at("key"), at("old"));
            (arguments[2], arguments[4]) = (&from, &to);
            if form == "rsa" {
                arguments.push("-traditional");
            }
            openssl(&arguments);
            keys.push(temp.path().join("old"));
            openssl(&["pkey", "-in", &from, "-out", &at("pkcs8")]);
            keys.push(temp.path().join("pkcs8"));
            if form == "ec" {
                // With the curve in a section before it, and without the public key.
                let curve = if kind.ends_with("256") {
                    "prime256v1"
                } else {
                    "secp384r1"
                };
                openssl(&["ecparam", "-name", curve, "-out", &at("parameters")]);
                openssl(&["ec", "-in", &from, "-no_public", "-out", &at("bare")]);
                let read = |name: &str| fs::read_to_string(temp.path().join(name)).unwrap();
                let text = read("parameters") + &read("bare");
                keys.push(write(temp.path(), "with-parameters", &text));
            }
        }
        for key in keys {
            let pair = Source::Pair {
                chain: chain.clone(),
                key: key.clone(),
            };
            let certificates = read_well(&[pair]);
            let certificate = &certificates.all()[0];
            assert_eq!(certificate.key_kind().to_string(), kind);
            let certified = certificate.certified_key(UnixTime::now()).unwrap();
            let schemes = certificate.key_kind().schemes();
            for scheme in schemes {
                assert!(certified.key.choose_scheme(&[*scheme]).is_some(), "{kind}");
            }
        }
        let key = write(temp.path(), "other", &other.key);
        let (_, troubles) = read(&[Source::Pair { chain, key }], None);
        assert!(
            troubles[0].text.contains("does not belong"),
            "{kind}: {troubles:?}"
        );
    }
    // OpenSSL writes Ed25519 without the public key.
    let at = |name: &str| temp.path().join(name).display().to_string();
    openssl(&["genpkey", "-algorithm", "ed25519", "-out", &at("site.key")]);
    let request = ["req", "-x509", "-subj", "/CN=a.example", "-key"];
    openssl(&[&request[..], &[&at("site.key"), "-out", &at("site.crt")]].concat());
    let certificates = read_well(&folder(temp.path()));
    assert!(
        certificates.all()[0]
            .certified_key(UnixTime::now())
            .is_some()
    );
}

#[test]
fn what_is_wrong_is_said_and_no_secret_is() {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    let good = authority.issue(&["a.example"]);
    let other = authority.issue(&["b.example"]);
    let weak = temp.join("weak.key").display().to_string();
    openssl(&["genrsa", "-out", &weak, "1024"]);
    let weak_chain = temp.join("weak.pem").display().to_string();
    openssl(&[
        "req",
        "-x509",
        "-key",
        &weak,
        "-subj",
        "/CN=a",
        "-out",
        &weak_chain,
    ]);
    let key = write(temp.path(), "key", &good.key).display().to_string();
    let at = |name: &str| temp.join(name).display().to_string();
    openssl(&[
        "pkey",
        "-in",
        &key,
        "-aes128",
        "-passout",
        "pass:x",
        "-out",
        &at("enc1"),
    ]);
    openssl(&[
        "ec",
        "-in",
        &key,
        "-aes128",
        "-passout",
        "pass:x",
        "-out",
        &at("enc2"),
    ]);
    let read_back = |name: &str| fs::read_to_string(temp.join(name)).unwrap();
    let cut = good.key.len() - 40;
    let secret = good.key.lines().nth(1).unwrap().to_owned();
    let second = good.chain.rfind("-----BEGIN").unwrap();
    let reversed = format!("{}{}", &good.chain[second..], &good.chain[..second]);
    let cases = [
        ("", &good.key, "site.pem: contains no certificate"),
        ("text", &good.key, "site.pem: contains no certificate"),
        (
            &good.chain[..good.chain.len() - 30],
            &good.key,
            "site.pem: is not complete PEM",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            &good.key,
            "site.pem: certificate 1 in it cannot be parsed",
        ),
        (
            &good.chain,
            &String::new(),
            "site.key: contains no private key",
        ),
        (
            &good.chain,
            &good.key[..cut].to_owned(),
            "site.key: is not complete PEM",
        ),
        (
            &good.chain,
            &"-----BEGIN PRIVATE KEY-----\nMAAA\n-----END PRIVATE KEY-----\n".into(),
            "site.key: the private key in it cannot be parsed",
        ),
        (
            &good.chain,
            &read_back("enc1"),
            "site.key: contains an encrypted private key",
        ),
        (
            &good.chain,
            &read_back("enc2"),
            "site.key: contains an encrypted private key",
        ),
        (
            &good.chain,
            &other.key,
            "site.key: the private key does not belong to the first certificate in ",
        ),
        (&reversed, &good.key, "but to certificate 2"),
        (
            &read_back("weak.pem"),
            &read_back("weak.key"),
            "the key of the certificate is RSA 1024",
        ),
        (
            &"x".repeat(2 << 20),
            &good.key,
            "site.pem: is larger than 1024 KiB",
        ),
    ];
    let chain = temp.join("site.pem");
    let key = temp.join("site.key");
    for (chain_text, key_text, expected) in cases {
        fs::write(&chain, chain_text).unwrap();
        fs::write(&key, key_text).unwrap();
        let pair = Source::Pair {
            chain: chain.clone(),
            key: key.clone(),
        };
        let (certificates, troubles) = read(&[pair], None);
        assert!(certificates.is_empty());
        let [
            Trouble {
                text,
                is_kept: false,
                ..
            },
        ] = &troubles[..]
        else {
            panic!("{expected}: {troubles:?}");
        };
        assert!(text.contains(expected), "{expected}: {text}");
        assert!(!format!("{troubles:?}").contains(&secret));
    }
    fs::write(&chain, &good.chain).unwrap();
    fs::write(&key, &good.key).unwrap();
    let well = read_well(&[Source::Pair { chain, key }]);
    let key = well.all()[0].certified_key(UnixTime::now());
    let shown = format!("{:?} {key:?}", well.all()[0]);
    assert!(
        !shown.contains(&secret) && !shown.contains("48, "),
        "{shown}"
    );
}

#[test]
fn pipes_folders_and_missing_files_are_not_waited_for() {
    let temp = TempDir::new().unwrap();
    let issued = Authority::new("CA").issue(&["a.example"]);
    let chain = write(temp.path(), "site.pem", &issued.chain);
    let pipe = temp.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from(0o600)).unwrap();
    for (key, expected) in [
        (pipe, "is not a file, but a folder, a pipe or a device"),
        (
            temp.path().to_owned(),
            "is not a file, but a folder, a pipe or a device",
        ),
        (temp.join("missing"), "cannot be read: No such file"),
    ] {
        let pair = Source::Pair {
            chain: chain.clone(),
            key,
        };
        let (_, troubles) = read(&[pair], None);
        assert!(troubles[0].text.contains(expected), "{troubles:?}");
    }
}

#[test]
fn a_folder_holds_all_forms() {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    let site = |name: &str| authority.issue(&[name]);
    let root = temp.path();
    site("bundle.example").write_bundle(root, "bundle");
    let (a, b, c, d) = (
        site("a.example"),
        site("b.example"),
        site("c.example"),
        site("d.example"),
    );
    write(root, "beside.pem", &a.chain);
    write(root, "beside.pem.key", &a.key);
    write(root, "pair.crt", &b.chain);
    write(root, "pair.key", &b.key);
    write(root, "certbot/fullchain.pem", &c.chain);
    write(root, "certbot/privkey.pem", &c.key);
    write(root, "certbot/cert.pem", "unused");
    write(root, "certbot/chain.pem", "unused");
    write(root, "empty/README", "unused");
    write(root, "README", "unused");
    write(root, ".hidden.pem", "unused");
    fs::write(root.join("pair.crt.ocsp"), authority.respond(&b, 'V')).unwrap();
    // A link to a folder elsewhere, and one to a file.
    let elsewhere = TempDir::new().unwrap();
    write(elsewhere.path(), "fullchain.pem", &d.chain);
    write(elsewhere.path(), "privkey.pem", &d.key);
    std::os::unix::fs::symlink(elsewhere.path(), root.join("linked")).unwrap();
    std::os::unix::fs::symlink(root.join("bundle.pem"), root.join("z.pem")).unwrap();
    let certificates = read_well(&folder(root));
    let expected = [
        "beside.pem",
        "bundle.pem",
        "pair.crt",
        "z.pem",
        "certbot/fullchain.pem",
        "linked/fullchain.pem",
    ];
    assert_eq!(names(&certificates, root), expected);
    let stapled = certificates
        .all()
        .iter()
        .filter(|it| it.has_staple(UnixTime::now()));
    let stapled: Vec<_> = stapled.map(|it| it.path().to_owned()).collect();
    assert_eq!(stapled, [root.join("pair.crt")]);
    let folders = ["certbot", "empty", "linked"].map(|it| root.join(it));
    assert_eq!(
        watched(&folder(root)),
        Watched {
            files: Vec::new(),
            folders: [&[root.to_owned()], &folders[..]].concat(),
        }
    );
    // The folder of one certificate.
    let one = root.join("certbot");
    assert_eq!(names(&read_well(&folder(&one)), &one), ["fullchain.pem"]);
}

#[test]
fn a_staple_is_sent_while_it_is_valid_and_another_one_is_said() {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    let (issued, other) = (
        authority.issue(&["a.example"]),
        authority.issue(&["b.example"]),
    );
    issued.write_bundle(temp.path(), "site");
    let path = temp.join("site.pem.ocsp");
    let now = UnixTime::now();
    let good = authority.respond(&issued, 'V');
    let mut try_later = good.clone();
    let status = good.windows(3).position(|it| it == [0x0a, 1, 0]).unwrap();
    try_later[status + 2] = 3;
    let mut before = Certificates::default();
    for broken in [
        b"no OCSP".to_vec(),
        Vec::new(),
        try_later,
        good[..good.len() - 1].to_vec(),
        authority.respond(&issued, 'R'),
        authority.respond(&other, 'V'),
    ] {
        fs::write(&path, broken).unwrap();
        for _ in 0..2 {
            // Said each time, though nothing has changed.
            let (certificates, troubles) = read(&folder(temp.path()), Some(&before));
            let text = "site.pem.ocsp: is not an OCSP response in DER that says";
            assert!(troubles[0].text.contains(text), "{troubles:?}");
            assert!(!certificates.all()[0].has_staple(now));
            assert!(
                certificates.all()[0]
                    .certified_key(now)
                    .unwrap()
                    .ocsp
                    .is_none()
            );
            before = certificates;
        }
    }
    fs::write(&path, &good).unwrap();
    let (certificates, troubles) = read(&folder(temp.path()), Some(&before));
    assert_eq!(troubles, []);
    let sent = |at| {
        certificates.all()[0]
            .certified_key(at)
            .unwrap()
            .ocsp
            .clone()
    };
    assert_eq!(sent(now), Some(good));
    let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() + 2 * 86_400));
    assert_eq!(sent(later), None);
    assert!(!certificates.all()[0].has_staple(later));
}

#[test]
fn a_broken_pair_keeps_the_last_good_one() {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    let (old, new) = (
        authority.issue(&["a.example"]),
        authority.issue(&["a.example"]),
    );
    let chain = write(temp.path(), "site.crt", &old.chain);
    let key = write(temp.path(), "site.key", &old.key);
    let serial = |it: &Certificates| it.all().first().map(|it| it.facts().serial);
    let pair = Source::Pair {
        chain: chain.clone(),
        key: key.clone(),
    };
    for sources in [vec![pair], folder(temp.path()).to_vec()] {
        fs::write(&chain, &old.chain).unwrap();
        fs::write(&key, &old.key).unwrap();
        let first = read_well(&sources);
        // The chain is there, the key not yet.
        fs::write(&chain, &new.chain).unwrap();
        let (second, troubles) = read(&sources, Some(&first));
        let [
            Trouble {
                path,
                text,
                is_kept: true,
            },
        ] = &troubles[..]
        else {
            panic!("{troubles:?}");
        };
        assert!(
            *path == key && text.contains("does not belong"),
            "{troubles:?}"
        );
        assert_eq!(serial(&second), serial(&first));
        // Half of the key file, which is reported at each read.
        fs::write(&key, &new.key[..new.key.len() / 2]).unwrap();
        let (third, troubles) = read(&sources, Some(&second));
        assert!(troubles[0].is_kept && troubles[0].text.contains("not complete PEM"));
        let (fourth, again) = read(&sources, Some(&third));
        assert_eq!(again, troubles);
        assert_eq!(serial(&fourth), serial(&first));
        fs::write(&key, &new.key).unwrap();
        let (fifth, troubles) = read(&sources, Some(&fourth));
        assert_eq!(troubles, []);
        assert_ne!(serial(&fifth), serial(&first));
    }
}

#[test]
fn removed_files_take_their_certificate_and_a_lost_folder_keeps_all() {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    let root = temp.join("tls");
    fs::create_dir(&root).unwrap();
    let a = authority.issue(&["a.example"]).write_bundle(&root, "a");
    authority.issue(&["b.example"]).write_bundle(&root, "b");
    let both = read_well(&folder(&root));
    fs::remove_file(&a).unwrap();
    let (one, troubles) = read(&folder(&root), Some(&both));
    assert_eq!(
        (names(&one, &root), troubles),
        (vec!["b.pem".to_owned()], vec![])
    );
    fs::rename(&root, temp.join("gone")).unwrap();
    let (kept, troubles) = read(&folder(&root), Some(&one));
    assert_eq!(names(&kept, &root), ["b.pem"]);
    assert!(
        troubles[0].is_kept && troubles[0].path == root,
        "{troubles:?}"
    );
    // A pair that is gone is kept, since it was named.
    let pair = Source::Pair {
        chain: a.clone(),
        key: a,
    };
    let (kept, troubles) = read(&[pair], Some(&both));
    assert_eq!(names(&kept, &root), ["a.pem"]);
    assert!(troubles[0].is_kept, "{troubles:?}");
}

#[test]
fn unchanged_files_are_not_read_again() {
    let temp = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    let [_, b] = ["a", "b"].map(|name| {
        let issued = authority.issue(&[name]);
        issued.write_bundle(temp.path(), name);
        issued
    });
    let first = read_well(&folder(temp.path()));
    let shared = |one: &Certificates, other: &Certificates| -> Vec<bool> {
        let pairs = one.all().iter().zip(other.all());
        pairs.map(|(one, other)| Arc::ptr_eq(one, other)).collect()
    };
    let (second, _) = read(&folder(temp.path()), Some(&first));
    assert_eq!(shared(&first, &second), [true, true]);
    let path: PathBuf = authority.issue(&["a"]).write_bundle(temp.path(), "new");
    fs::rename(path, temp.join("a.pem")).unwrap();
    let (third, _) = read(&folder(temp.path()), Some(&second));
    assert_eq!(shared(&second, &third), [false, true]);
    // A file that comes beside one counts as a change.
    fs::write(temp.join("b.pem.ocsp"), authority.respond(&b, 'V')).unwrap();
    let (fourth, _) = read(&folder(temp.path()), Some(&third));
    assert_eq!(shared(&third, &fourth), [true, false]);
}
