//! Many clients at once.

use std::net::SocketAddr;
use std::thread::Scope;
use std::time::Duration;

use super::clients;
use super::ledger::Ledger;

/// The number of clients of each kind, and their requests.
#[derive(Debug, Clone)]
pub struct Load {
    /// The address that they connect to.
    pub address: SocketAddr,
    /// The paths that are asked for by clients that keep their connection: one each, in
    /// turn.
    pub paths: Vec<String>,
    /// Clients that keep their connection.
    pub keep_alive: usize,
    /// Requests at once of a client that opens a connection for each; 0 for none.
    pub per_request: usize,
    /// Requests of one run of that client.
    pub per_run: usize,
    /// WebSockets.
    pub web_sockets: usize,
    /// Uploads at once.
    pub uploads: usize,
    /// How long an upload takes.
    pub upload_time: Duration,
    /// Clients of the upstream with a queue.
    pub waiters: usize,
    /// The listener that comes and goes.
    pub guest: Option<SocketAddr>,
}

impl Load {
    /// The load that the figures are taken under, on this listener.
    pub fn full(address: SocketAddr) -> Self {
        Load {
            address,
            paths: vec!["/ping".to_owned()],
            keep_alive: 64,
            per_request: 4,
            per_run: 2_000,
            web_sockets: 10,
            uploads: 5,
            upload_time: Duration::from_secs(8),
            // Two or three of them are served at a time.
            waiters: 23,
            guest: None,
        }
    }

    /// The same for a run of seconds.
    pub fn short(address: SocketAddr) -> Self {
        Load {
            per_run: 300,
            upload_time: Duration::from_secs(2),
            ..Load::full(address)
        }
    }

    /// Starts all clients.
    pub fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, ledger: &'scope Ledger) {
        for at in 0..self.keep_alive {
            let path = &self.paths[at % self.paths.len()];
            scope.spawn(move || clients::keep_alive(ledger, self.address, path, at));
        }
        if self.per_request > 0 {
            let path = &self.paths[0];
            let (at_once, per_run) = (self.per_request, self.per_run);
            scope.spawn(move || clients::per_request(ledger, self.address, path, at_once, per_run));
        }
        for at in 0..self.web_sockets {
            scope.spawn(move || clients::web_socket(ledger, self.address, at));
        }
        for at in 0..self.uploads {
            scope.spawn(move || clients::upload(ledger, self.address, self.upload_time, at));
        }
        for at in 0..self.waiters {
            scope.spawn(move || clients::waiter(ledger, self.address, at));
        }
        if let Some(guest) = self.guest {
            scope.spawn(move || clients::guest(ledger, guest));
        }
    }
}
