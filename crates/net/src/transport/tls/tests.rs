use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::session::{End, SEALED_LEN, Session, WRITE_LEN};

/// Both ends of a connection to `a.test`, without a socket.
fn ends(versions: &[&'static rustls::SupportedProtocolVersion]) -> [Session; 2] {
    ends_of(versions, false)
}

/// The same, with a server that asks for a certificate, and a client with a wrong one.
fn ends_of(
    versions: &[&'static rustls::SupportedProtocolVersion],
    asks_for_certificate: bool,
) -> [Session; 2] {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let issued = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let certificate = issued.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let roots = Arc::new(roots);
    let server = if asks_for_certificate {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        server.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        server.with_no_client_auth()
    };
    let key = PrivateKeyDer::Pkcs8(key);
    let mut server = server
        .with_single_cert(vec![certificate.clone()], key.clone_key())
        .unwrap();
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut client = if asks_for_certificate {
        let shown = vec![certificate];
        client.with_client_auth_cert(shown, key).unwrap()
    } else {
        client.with_no_client_auth()
    };
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = "a.test".try_into().unwrap();
    [
        Session::accept(Arc::new(server)).unwrap(),
        Session::connect(Arc::new(client), name).unwrap(),
    ]
}

/// Takes what waits to be sent.
fn sent(session: &mut Session) -> Vec<u8> {
    let bytes = session.outgoing.rest().to_vec();
    session.outgoing.take(bytes.len());
    bytes
}

/// Makes a session read records in pieces of this length.
fn receive(session: &mut Session, bytes: &[u8], piece: usize) {
    let mut scratch = Vec::new();
    for piece in bytes.chunks(piece) {
        let kept = session.begin_read(&mut scratch, piece.len());
        scratch[kept..kept + piece.len()].copy_from_slice(piece);
        let filled = session.receive(&mut scratch[..kept + piece.len()], &mut []);
        assert_eq!(filled, 0);
    }
}

/// Has both agree, with every message in pieces of this length.
fn agree([server, client]: &mut [Session; 2], piece: usize) {
    for _ in 0..4 {
        let bytes = sent(client);
        receive(server, &bytes, piece);
        let bytes = sent(server);
        receive(client, &bytes, piece);
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
}

/// The records that carry these bytes.
fn sealed(session: &mut Session, bytes: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let (mut records, mut record_ends) = (vec![0; SEALED_LEN], Vec::new());
    let len = session.seal(bytes, &mut records, &mut record_ends).unwrap();
    records.truncate(len);
    (records, record_ends)
}

/// Versions that both speak, the newest first.
const VERSIONS: [&[&rustls::SupportedProtocolVersion]; 2] = [
    &[&rustls::version::TLS12],
    &[&rustls::version::TLS13, &rustls::version::TLS12],
];

#[test]
fn both_agree_and_carry_bytes_in_pieces_of_any_length() {
    for versions in VERSIONS {
        for piece in [1, 7, 100, 1 << 16] {
            let mut both = ends(versions);
            agree(&mut both, piece);
            let [server, client] = &mut both;
            let said = server.negotiated();
            assert_eq!(said.server_name, Some("a.test"));
            assert_eq!(said.protocol, Some(&b"http/1.1"[..]));
            assert_eq!(said.version, Some(versions[0].version));
            assert!(!said.is_resumed && said.peer_certificates.is_empty());
            assert_eq!(client.negotiated().peer_certificates.len(), 1);
            let long: Vec<u8> = (0..40_000_u32).map(|it| it as u8).collect();
            for (from, to) in [(0, 1), (1, 0)] {
                let (records, _) = sealed(&mut both[from], &long);
                let to = &mut both[to];
                receive(to, &records, piece);
                let mut read = vec![0; long.len() + 1];
                let len = to.received.take_into(&mut read);
                assert!(read[..len] == long, "{piece}");
                assert_eq!(to.buffered(), 0);
            }
        }
    }
}

/// The same message in records of this length.
fn in_records(record: &[u8], len: usize) -> Vec<Vec<u8>> {
    let (header, message) = record.split_at(5);
    let record = |part: &[u8]| {
        let len = (part.len() as u16).to_be_bytes();
        [&header[..3], &len, part].concat()
    };
    message.chunks(len).map(record).collect()
}

#[test]
fn a_name_that_is_not_read_is_a_refusal() {
    for (len, is_read) in [(1_000, true), (100, true), (5, false)] {
        for piece in [1, usize::MAX] {
            let mut ends = ends(&[&rustls::version::TLS13]);
            let records = in_records(&sent(&mut ends[1]), len);
            for record in &records {
                receive(&mut ends[0], record, piece.min(record.len()));
            }
            let [server, client] = &mut ends;
            let bytes = sent(server);
            receive(client, &bytes, bytes.len().max(1));
            let bytes = sent(client);
            receive(server, &bytes, bytes.len().max(1));
            let name = server.negotiated().server_name.map(str::to_owned);
            let has_failed = matches!(server.end, Some(End::Failed(_)));
            let what = format!("{} records, pieces of {piece}", records.len());
            assert_eq!(name.as_deref(), is_read.then_some("a.test"), "{what}");
            assert_eq!(has_failed, !is_read, "{what}");
        }
    }
}

#[test]
fn plaintext_without_a_place_waits() {
    let mut both = ends(VERSIONS[1]);
    agree(&mut both, 1 << 16);
    let [server, client] = &mut both;
    let (mut records, _) = sealed(client, b"hello");
    let mut room = [0; 3];
    assert_eq!(server.receive(&mut records, &mut room), 3);
    assert_eq!((&room, server.received.rest()), (b"hel", &b"lo"[..]));
}

#[test]
fn a_clean_end_is_told_from_a_cut() {
    for versions in VERSIONS {
        let mut both = ends(versions);
        agree(&mut both, 1 << 16);
        let [server, client] = &mut both;
        let (records, _) = sealed(client, b"bye");
        client.say_close();
        assert!(client.seal(b"x", &mut [0; 100], &mut Vec::new()).is_err());
        let alert = sent(client);
        receive(server, &records, 1 << 16);
        assert!(server.end.is_none());
        receive(server, &alert, 1);
        assert!(matches!(server.end, Some(End::Closed)));
        assert_eq!(server.received.rest(), b"bye");
        // The other direction is open still.
        let (records, _) = sealed(server, b"answer");
        receive(client, &records, 1 << 16);
        assert_eq!(client.received.rest(), b"answer");
    }
    assert!(End::CutOff.read().is_err());
}

#[test]
fn an_aborted_session_does_not_say_that_it_is_complete() {
    let mut both = ends(VERSIONS[1]);
    agree(&mut both, 1 << 16);
    both[0].abort();
    both[0].say_close();
    assert!(both[0].outgoing.is_empty());
}

#[test]
fn what_is_no_tls_is_told_from_what_is_wrong() {
    let [mut server, _] = ends(VERSIONS[1]);
    receive(&mut server, b"GET / HTTP/1.1\r\n\r\n", 1 << 16);
    assert!(matches!(server.end, Some(End::NotTls)));
    assert!(server.outgoing.is_empty());
    for wrong in [
        &b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10"[..],
        b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
        b"\x17\x03\x03\x00\x01x",
        b"\0\0\0\0\0\0\0\0",
    ] {
        let [mut server, _] = ends(VERSIONS[1]);
        receive(&mut server, wrong, 1 << 16);
        assert!(
            matches!(server.end, Some(End::Failed(_))),
            "{wrong:?}: {:?}",
            server.end
        );
    }
}

#[test]
fn a_changed_record_is_refused_and_the_peer_told() {
    let mut both = ends(VERSIONS[1]);
    agree(&mut both, 1 << 16);
    let [server, client] = &mut both;
    let (mut records, _) = sealed(client, b"hello");
    *records.last_mut().unwrap() ^= 1;
    receive(server, &records, 1 << 16);
    assert!(matches!(
        server.end,
        Some(End::Failed(rustls::Error::DecryptError))
    ));
    assert!(server.received.is_empty());
    let alert = sent(server);
    assert!(!alert.is_empty());
    receive(client, &alert, 1 << 16);
    assert!(matches!(
        client.end,
        Some(End::Failed(rustls::Error::AlertReceived(_)))
    ));
}

#[test]
fn whole_records_count_as_written() {
    let mut both = ends(VERSIONS[1]);
    agree(&mut both, 1 << 16);
    let bytes = vec![7; WRITE_LEN - 10];
    let (records, record_ends) = sealed(&mut both[0], &bytes);
    assert_eq!(record_ends.len(), 4);
    assert_eq!(record_ends.last(), Some(&records.len()));
    let mut written = |sent| {
        let server = &mut both[0];
        let written = server.note_partly_sent(bytes.len(), sent, &record_ends);
        (written.map(Result::unwrap), server.unconfirmed)
    };
    assert_eq!(written(0), (None, bytes.len()));
    assert_eq!(written(record_ends[0] - 1), (None, bytes.len()));
    assert_eq!(
        written(record_ends[0]),
        (Some(16_384), bytes.len() - 16_384)
    );
    assert_eq!(written(records.len() - 1), (Some(3 * 16_384), 16_384 - 10));
}

#[test]
fn an_idle_session_holds_no_buffer() {
    let mut both = ends(VERSIONS[1]);
    agree(&mut both, 100);
    let (records, _) = sealed(&mut both[1], &[1; 5_000]);
    let server = &mut both[0];
    receive(server, &records, 1_000);
    server.received.take(5_000);
    assert_eq!(server.held_bytes(), 0);
}

/// Changes bytes as an attacker would.
fn spoil(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random.usize(..bytes.len().max(1));
    match random.u8(..6) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.u8(..8),
        1 => bytes.truncate(at),
        2 => bytes.extend_from_within(at.min(bytes.len())..),
        3 => bytes.insert(at.min(bytes.len()), random.u8(..)),
        4 => {
            let len = random.usize(..40);
            bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(len));
        }
        _ => {}
    }
}

#[test]
fn nothing_that_comes_makes_it_panic() {
    for seed in 0..2_000 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut both = ends_of(VERSIONS[usize::from(random.bool())], random.bool());
        let mut scratch = vec![0; SEALED_LEN];
        // Both directions are spoiled from this flight on.
        let spoiled_from = random.u8(..7);
        for flight in 0..8 {
            for from in [1, 0] {
                let mut bytes = sent(&mut both[from]);
                if flight > 3 {
                    let plain = vec![7; random.usize(..20_000)];
                    if let Ok(len) = both[from].seal(&plain, &mut scratch, &mut Vec::new()) {
                        bytes.extend_from_slice(&scratch[..len]);
                    }
                }
                if flight > spoiled_from {
                    spoil(&mut bytes, random);
                }
                if random.u8(..40) == 0 {
                    both[from].say_close();
                }
                let piece = [1, 5, 700, 1 << 16][random.usize(..4)];
                receive(&mut both[1 - from], &bytes, piece);
            }
        }
    }
}
