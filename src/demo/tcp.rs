//! The demo of TCP: lines of text there and back.
//!
//! It has an upstream that tells who the client is, a route that goes by the
//! first bytes, and an endpoint that goes down.

use std::io::{self, Write};
use std::net::SocketAddr;

use evenkeel_origin::OriginHandle;

use super::Speed;
use super::clients::CLIENTS;
use super::outage::{DOWN_SECONDS, PERIOD_SECONDS, Texts};

pub(super) const SPEEDS: [Speed; 3] = [
    Speed::new("quick", 5),
    Speed::new("steady", 10),
    Speed::new("slow", 40),
];

/// The endpoint of the second upstream.
pub(super) const OPERATOR: Speed = Speed::new("operator", 1);

/// `$ENDPOINTS` stands for the lines of the first upstream's endpoints, and
/// `$OPERATOR` for the address of the other's.
const CONFIGURATION: &str = r#"[[listener]]
name = "demo"
bind = "127.0.0.1:0"            # 0: a free port
protocol = "tcp"

[[listener]]
name = "shared"                 # two protocols behind one port
bind = "127.0.0.1:0"
protocol = "tcp"

[[route]]
name = "operator"
match = { listener = "shared", first_bytes = "operator" }
upstream = "operator"

[[route]]
name = "lines"
upstream = "lines"

[upstream.lines]
proxy_protocol = "v1"           # tells endpoints who the client is
queue = { timeout = "5s" }      # for connections while no slot is free
health = { interval = "1s" }    # does the endpoint take connections?
endpoints = [
$ENDPOINTS]

[upstream.operator]
endpoints = ["$OPERATOR"]
"#;

pub(super) fn configuration(origins: &[OriginHandle], operator: &OriginHandle) -> String {
    let endpoints = SPEEDS.iter().zip(origins).map(|(speed, origin)| {
        let address = origin.address.to_string();
        format!(
            "  {{ address = \"{address}\", max_in_flight = 6 }},  # {}\n",
            speed.name
        )
    });
    CONFIGURATION
        .replace("$ENDPOINTS", &endpoints.collect::<String>())
        .replace("$OPERATOR", &operator.address.to_string())
}

/// Prints commands to try at the two listeners.
pub(super) fn introduce(out: &mut impl Write, addresses: &[SocketAddr]) -> io::Result<()> {
    let command = |address: &SocketAddr| format!("nc {} {}", address.ip(), address.port());
    let (demo, shared) = (&addresses[0], &addresses[1]);
    writeln!(
        out,
        "\nIt listens on {demo} and {shared}. Try in another terminal:\n\n  Echoed lines, with \
         the name of the endpoint, and your address, which the endpoint\n  reads from the PROXY \
         header:\n    {}\n  One port for two upstreams: type \"operator\" for one, anything else \
         for the other:\n    {}\n\n{CLIENTS} clients now connect, send four lines and close, with \
         a short pause. Each endpoint has\nsix slots; further connections wait in the queue. The \
         times are measured from the\nconnection to its first answer, and include the wait. {} is \
         down for {DOWN_SECONDS} of\n{PERIOD_SECONDS} seconds; its open connections are cut, and \
         count as failures. Ctrl-C stops the demo.",
        command(demo),
        command(shared),
        SPEEDS[0].name,
    )
}

pub(super) const OUTAGE: Texts = Texts {
    up: "quick is up; it goes down in",
    down: "quick is down; it comes back in",
};
