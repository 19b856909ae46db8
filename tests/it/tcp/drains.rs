//! Messages about TCP connections that a drain waits for.

use std::time::Duration;

use evenkeel_testkit::deadline::until;

use super::{before, echo};
use crate::control::ask;
use crate::setup::test;

#[test]
fn a_drain_says_which_connections_it_waits_for() {
    test(|| {
        let origin = echo();
        let mut proxy = before(&[origin.address.to_string()], "");
        let mut client = proxy.client();
        client.send("a").unwrap();
        assert_eq!(client.read_len(1).unwrap(), b"a");
        let address = origin.address;
        let answer = ask(&proxy, &format!("drain app/{address}"));
        let expected = "it gets no new requests, and finishes 1 in flight (`show sessions`)";
        assert!(answer.contains(expected), "{answer}");
        proxy.terminate();
        let words = [
            "draining: 1 connection still open; the longest: 127.0.0.1:".to_owned(),
            format!(" at web, tunnel to app/{address} for "),
        ];
        until("it is said", || {
            let said = proxy.stderr();
            words.iter().all(|it| said.contains(it))
        });
        drop(client);
        assert!(proxy.wait(Duration::from_secs(5)).is_some());
    });
}
