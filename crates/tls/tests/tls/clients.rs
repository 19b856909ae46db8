//! Handshakes of the client configurations, in memory.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use evenkeel_testkit::TempDir;
use evenkeel_tls::client::{NoPin, PinMismatch};
use evenkeel_tls::reading::read;
use evenkeel_tls::{
    Authorities, ClientAuth, ClientSettings, Facts, Lifetimes, Pin, Policy, Served, Source,
    TicketKeys, UnknownName, Verify, Version, client_config, server_config,
};
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use rustls::client::ClientConnection;
use rustls::{AlertDescription, CertificateError, Error, HandshakeKind};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::ends::{Site, connect, seen};
use crate::issuing::{Authority, Issued, write};

fn settings(verify: Verify) -> ClientSettings {
    ClientSettings {
        policy: Policy::default(),
        verify,
        pins: Vec::new(),
        identity: None,
        alpn: vec![b"h2".to_vec()],
        sessions: 0,
        key_log: None,
    }
}

/// The authorities of a PEM text.
fn authorities(pem: &str) -> Authorities {
    let temp = TempDir::new().unwrap();
    let path = write(temp.path(), "ca.pem", pem);
    Authorities::read(&[path], &[]).unwrap()
}

/// A site with this certificate alone.
fn site_with(issued: &Issued) -> Site {
    let site = Site::new();
    issued.write_bundle(site.temp.path(), "site");
    site
}

/// The outcome of a handshake with a site.
fn outcome(site: &Site, settings: ClientSettings, name: &str) -> Result<ClientConnection, Error> {
    let server = server_config(site.settings(UnknownName::Default)).unwrap();
    let client = client_config(settings).unwrap();
    connect(&client, &server, name)
        .map(|it| it.0)
        .map_err(|it| it.0)
}

#[test]
fn names_addresses_and_issuers_are_verified() {
    let authority = Authority::new("CA");
    let site = site_with(&authority.issue(&["a.example", "192.0.2.1"]));
    let trusted = Verify::By(authorities(&authority.pem()));
    for name in ["a.example", "192.0.2.1"] {
        let client = outcome(&site, settings(trusted.clone()), name).unwrap();
        assert_eq!(client.alpn_protocol(), Some(&b"h2"[..]));
    }
    let error = outcome(&site, settings(trusted), "b.example").unwrap_err();
    let Error::InvalidCertificate(CertificateError::NotValidForNameContext {
        expected,
        presented,
    }) = error
    else {
        panic!("{error}");
    };
    assert_eq!(expected.to_str(), "b.example");
    assert!(
        presented.iter().any(|it| it.contains("a.example")),
        "{presented:?}"
    );
    let other = Verify::By(authorities(&Authority::new("Other").pem()));
    let error = outcome(&site, settings(other), "a.example").unwrap_err();
    assert_eq!(error, CertificateError::UnknownIssuer.into());
    let client = outcome(&site, settings(Verify::Nothing), "b.example").unwrap();
    assert_eq!(seen(&client), ["a.example"]);
}

#[test]
fn revoked_and_expired_endpoints_are_refused() {
    let authority = Authority::new("CA");
    let temp = TempDir::new().unwrap();
    let old = |it: &mut CertificateParams| {
        it.not_before = date_time_ymd(2020, 1, 1);
        it.not_after = date_time_ymd(2021, 1, 1);
    };
    let expired = authority.issue_with(&["a.example"], &PKCS_ECDSA_P256_SHA256, old);
    let revoked = authority.issue(&["a.example"]);
    let ca = write(temp.path(), "ca.pem", &authority.pem());
    let crl = write(temp.path(), "crl.pem", &authority.revoke(&[revoked.serial]));
    let trusted = Verify::By(Authorities::read(&[ca], &[crl]).unwrap());
    let error = outcome(&site_with(&revoked), settings(trusted.clone()), "a.example").unwrap_err();
    assert_eq!(error, CertificateError::Revoked.into());
    let error = outcome(&site_with(&expired), settings(trusted), "a.example").unwrap_err();
    let is_expired = matches!(
        error,
        Error::InvalidCertificate(CertificateError::ExpiredContext { .. })
    );
    assert!(is_expired, "{error}");
    assert!(outcome(&site_with(&expired), settings(Verify::Nothing), "a.example").is_ok());
}

