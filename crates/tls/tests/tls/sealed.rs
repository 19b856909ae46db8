//! Secrets that are stored where others can read.

use std::fs;

use evenkeel_testkit::TempDir;
use evenkeel_tls::SealingKey;
use evenkeel_tls::sealed::Purpose::{AcmeRecord, TicketKey};

#[test]
fn a_secret_opens_by_its_key_and_under_its_name_alone() {
    let temp = TempDir::new().unwrap();
    let key = |name: &str, bytes: &[u8]| {
        let path = temp.join(name);
        fs::write(&path, bytes).unwrap();
        SealingKey::read(&path)
    };
    let one = key("one", &[1; 32]).unwrap();
    let other = key("other", &[[1; 31].as_slice(), &[2]].concat()).unwrap();
    assert_eq!(one, key("copy", &[1; 32]).unwrap());
    assert_ne!(one, other);
    let sealed = one.seal(TicketKey, b"name", b"secret").unwrap();
    assert!(!sealed.windows(6).any(|it| it == b"secret"));
    assert_ne!(sealed, one.seal(TicketKey, b"name", b"secret").unwrap());
    let opened = one.open(TicketKey, b"name", &sealed).unwrap();
    assert_eq!(*opened, b"secret");
    assert_eq!(other.open(TicketKey, b"name", &sealed), None);
    assert_eq!(one.open(TicketKey, b"names", &sealed), None);
    assert_eq!(one.open(AcmeRecord, b"name", &sealed), None);
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert_eq!(one.open(TicketKey, b"name", &changed), None, "{at}");
        assert_eq!(one.open(TicketKey, b"name", &sealed[..at]), None, "{at}");
    }
    let error = key("short", &[1; 31]).unwrap_err().to_string();
    assert!(
        error.ends_with("short: has 31 bytes, but a key needs at least 32"),
        "{error}"
    );
    assert_eq!(format!("{one:?}"), "SealingKey { .. }");
}
