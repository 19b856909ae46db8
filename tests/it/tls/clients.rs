//! The certificates of clients, and the outcome of handshakes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use evenkeel_testkit::tls::Issued;
use evenkeel_testkit::{Origin, OriginOptions};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::*;

/// A client that shows a certificate, or none, and asks for a path.
fn ask(
    proxy: &Proxy,
    issuing: &Issuing,
    (versions, shown): (Versions, Option<&Issued>),
    path: &str,
) -> std::io::Result<evenkeel_testkit::Response> {
    let config = issuing.authority.trusting_with(versions, shown)?;
    let mut client = connect(proxy, "a.test", &config)?;
    // Over TLS 1.3 a client hears of its refusal with the first answer.
    client.ask(format!(
        "GET {path} HTTP/1.1\r\nHost: a.test\r\nClient-Cert: :Zm9yZ2Vk:\r\n\r\n"
    ))
}

/// A listener that asks clients for certificates of an authority, with further keys.
pub fn asking(issuing: &Issuing, more: &str) -> String {
    let ca = issuing.path("clients.pem");
    issuing.listener(&["a"], &format!(", client = {{ ca = '{ca}'{more} }}"))
}

/// An authority of clients, beside that of the server.
pub fn with_clients() -> (Issuing, Authority) {
    let issuing = Issuing::new();
    issuing.issue("a", &["a.test"]);
    let clients = Authority::new().unwrap();
    fs::write(issuing.path("clients.pem"), clients.pem()).unwrap();
    (issuing, clients)
}

#[test]
fn a_client_without_a_good_certificate_is_refused() {
    test(|| {
        let (issuing, clients) = with_clients();
        let (_origin, proxy) = site(&asking(&issuing, ""));
        let good = clients.issue(&["client.test"]).unwrap();
        let strange = issuing.authority.issue(&["client.test"]).unwrap();
        let expired = clients.issue_with(&["client.test"], |params| {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        });
        let expired = expired.unwrap();
        for versions in [TLS13, TLS12] {
            let answered = ask(&proxy, &issuing, (versions, Some(&good)), "/ping").unwrap();
            assert_eq!(answered.text(), "pong");
            for bad in [None, Some(&strange), Some(&expired)] {
                assert!(ask(&proxy, &issuing, (versions, bad), "/ping").is_err());
            }
        }
        until("all are counted", || counted(&proxy, "tls_failed") == 6);
        assert_logged(&proxy, words::TLS_HANDSHAKE);
    });
}

#[test]
fn endpoints_get_the_certificate_and_no_claim_of_the_client() {
    test(|| {
        let (issuing, clients) = with_clients();
        let shown = clients.issue(&["client.test"]).unwrap();
        let der = CertificateDer::from_pem_slice(shown.chain.as_bytes()).unwrap();
        let expected = format!("Client-Cert: :{}:\r\n", BASE64_STANDARD.encode(&der));
        for (more, expected) in [(", forward = true", Some(&expected)), ("", None)] {
            let (_origin, proxy) = site(&asking(&issuing, more));
            for versions in [TLS13, TLS12] {
                let head = ask(&proxy, &issuing, (versions, Some(&shown)), "/headers");
                let head = head.unwrap().text();
                assert!(!head.contains("Zm9yZ2Vk"), "{head}");
                match expected {
                    Some(line) => assert!(head.contains(line), "{head}"),
                    None => assert!(!head.contains("Client-Cert"), "{head}"),
                }
            }
        }
    });
}

#[test]
fn routes_ask_for_certificates() {
    test(|| {
        let (issuing, clients) = with_clients();
        let origin = Origin::local(OriginOptions::default()).unwrap();
        let fingerprint = {
            let mut command = Command::new("openssl");
            let shown = clients.issue(&["other.test"]).unwrap();
            shown.write(issuing.folder.path(), "other").unwrap();
            command.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]);
            let output = command.arg(issuing.path("other.crt")).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let hex = text.trim().rsplit('=').next().unwrap().replace(':', "");
            (shown, hex.to_ascii_lowercase())
        };
        let config = format!(
            "[server]\nworkers = 1\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n{}\n\
             [[route]]\nmatch = {{ client_certificate = \"dns:*.svc.test\", path = \"/headers\" }}\n\
             upstream = \"app\"\n\
             [[route]]\nmatch = {{ client_certificate = \"sha256:{}\" }}\nanswer = {{ body = \"known\" }}\n\
             [[route]]\nmatch = {{ client_certificate = true }}\nanswer = {{ body = \"some\" }}\n\
             [[route]]\nanswer = {{ status = 403, body = \"none\" }}\n\
             [upstream.app]\nendpoints = [\"{}\"]\n",
            asking(&issuing, ", mode = 'optional'"),
            fingerprint.1,
            origin.address
        );
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        let service = clients.issue(&["a.svc.test"]).unwrap();
        let unknown = clients.issue(&["svc.test"]).unwrap();
        for versions in [TLS13, TLS12] {
            for (shown, status, body) in [
                (Some(&service), 200, "GET /headers"),
                (Some(&fingerprint.0), 200, "known"),
                (Some(&unknown), 200, "some"),
                (None, 403, "none"),
            ] {
                let answer = ask(&proxy, &issuing, (versions, shown), "/headers").unwrap();
                assert_eq!(answer.status, status);
                assert!(answer.text().starts_with(body), "{body}: {}", answer.text());
            }
        }
    });
}