#[test]
fn a_certificate_that_signed_itself_can_be_trusted() {
    let temp = TempDir::new().unwrap();
    let make = || {
        let at = |name: &str| temp.join(name).display().to_string();
        let status = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ])
            .args([
                "-nodes",
                "-subj",
                "/CN=self",
                "-addext",
                "subjectAltName=DNS:a.example",
            ])
            .args(["-keyout", &at("key"), "-out", &at("chain")])
            .stderr(std::process::Stdio::null())
            .status();
        assert!(status.unwrap().success());
        Issued {
            chain: fs::read_to_string(temp.join("chain")).unwrap(),
            key: fs::read_to_string(temp.join("key")).unwrap(),
            serial: 0,
        }
    };
    let issued = make();
    let site = site_with(&issued);
    let trusted = Verify::By(authorities(&issued.chain));
    assert!(outcome(&site, settings(trusted.clone()), "a.example").is_ok());
    let error = outcome(&site, settings(trusted), "b.example").unwrap_err();
    let is_name = matches!(
        error,
        Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
    );
    assert!(is_name, "{error}");
    // Another one of the same name is not trusted with it.
    let other = Verify::By(authorities(&make().chain));
    assert!(outcome(&site, settings(other), "a.example").is_err());
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(2021, 1, 1);
    let expired = Issued {
        chain: params.self_signed(&key).unwrap().pem(),
        key: key.serialize_pem(),
        serial: 0,
    };
    let trusted = Verify::By(authorities(&expired.chain));
    let error = outcome(&site_with(&expired), settings(trusted), "a.example").unwrap_err();
    let is_expired = matches!(
        error,
        Error::InvalidCertificate(CertificateError::ExpiredContext { .. })
    );
    assert!(is_expired, "{error}");
}

#[test]
fn pins_are_those_of_curl_and_count_beside_everything() {
    let authority = Authority::new("CA");
    let issued = authority.issue(&["a.example"]);
    let site = site_with(&issued);
    let der = CertificateDer::from_pem_slice(issued.chain.as_bytes()).unwrap();
    let pin = Pin::of(&der).unwrap();
    // As curl's manual says to make one.
    let script = format!(
        "openssl x509 -pubkey -noout -in {} | openssl pkey -pubin -outform der \
         | openssl dgst -sha256 -binary | openssl enc -base64",
        site.temp.join("site.pem").display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let base64 = String::from_utf8(output.stdout).unwrap();
    let base64 = base64.trim();
    assert_eq!(format!("sha256//{base64}").parse(), Ok(pin));
    assert_eq!(format!("sha256/{base64}").parse(), Ok(pin));
    assert_eq!(pin.to_string(), format!("sha256/{base64}"));
    for broken in [
        "",
        base64,
        "sha256/",
        "sha256/AAAA",
        "sha1/AAAA",
        &format!("sha256///{base64}"),
    ] {
        assert_eq!(broken.parse::<Pin>(), Err(NoPin), "{broken}");
    }
    let other: Pin = format!("sha256/{}=", "A".repeat(43)).parse().unwrap();
    let trusted = Verify::By(authorities(&authority.pem()));
    for verify in [trusted, Verify::Nothing] {
        let with = |pins: &[Pin]| {
            let pins = pins.to_vec();
            let settings = ClientSettings {
                pins,
                ..settings(verify.clone())
            };
            outcome(&site, settings, "a.example")
        };
        assert!(with(&[other, pin]).is_ok());
        let error = with(&[other]).unwrap_err();
        let Error::InvalidCertificate(CertificateError::Other(source)) = &error else {
            panic!("{error}");
        };
        let mismatch = source.0.downcast_ref::<PinMismatch>().unwrap();
        assert_eq!(mismatch.presented, Some(pin));
        assert!(mismatch.to_string().contains(base64));
    }
    let untrusting = Verify::By(authorities(&Authority::new("Other").pem()));
    let settings = ClientSettings {
        pins: vec![pin],
        ..settings(untrusting)
    };
    assert!(outcome(&site, settings, "a.example").is_err());
}

#[test]
fn without_verification_the_endpoint_still_has_to_own_its_key() {
    // A server that shows a certificate whose key it does not have: its key is another's.
    let authority = Authority::new("CA");
    let site = site_with(&authority.issue(&["a.example"]));
    let foreign = authority.issue(&["a.example"]);
    let certificates = site.certificates();
    let own = certificates.all()[0]
        .certified_key(UnixTime::now())
        .unwrap();
    let foreign = CertificateDer::from_pem_slice(foreign.chain.as_bytes()).unwrap();
    let stolen = rustls::sign::CertifiedKey::new(vec![foreign], own.key.clone());
    for version in [Version::Tls12, Version::Tls13] {
        let provider = Arc::new(Policy::default().provider());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
                stolen.clone(),
            )));
        let policy = Policy::default().with_versions(version, version).unwrap();
        let settings = ClientSettings {
            policy,
            alpn: Vec::new(),
            ..settings(Verify::Nothing)
        };
        let client = client_config(settings).unwrap();
        let (error, _) = *connect(&client, &Arc::new(server), "a.example").unwrap_err();
        assert_eq!(error, CertificateError::BadSignature.into());
    }
}

