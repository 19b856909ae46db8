//! Tries of endpoints that exchanges could not connect to: is it back?

use std::cell::Cell;
use std::io;
use std::time::Duration;

use evenkeel_proto::proxy_protocol::{Version, own_header};
use evenkeel_tls::HandshakeFault;
use tokio::time::{sleep, timeout};

use super::{LONGEST_TRY, Watch};
use crate::certificates::Alpn;
use crate::net::clock;
use crate::net::connect::{connect_when_there_is_room, is_unreachable, reason};
use crate::net::lacks_descriptor;
use crate::net::stream::{Follow, Stream};
use crate::observe::inquiry::make_room;
use crate::upstream::{BACKLOG_FULL, HANDSHAKE_TIMEOUT};

/// Time from a failed connection to the first try.
const FIRST_TRY: Duration = Duration::from_millis(100);

impl Watch {
    /// Tries to connect, at first often, until that succeeds or somebody else
    /// has found that it does.
    pub(super) async fn try_until_reached(self) {
        let mut pause = FIRST_TRY;
        loop {
            sleep(pause).await;
            if !self.wants_connection() {
                return;
            }
            let (limit, header) = {
                let current = self.upstream.current();
                let config = current.config();
                (config.timeouts.connect, config.proxy_protocol)
            };
            let connected = {
                let (permits, share) =
                    (&self.upstream.common.try_permits, &self.upstream.try_share);
                let _permit = permits.acquire(share).await;
                // Exchanges there are in flight on older connections.
                let _admission = self.admit(LONGEST_TRY).await;
                let may_ask_again = || {
                    self.note_full_backlog(limit);
                    true
                };
                let connecting = connect_when_there_is_room(&self.config().address, may_ask_again);
                let is_handshaking = Cell::new(false);
                let connecting = async {
                    let stream = connecting.await.map_err(NotReached::Connect)?;
                    is_handshaking.set(true);
                    self.greet(stream, header).await.map_err(NotReached::Tls)
                };
                // The connection is closed before its slot is given back.
                let connected = timeout(limit, connecting).await;
                connected.unwrap_or_else(|_| {
                    Err(if is_handshaking.get() {
                        NotReached::HandshakeTimeout
                    } else {
                        NotReached::Timeout
                    })
                })
            };
            let Err(error) = connected else {
                let change = self.dispatcher().reached(self.state(), clock::now());
                return self.log(change, None);
            };
            let why = match error {
                NotReached::Tls(fault) => Some(fault.summary().to_owned()),
                NotReached::HandshakeTimeout => Some(HANDSHAKE_TIMEOUT.to_owned()),
                NotReached::Connect(error) if is_unreachable(&error) => Some(reason(&error)),
                NotReached::Connect(error) if lacks_descriptor(&error) => {
                    make_room(&self.upstream.common.inquiries).await;
                    None
                }
                // For want of something here.
                NotReached::Connect(_) => None,
                // A backlog that stays full has been counted.
                NotReached::Timeout if self.config().address.is_unix() => None,
                NotReached::Timeout => Some("it did not answer in time".to_owned()),
            };
            if why.is_some() {
                let now = clock::now();
                let change = self.dispatcher().note_unreachable(self.state(), now);
                self.log(change, why.as_deref());
            }
            pause = (pause * 2).min(LONGEST_TRY);
        }
    }

    /// Tells the endpoint that the connection is no client's, secures it, and closes it.
    async fn greet(
        &self,
        mut stream: Stream,
        header: Option<Version>,
    ) -> Result<(), HandshakeFault> {
        let header = header.map_or(&[][..], own_header);
        if let Some(tls) = &self.endpoint.tls {
            tls.encrypt(stream, Alpn::Nothing, header).await?;
        } else if !header.is_empty() {
            stream.try_write(header, Follow::Close);
        }
        Ok(())
    }

    /// As exchanges note it: see `Dispatcher::note_full_backlog`.
    fn note_full_backlog(&self, timeout: Duration) {
        let now = clock::now();
        let change = self
            .dispatcher()
            .note_full_backlog(self.state(), timeout, now);
        self.log(change, Some(BACKLOG_FULL));
    }
}

/// Why an endpoint was not reached.
enum NotReached {
    /// The system says so.
    Connect(io::Error),
    /// The connection could not be secured.
    Tls(HandshakeFault),
    /// No connection was open in time.
    Timeout,
    /// The connection was open, and not secured in time.
    HandshakeTimeout,
}
