//! Handshakes between rustls' client and the server configurations, in memory.

use std::sync::Arc;

use evenkeel_testkit::TempDir;
use evenkeel_tls::resolver::refusal;
use evenkeel_tls::{
    Authorities, ClientAuth, Lifetimes, Policy, Preset, TicketKeys, UnknownName, Version,
    server_config,
};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use rustls::{
    AlertDescription, CertificateError, Error, HandshakeKind, ProtocolVersion, SignatureAlgorithm,
};

use crate::ends::{Site, connect, seen};
use crate::issuing::{Authority, write};

#[test]
fn names_get_their_certificates_in_both_versions() {
    let site = Site::new();
    site.authority
        .issue(&["a.example"])
        .write_bundle(site.temp.path(), "a");
    site.authority
        .issue(&["*.b.example"])
        .write_bundle(site.temp.path(), "b");
    let server = server_config(site.settings(UnknownName::Default)).unwrap();
    let old = Policy::default()
        .with_versions(Version::Tls12, Version::Tls12)
        .unwrap();
    for (policy, version) in [
        (Policy::default(), ProtocolVersion::TLSv1_3),
        (old, ProtocolVersion::TLSv1_2),
    ] {
        let mut client = site.client(&policy, None);
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let client = Arc::new(client);
        let (seen_by_client, _) = connect(&client, &server, "a.example").unwrap();
        assert_eq!(seen(&seen_by_client), ["a.example"]);
        assert_eq!(seen_by_client.protocol_version(), Some(version));
        assert_eq!(seen_by_client.alpn_protocol(), Some(&b"http/1.1"[..]));
        // The chain is sent whole.
        assert_eq!(seen_by_client.peer_certificates().unwrap().len(), 2);
        let (seen_by_client, _) = connect(&client, &server, "www.b.example").unwrap();
        assert_eq!(seen(&seen_by_client), ["*.b.example"]);
        // The default one, with which this client is not content.
        let (error, _) = *connect(&client, &server, "other.example").unwrap_err();
        assert!(matches!(
            error,
            Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
        ));
    }
}

#[test]
fn an_unknown_name_is_refused_with_its_alert() {
    let site = Site::new();
    site.authority
        .issue(&["a.example"])
        .write_bundle(site.temp.path(), "a");
    let server = server_config(site.settings(UnknownName::Refuse)).unwrap();
    // The second one is asked for another share of its key first.
    let p384 = evenkeel_tls::Group::named("P-384").unwrap();
    let p256 = evenkeel_tls::Group::named("P-256").unwrap();
    let mut retried = site.settings(UnknownName::Refuse);
    retried.policy = Policy::default().with_groups(&[p384]).unwrap();
    let retried = server_config(retried).unwrap();
    let both = Policy::default().with_groups(&[p256, p384]).unwrap();
    let old = Policy::default()
        .with_versions(Version::Tls12, Version::Tls12)
        .unwrap();
    for (policy, server) in [
        (&Policy::default(), &server),
        (&old, &server),
        (&both, &retried),
    ] {
        let client = Arc::new(site.client(policy, None));
        assert!(connect(&client, server, "a.example").is_ok());
        let (error, of_server) = *connect(&client, server, "b.example").unwrap_err();
        assert_eq!(
            error,
            Error::AlertReceived(AlertDescription::UnrecognisedName)
        );
        assert!(refusal(&of_server).is_some());
        // An address is never sent as a name.
        let (error, _) = *connect(&client, server, "192.0.2.1").unwrap_err();
        assert_eq!(
            error,
            Error::AlertReceived(AlertDescription::UnrecognisedName)
        );
    }
    assert!(refusal(&Error::DecryptError).is_none());
}