#[test]
fn a_client_shows_its_certificate_and_takes_up_another() {
    let site = Site::new();
    site.authority
        .issue(&["a.example"])
        .write_bundle(site.temp.path(), "a");
    let clients = Authority::new("Client CA");
    let mut of_site = site.settings(UnknownName::Default);
    of_site.client_auth = ClientAuth::Required(authorities(&clients.pem()));
    let server = server_config(of_site).unwrap();
    let temp = TempDir::new().unwrap();
    let read_identity = || {
        let (read, troubles) = read(&[Source::Folder(temp.path().to_owned())], None);
        assert_eq!(troubles, []);
        Arc::new(read)
    };
    let identity = Arc::new(Served::new(Arc::default(), UnknownName::Refuse));
    let client = client_config(ClientSettings {
        identity: Some(identity.clone()),
        ..settings(Verify::Nothing)
    });
    let client = client.unwrap();
    let (error, _) = *connect(&client, &server, "a.example").unwrap_err();
    assert_eq!(
        error,
        Error::AlertReceived(AlertDescription::CertificateRequired)
    );
    for name in ["one", "two"] {
        clients.issue(&[name]).write_bundle(temp.path(), "client");
        identity.replace(read_identity());
        let (_, of_server) = connect(&client, &server, "a.example").unwrap();
        let shown = Facts::of(&of_server.peer_certificates().unwrap()[0]).unwrap();
        assert_eq!(shown.dns_names, [name]);
    }
}

#[test]
fn sessions_are_resumed_where_they_are_kept() {
    let authority = Authority::new("CA");
    let site = site_with(&authority.issue(&["a.example"]));
    let mut of_site = site.settings(UnknownName::Default);
    let keys = TicketKeys::generate(Lifetimes::default()).unwrap();
    of_site.tickets = Some(Arc::new(keys));
    let server = server_config(of_site).unwrap();
    for (sessions, expected) in [(0, HandshakeKind::Full), (8, HandshakeKind::Resumed)] {
        let trusted = Verify::By(authorities(&authority.pem()));
        let client = client_config(ClientSettings {
            sessions,
            ..settings(trusted)
        })
        .unwrap();
        connect(&client, &server, "a.example").unwrap();
        let (client, _) = connect(&client, &server, "a.example").unwrap();
        assert_eq!(client.handshake_kind(), Some(expected));
    }
}

#[test]
fn the_systems_authorities_are_those_of_openssls_variable() {
    const INSIDE: &str = "EVENKEEL_TLS_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        match Authorities::system() {
            Ok(found) => println!("found {found:?}"),
            Err(error) => println!("none: {error}"),
        }
        return;
    }
    let temp = TempDir::new().unwrap();
    let pem = Authority::new("A").pem() + &Authority::new("B").pem();
    let path = write(temp.path(), "ca.pem", &pem);
    let seen = |file: &std::path::Path| {
        let name = "clients::the_systems_authorities_are_those_of_openssls_variable";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, "")
            .env("SSL_CERT_FILE", file)
            .env_remove("SSL_CERT_DIR")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(seen(&path).contains("found Authorities { roots: 2, crls: 0, .. }"));
    let none = seen(&temp.join("missing"));
    assert!(
        none.contains("none: the system has no readable trusted authorities: "),
        "{none}"
    );
}
