//! The connections of HTTP/2 of a worker to an endpoint.
//!
//! Most workers have one. Another is opened if the endpoint allows no more streams on the open
//! ones. Exchanges that come while one is being opened wait for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::Http2Connection;
use crate::config;

/// Connections of HTTP/2 to an endpoint.
#[derive(Debug)]
pub struct Http2Pool {
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    is_opening: Cell<bool>,
    /// Whether the endpoint chose HTTP/1 for the last connection, where it may choose.
    has_refused: Cell<bool>,
    /// Exchanges that wait for a connection.
    waiting: RefCell<Vec<Waker>>,
    /// Why the last connection broke, where the endpoint is to blame.
    fault: Cell<Option<&'static str>>,
    /// How many streams the endpoint allows on a connection, once it has said so.
    limit: Cell<Option<u32>>,
    /// Most connections without an exchange.
    max_idle: Cell<usize>,
}

/// A connection is being opened. Exchanges that wait for it go on when this is dropped.
#[derive(Debug)]
pub struct Opening<'a>(&'a Http2Pool);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
        self.0.tell();
    }
}

impl Drop for Http2Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Http2Pool {
    /// One that keeps connections as these settings say.
    pub fn new(config: &config::Pool) -> Self {
        Http2Pool {
            connections: RefCell::default(),
            is_opening: Cell::new(false),
            has_refused: Cell::new(false),
            waiting: RefCell::default(),
            fault: Cell::new(None),
            limit: Cell::new(None),
            max_idle: Cell::new(config.max_idle),
        }
    }

    /// A connection with room for one more exchange; the first one opened comes first, so
    /// that others become idle.
    pub fn take(&self) -> Option<Rc<Http2Connection>> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|it| !it.is_retired());
        let mut connections = connections.iter();
        let has_room = |it: &&Rc<Http2Connection>| it.protocol.borrow().capacity() > 0;
        connections.find(has_room).cloned()
    }

    /// Begins to open a connection; `None` while another exchange does.
    pub fn begin(&self) -> Option<Opening<'_>> {
        (!self.is_opening.replace(true)).then(|| Opening(self))
    }

    /// Waits until a connection was opened or could not be, or has begun to speak.
    pub async fn changed(&self) {
        let mut is_first = true;
        std::future::poll_fn(|cx: &mut Context<'_>| {
            if std::mem::take(&mut is_first) {
                self.waiting.borrow_mut().push(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Something has changed.
    pub fn tell(&self) {
        let waiting = self.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Exchanges share this connection from now on.
    pub fn add(&self, connection: Rc<Http2Connection>) {
        self.has_refused.set(false);
        if let Some(limit) = self.limit.get() {
            connection.protocol.borrow_mut().expect_limit(limit.max(1));
        }
        self.connections.borrow_mut().push(connection);
    }

    /// The endpoint has chosen HTTP/1.
    pub fn note_refusal(&self) {
        self.has_refused.set(true);
    }

    /// Whether the endpoint chose HTTP/1 the last time.
    pub fn has_refused(&self) -> bool {
        self.has_refused.get()
    }

    /// Notes how a connection has ended. Whether that is news.
    pub fn note_fault(&self, fault: Option<&'static str>) -> bool {
        self.fault.replace(fault) != fault && fault.is_some()
    }

    /// Connections that are open.
    pub fn open_count(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Connections without an exchange.
    pub fn idle_count(&self) -> usize {
        let connections = self.connections.borrow();
        connections.iter().filter(|it| it.is_idle()).count()
    }

    /// Notes how many streams the endpoint allows on a connection.
    pub fn note_limit(&self, limit: u32) {
        self.limit.set(Some(limit));
    }

    /// Whether there are more connections without an exchange than are kept.
    pub fn has_surplus(&self) -> bool {
        self.idle_count() > self.max_idle.get()
    }

    /// Keeps connections as these settings say from now on.
    pub fn follow(&self, config: &config::Pool) {
        self.max_idle.set(config.max_idle);
        for connection in &*self.connections.borrow() {
            connection.idle_timeout.set(config.idle_timeout);
        }
    }

    /// Forgets connections that have ended.
    pub fn sweep(&self) {
        self.connections.borrow_mut().retain(|it| !it.is_retired());
    }

    /// Retires all connections: they are closed once they have no exchange.
    pub fn close(&self) {
        for connection in self.connections.take() {
            connection.retire();
        }
    }

    /// Closes connections without an exchange, at most so many; how many.
    pub fn close_idle(&self, most: usize) -> usize {
        let mut connections = self.connections.borrow_mut();
        let idle = connections.extract_if(.., |it| it.is_idle());
        idle.take(most).map(|it| it.retire()).count()
    }
}
