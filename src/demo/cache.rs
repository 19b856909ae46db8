//! The demo of a cache: pages that are fresh for a moment, and origins that are all down
//! now and then.

use std::io::{self, Write};
use std::net::SocketAddr;

use super::clients::{CLIENTS, PAGES};
use super::outage::{DOWN_SECONDS, PERIOD_SECONDS, Texts};

/// The line of the route that has the cache.
pub(super) const SETTING: &str = "cache = { ttl = { 200 = \"2s\" }, stale_if_error = \"1m\" }   # \
    the origins send no Cache-Control\n";

pub(super) const OUTAGE: Texts = Texts {
    up: "all origins are up; they go down in",
    down: "all origins are down: stale responses are served. They come back in",
};

/// Prints commands to try.
pub(super) fn introduce(out: &mut impl Write, address: SocketAddr) -> io::Result<()> {
    writeln!(
        out,
        "\n  The header Cache-Status says what the cache did; try twice within two seconds:\n    \
         curl -si 'http://{address}/ping?page=1' | grep -i -e age -e cache-status\n\n{CLIENTS} \
         clients now request {PAGES} pages, some more often than others. The cache answers \
         most\nrequests. It fetches a stale page from the origins once for all waiting clients. \
         All origins are\ndown for {DOWN_SECONDS} of {PERIOD_SECONDS} seconds, which the clients \
         do not notice. Ctrl-C stops the demo."
    )
}
