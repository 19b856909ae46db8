//! Counters, read from workers within this process.

use std::sync::Arc;
use std::time::Duration;

use evenkeel::config::{NameLookup, load_text};
use evenkeel::observe::counters::EndpointCounters;
use evenkeel::runtime::{self, Running};
use evenkeel_net::Address;
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient};

use crate::setup::{figures, get, origin, program, test};
use crate::tunnels::UPGRADE;

fn start(endpoint: &str) -> Running {
    let text = format!(
        "[server]\nworkers = 1\n\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\n\
         [[route]]\nupstream = \"app\"\n\n[upstream.app]\nendpoints = [{endpoint:?}]\n"
    );
    let loaded = load_text("test.toml", &text, NameLookup::Skip).unwrap();
    runtime::start(loaded.config).unwrap()
}

fn client(running: &Running) -> RawClient {
    match &running.addresses[0] {
        Address::Tcp(address) => RawClient::connect(address).unwrap(),
        Address::Unix(path) => RawClient::connect_unix(path).unwrap(),
    }
}

fn endpoint(running: &Running) -> Arc<EndpointCounters> {
    let members = running.dispatchers()[0].members();
    running.counters()[0].endpoints[0].begin(&members.endpoints()[0])
}

#[test]
fn an_endpoints_bytes_are_all_counted() {
    test(|| {
        let origin = origin();
        let running = start(&origin.address.to_string());
        let mut client = client(&running);
        client.send(get("/3000000")).unwrap();
        let response = client.read_response("GET").unwrap();
        assert_eq!(response.body.len(), 3_000_000);
        until("the exchange is counted", || {
            running.counters()[0].listeners[0]
                .exchanges
                .requests
                .value()
                == 1
        });
        let bytes_in = endpoint(&running).bytes_in.value();
        assert!((3_000_000..3_001_000).contains(&bytes_in), "{bytes_in}");
        assert_eq!(endpoint(&running).status[2].value(), 1);
        running.stop(Duration::from_secs(1));
    });
}

#[test]
fn a_tunnel_counts_as_an_answer() {
    test(|| {
        let origin = origin();
        let running = start(&origin.address.to_string());
        let mut client = client(&running);
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        assert_eq!(endpoint(&running).status[1].value(), 1);
        drop(client);
        running.stop(Duration::from_secs(1));
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