#[test]
fn the_key_goes_by_what_the_client_can_verify() {
    let site = Site::new();
    for (name, algorithm) in [("ec", &PKCS_ECDSA_P256_SHA256), ("rsa", &PKCS_RSA_SHA256)] {
        let issued = site.authority.issue_with(&["a.example"], algorithm, |_| {});
        issued.write_bundle(site.temp.path(), name);
    }
    let server = server_config(site.settings(UnknownName::Refuse)).unwrap();
    let suite = |name| evenkeel_tls::CipherSuite::named(name).unwrap();
    let old = Policy::default()
        .with_versions(Version::Tls12, Version::Tls12)
        .unwrap();
    for (suites, expected) in [
        (
            &[suite("ECDHE-RSA-AES128-GCM-SHA256")][..],
            SignatureAlgorithm::RSA,
        ),
        (
            &[suite("ECDHE-ECDSA-AES128-GCM-SHA256")],
            SignatureAlgorithm::ECDSA,
        ),
        (
            &[
                suite("ECDHE-RSA-AES128-GCM-SHA256"),
                suite("ECDHE-ECDSA-AES128-GCM-SHA256"),
            ],
            SignatureAlgorithm::ECDSA,
        ),
    ] {
        let policy = old.clone().with_cipher_suites(suites).unwrap();
        let client = Arc::new(site.client(&policy, None));
        let (client, _) = connect(&client, &server, "a.example").unwrap();
        let chosen = format!("{:?}", client.negotiated_cipher_suite().unwrap().suite());
        assert!(chosen.contains(&format!("ECDHE_{expected:?}")), "{chosen}");
    }
    // Of several a client gets the first one in the server's list.
    for (first, expected) in [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "AES_128_GCM"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "CHACHA20"),
    ] {
        let other = suite("ECDHE-ECDSA-AES256-GCM-SHA384");
        let mut settings = site.settings(UnknownName::Refuse);
        settings.policy = old
            .clone()
            .with_cipher_suites(&[suite(first), other])
            .unwrap();
        let server = server_config(settings).unwrap();
        let client = Arc::new(site.client(&old, None));
        let (client, _) = connect(&client, &server, "a.example").unwrap();
        let chosen = format!("{:?}", client.negotiated_cipher_suite().unwrap().suite());
        assert!(chosen.contains(expected), "{chosen}");
    }
    // Without a key that fits, the alert is that of a failed handshake.
    std::fs::remove_file(site.temp.join("ec.pem")).unwrap();
    let server = server_config(site.settings(UnknownName::Refuse)).unwrap();
    let policy = old
        .with_cipher_suites(&[suite("ECDHE-ECDSA-AES128-GCM-SHA256")])
        .unwrap();
    let (error, _) =
        *connect(&Arc::new(site.client(&policy, None)), &server, "a.example").unwrap_err();
    assert_eq!(
        error,
        Error::AlertReceived(AlertDescription::HandshakeFailure)
    );
}

#[test]
fn a_set_is_replaced_while_it_serves() {
    let site = Site::new();
    site.authority
        .issue(&["a.example"])
        .write_bundle(site.temp.path(), "a");
    let settings = site.settings(UnknownName::Refuse);
    let served = settings.certificates.clone();
    let server = server_config(settings).unwrap();
    let client = Arc::new(site.client(&Policy::default(), None));
    assert!(connect(&client, &server, "b.example").is_err());
    site.authority
        .issue(&["b.example"])
        .write_bundle(site.temp.path(), "b");
    served.replace(site.certificates());
    assert!(connect(&client, &server, "b.example").is_ok());
    served.replace(Arc::default());
    let (error, _) = *connect(&client, &server, "a.example").unwrap_err();
    assert_eq!(
        error,
        Error::AlertReceived(AlertDescription::UnrecognisedName)
    );
}

#[test]
fn versions_and_groups_are_those_of_the_policy() {
    let site = Site::new();
    site.authority
        .issue(&["a.example"])
        .write_bundle(site.temp.path(), "a");
    let mut settings = site.settings(UnknownName::Default);
    settings.policy = Policy::preset(Preset::Modern);
    let server = server_config(settings).unwrap();
    let client = Arc::new(site.client(&Policy::default(), None));
    let (client, _) = connect(&client, &server, "a.example").unwrap();
    let group = client.negotiated_key_exchange_group().unwrap();
    assert_eq!(group.name(), rustls::NamedGroup::X25519MLKEM768);
    let old = Policy::default()
        .with_versions(Version::Tls12, Version::Tls12)
        .unwrap();
    let client = Arc::new(site.client(&old, None));
    let (error, _) = *connect(&client, &server, "a.example").unwrap_err();
    assert_eq!(
        error,
        Error::AlertReceived(AlertDescription::ProtocolVersion)
    );
}

#[test]
fn clients_show_certificates_as_the_policy_asks() {
    let site = Site::new();
    site.authority
        .issue(&["a.example"])
        .write_bundle(site.temp.path(), "a");
    let clients = Authority::new("Client CA");
    let good = clients.issue(&["client"]);
    let revoked = clients.issue(&["revoked"]);
    let stranger = Authority::new("Other CA").issue(&["client"]);
    let files = TempDir::new().unwrap();
    let ca = write(files.path(), "ca.pem", &clients.pem());
    let crl = write(files.path(), "crl.pem", &clients.revoke(&[revoked.serial]));
    let authorities = Authorities::read(&[ca], &[crl]).unwrap();
    let required = ClientAuth::Required(authorities.clone());
    let optional = ClientAuth::Optional(authorities);
    for (client_auth, allows_none) in [(optional, true), (required, false)] {
        let mut settings = site.settings(UnknownName::Default);
        settings.client_auth = client_auth;
        let server = server_config(settings).unwrap();
        let outcome = |identity| {
            let client = Arc::new(site.client(&Policy::default(), identity));
            connect(&client, &server, "a.example").map_err(|it| it.0)
        };
        let (_, of_server) = outcome(Some(&good)).unwrap();
        assert_eq!(of_server.peer_certificates().unwrap().len(), 2);
        let refused = |identity, alert| {
            assert_eq!(outcome(identity).unwrap_err(), Error::AlertReceived(alert));
        };
        refused(Some(&stranger), AlertDescription::UnknownCA);
        refused(Some(&revoked), AlertDescription::CertificateRevoked);
        if allows_none {
            assert!(outcome(None).unwrap().1.peer_certificates().is_none());
        } else {
            refused(None, AlertDescription::CertificateRequired);
        }
    }
}

