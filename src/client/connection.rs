//! A client's connection, and the exchanges that it carries one after the other.

use std::rc::Rc;

use evenkeel_proto::RequestHead;

use crate::exchange::{
    Client, ClientSide, Context, Exchange, Http1Side, Http2Connection, Progress,
};
use crate::net::timer::Timer;

/// A client's connection, from accept to close.
#[derive(Debug)]
pub(super) struct ClientConnection {
    /// Its stream.
    pub http1: Http1Side,
    /// The one timeout that its task has at a time. An exchange borrows it.
    pub timer: Timer,
    /// The client at the other end.
    pub client: Client,
    /// State that the streams of HTTP/2 share, where it speaks that.
    pub http2: Option<Rc<Http2Connection>>,
}

impl ClientConnection {
    /// The exchange that begins with this head, at the front of `bytes`.
    pub fn exchange<'a>(
        &'a mut self,
        context: &'a Context,
        bytes: &'a [u8],
        head: &'a RequestHead,
        progress: Progress<'a>,
    ) -> Exchange<'a> {
        let side = ClientSide::Http1(&mut self.http1);
        let timer = self.timer.clone();
        Exchange::new(context, &self.client, side, timer, bytes, head, progress)
    }
}
