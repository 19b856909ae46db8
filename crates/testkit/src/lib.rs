//! Everything that the tests need around the program.
//!
//! * [`origin`]: the test origin, `evenkeel-origin`.
//! * [`proxy`]: the program under test, started from its binary.
//! * [`raw`]: HTTP by hand on either side, for what no library would send.
//! * [`http2`]: HTTP/2 by hand, as a client.
//! * [`process`]: other programs, as servers and as clients.
//! * [`slow_disk`]: a file system whose reads wait for the test.
//! * [`shown_disk`]: what that and the slow disk of the measurements share.
//! * [`memory_disk`]: a file system that is full or read-only.
//! * [`many_hosts`]: a large configuration.
//! * [`wakes`]: a waker that counts.
//! * [`dns`]: name servers.
//! * [`changes`]: load on the program while it changes.
//! * [`caching`]: the program as a cache of very many pages.
//! * [`acme`]: an issuer of certificates by ACME.
//! * [`tls`]: certificates, and clients that trust their issuer.
//! * [`deadline`]: waiting for conditions, never for luck.

pub mod acme;
pub mod caching;
pub mod changes;
pub mod deadline;
pub mod dns;
pub mod http2;
pub mod many_hosts;
pub mod memory_disk;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod servers;
pub mod shown_disk;
pub mod slow_disk;
pub mod temp;
pub mod tls;
pub mod wakes;

pub use acme::{Pebble, PebbleSetup};
pub use dns::{Bind, NameServer, TsigKey};
pub use evenkeel_origin::{
    self as origin, Origin, OriginHandle, OriginListener, OriginOptions, OriginStats,
};
pub use http2::{H2Client, H2Request, H2Server};
pub use memory_disk::MemoryDisk;
pub use proxy::{Proxy, ProxySetup};
pub use raw::{RawClient, RawOrigin, RawStream, Response};
pub use slow_disk::{Reads, SlowDisk};
pub use temp::{TempDir, replace_file};
pub use wakes::Wakes;
