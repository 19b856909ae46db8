//! Counters on the status page.

use evenkeel_testkit::Proxy;
use evenkeel_testkit::deadline::until;
use serde_json::Value;

use crate::setup::{Site, figures, get, program, test};
use crate::tunnels::UPGRADE;

fn site() -> (evenkeel_testkit::OriginHandle, Proxy) {
    Site {
        server: "[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    }
    .with_origin()
}

/// The counters of the only endpoint.
fn endpoint(proxy: &Proxy) -> Value {
    figures(proxy)["upstreams"][0]["endpoints"][0].clone()
}

#[test]
fn an_endpoints_bytes_are_all_counted() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client.send(get("/3000000")).unwrap();
        let response = client.read_response("GET").unwrap();
        assert_eq!(response.body.len(), 3_000_000);
        until("the exchange is counted", || {
            figures(&proxy)["listeners"][0]["requests"] == 1
        });
        let endpoint = endpoint(&proxy);
        let bytes_in = endpoint["bytes_in"].as_u64().unwrap();
        assert!((3_000_000..3_001_000).contains(&bytes_in), "{bytes_in}");
        assert_eq!(endpoint["status"]["2xx"], 1);
    });
}

#[test]
fn a_tunnel_counts_as_an_answer() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        assert_eq!(endpoint(&proxy)["status"]["1xx"], 1);
    });
}

#[test]
fn a_configured_answer_is_no_error_whatever_its_status() {
    test(|| {
        let proxy = Proxy::start(
            program(),
            "[status]\nbind = \"127.0.0.1:0\"\n\
             [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\nonly = \"errors\"\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nname = \"maintenance\"\nmatch = { path = \"/shop\" }\nanswer = { status = 503 }\n\
             [[route]]\nname = \"app\"\nupstream = \"app\"\n[upstream.app]\n",
        )
        .unwrap();
        let mut client = proxy.client();
        for path in ["/shop", "/shop", "/"] {
            assert_eq!(client.get(path).unwrap().status, 503);
        }
        until("all are counted", || {
            figures(&proxy)["listeners"][0]["requests"] == 3
        });
        let figures = figures(&proxy);
        let errors = |list: &str, index: usize| figures[list][index]["errors"].clone();
        assert_eq!(figures["listeners"][0]["status"]["5xx"], 3);
        assert_eq!(
            (errors("routes", 0), errors("routes", 1)),
            (0.into(), 1.into())
        );
        assert_eq!(errors("listeners", 0), 1);
        until("the error is logged", || proxy.access_log().len() == 1);
        assert_eq!(proxy.access_log_json()[0]["end"], "no-endpoint");
    });
}