#[test]
fn a_revoked_certificate_is_refused_though_its_session_goes_on() {
    test(|| {
        let (issuing, clients) = with_clients();
        let revoked = |serials: &[u64]| {
            let list = clients.revoking(serials).unwrap();
            fs::write(issuing.path("revoked.pem"), list).unwrap();
        };
        revoked(&[7]);
        let crl = issuing.path("revoked.pem");
        let (_origin, proxy) = site(&asking(&issuing, &format!(", crl = '{crl}'")));
        let with_serial = |serial: u64| {
            let issued = clients.issue_with(&["client.test"], |params| {
                params.serial_number = Some(serial.into());
            });
            issued.unwrap()
        };
        let (bad, good) = (with_serial(7), with_serial(8));
        for versions in [TLS13, TLS12] {
            assert!(ask(&proxy, &issuing, (versions, Some(&bad)), "/ping").is_err());
        }
        let sessions = [TLS13, TLS12].map(|versions| {
            let config = issuing.authority.trusting_with(versions, Some(&good));
            let config = config.unwrap();
            for kind in [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed] {
                let mut client = connect(&proxy, "a.test", &config).unwrap();
                assert_eq!(client.get("/ping").unwrap().status, 200);
                assert_eq!(client.tls().unwrap().handshake_kind(), Some(kind));
            }
            config
        });
        revoked(&[7, 8]);
        until("the list is read again", || {
            proxy
                .stderr()
                .contains("the authorities for client certificates were reloaded")
        });
        for config in sessions {
            let answered = connect(&proxy, "a.test", &config).and_then(|mut it| it.get("/ping"));
            assert!(answered.is_err(), "{answered:?}");
        }
    });
}

#[test]
fn a_session_does_not_outlive_the_certificate_of_its_client() {
    test(|| {
        let (issuing, clients) = with_clients();
        let (_origin, proxy) = site(&asking(&issuing, ""));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let end = rcgen::date_time_ymd(1970, 1, 1) + now + Duration::from_secs(3);
        let shown = clients.issue_with(&["client.test"], |params| params.not_after = end);
        let shown = shown.unwrap();
        let configs = [TLS13, TLS12].map(|versions| {
            let config = issuing
                .authority
                .trusting_with(versions, Some(&shown))
                .unwrap();
            let mut client = connect(&proxy, "a.test", &config).unwrap();
            assert_eq!(client.get("/ping").unwrap().status, 200);
            config
        });
        for config in configs {
            until("the certificate has ended", || {
                let answered =
                    connect(&proxy, "a.test", &config).and_then(|mut it| it.get("/ping"));
                answered.is_err()
            });
        }
    });
}

#[test]
fn suites_and_groups_can_be_chosen() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let listener = issuing.listener(
            &["a"],
            ", ciphers = ['ECDHE-ECDSA-AES256-GCM-SHA384', 'TLS_CHACHA20_POLY1305_SHA256'], groups = 'P-384'",
        );
        let (_origin, proxy) = site(&listener);
        for (versions, suite) in [
            (TLS13, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
            (
                TLS12,
                rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            ),
        ] {
            let client = connect(&proxy, "a.test", &issuing.client(versions)).unwrap();
            let tls = client.tls().unwrap();
            assert_eq!(tls.negotiated_cipher_suite().unwrap().suite(), suite);
            let group = tls.negotiated_key_exchange_group().unwrap().name();
            assert_eq!(group, rustls::NamedGroup::secp384r1);
        }
        let (_origin, proxy) = site(&issuing.listener(&["a"], ", preset = 'modern'"));
        assert!(connect(&proxy, "a.test", &issuing.client(TLS12)).is_err());
        assert!(connect(&proxy, "a.test", &issuing.client(TLS13)).is_ok());
    });
}
