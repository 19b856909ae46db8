//! The demo of a cache: pages that are fresh for a moment, and origins that are all down
//! now and then.

use std::io::{self, Write};
use std::net::SocketAddr;

use super::clients::{CLIENTS, PAGES};
use super::outage::{DOWN_SECONDS, PERIOD_SECONDS, Texts};

/// The line of the route that has the cache.
pub(super) const SETTING: &str = "cache = { ttl = { 200 = \"2s\" }, stale_if_error = \"1m\" }   # the origins say nothing of caches\n";

pub(super) const OUTAGE: Texts = Texts {
    up: "all origins are up, and go down in",
    down: "all origins are down: what is stale is served. They come back in",
};

/// Prints commands to try.
pub(super) fn introduce(out: &mut impl Write, address: SocketAddr) -> io::Result<()> {
    writeln!(
        out,
        "\n  What the cache did, in the Cache-Status field; twice within two seconds:\n    \
         curl -si 'http://{address}/ping?page=1' | grep -i -e age -e cache-status\n\n\
         {CLIENTS} clients now ask for {PAGES} pages, some more often than others. The cache \
         answers most of\nthem; the origins are asked for what has become stale, once for all \
         who wait. All of them are\ndown for {DOWN_SECONDS} of {PERIOD_SECONDS} seconds, and \
         the clients see nothing of it. Ctrl-C stops the demo."
    )
}