#[test]
fn authorities_are_checked_when_they_are_read() {
    let files = TempDir::new().unwrap();
    let authority = Authority::new("CA");
    let ca = [write(files.path(), "ca.pem", &authority.pem())];
    let crl = write(files.path(), "crl.pem", &authority.revoke(&[]));
    let empty = write(files.path(), "empty.pem", "");
    let broken = authority.revoke(&[]).replace("\nMI", "\nMA");
    let broken = write(files.path(), "broken.pem", &broken);
    let error = |authorities: &[_], crls: &[_]| {
        Authorities::read(authorities, crls)
            .unwrap_err()
            .to_string()
    };
    assert!(error(&[empty], &[]).ends_with("empty.pem: contains no certificate"));
    let text = "ca.pem: contains no certificate revocation list";
    assert!(error(&ca, &ca).ends_with(text));
    let text = "broken.pem: a certificate revocation list in it cannot be parsed";
    assert!(error(&ca, &[broken]).ends_with(text));
    // The context of resumption depends on the trusted authorities, not on how they are
    // written.
    let context = |authorities: &[_], crls: &[_]| {
        ClientAuth::Required(Authorities::read(authorities, crls).unwrap()).context()
    };
    let twice = write(files.path(), "twice.pem", &authority.pem().repeat(2));
    let other = write(files.path(), "other.pem", &Authority::new("Other").pem());
    let one = context(&ca, &[]);
    assert_eq!(one, context(&[twice], &[]));
    assert_ne!(one, context(&[ca[0].clone(), other.clone()], &[]));
    assert_ne!(one, context(&[other], &[]));
    assert_ne!(one, context(&ca, &[crl]));
    assert_ne!(one, ClientAuth::None.context());
    let optional = ClientAuth::Optional(Authorities::read(&ca, &[]).unwrap());
    assert_ne!(one, optional.context());
}

#[test]
fn sessions_are_resumed_by_tickets_under_the_same_client_auth_alone() {
    let site = Site::new();
    site.authority
        .issue(&["a.example"])
        .write_bundle(site.temp.path(), "a");
    let clients = Authority::new("Client CA");
    let identity = clients.issue(&["client"]);
    let files = TempDir::new().unwrap();
    let ca = [write(files.path(), "ca.pem", &clients.pem())];
    let crl = write(files.path(), "crl.pem", &clients.revoke(&[]));
    let keys = Arc::new(TicketKeys::generate(Lifetimes::default()).unwrap());
    let server = |client_auth, tickets| {
        let mut settings = site.settings(UnknownName::Default);
        settings.client_auth = client_auth;
        settings.tickets = tickets;
        server_config(settings).unwrap()
    };
    let trusted = |crls: &[_]| Authorities::read(&ca, crls).unwrap();
    let required = server(ClientAuth::Required(trusted(&[])), Some(keys.clone()));
    let same = server(ClientAuth::Required(trusted(&[])), Some(keys.clone()));
    let revoking = server(ClientAuth::Required(trusted(&[crl])), Some(keys.clone()));
    let optional = server(ClientAuth::Optional(trusted(&[])), Some(keys.clone()));
    let none = server(ClientAuth::None, Some(keys));
    let ticketless = server(ClientAuth::Required(trusted(&[])), None);
    // No ticket is issued either, since it could not be accepted later.
    assert_eq!(ticketless.send_tls13_tickets, 0);
    let old = Policy::default()
        .with_versions(Version::Tls12, Version::Tls12)
        .unwrap();
    for policy in [Policy::default(), old] {
        for (first, second, expected) in [
            (&required, &required, HandshakeKind::Resumed),
            (&required, &same, HandshakeKind::Resumed),
            (&none, &none, HandshakeKind::Resumed),
            (&required, &revoking, HandshakeKind::Full),
            (&required, &optional, HandshakeKind::Full),
            (&none, &required, HandshakeKind::Full),
            (&ticketless, &ticketless, HandshakeKind::Full),
        ] {
            // Each connection has its own client, with its own store of sessions.
            let client = Arc::new(site.client(&policy, Some(&identity)));
            connect(&client, first, "a.example").unwrap();
            let (ends, of_server) = connect(&client, second, "a.example").unwrap();
            assert_eq!(ends.handshake_kind(), Some(expected));
            let is_known = of_server.peer_certificates().is_some();
            assert_eq!(is_known, !Arc::ptr_eq(second, &none));
        }
    }
}
