//! How an exchange ended: one word, the same in the log, the counter and the
//! answer's text.

use evenkeel_proto::{BodyError, RequestError, ResponseError, reasons};

reasons! {
    /// Ends that are not faults in a message's grammar.
    Failure {
        /// No route matches.
        NoRoute => 404, "no-route", "no route matches this request";
        /// Servers read the path in several ways, and not all of them are known to
        /// find the same route.
        AmbiguousPath => 400, "ambiguous-path", "servers may read this path in different ways, \
            which lead to different routes";
        /// The head did not come in time.
        HeadTimeout => 408, "head-timeout", "the request head did not arrive in time";
        /// A connection from where the PROXY protocol is spoken begins otherwise.
        ProxyHeader => 400, "proxy-header", "the connection does not begin with a PROXY protocol header";
        /// A header of the PROXY protocol did not come in time.
        ProxyHeaderTimeout => 408, "proxy-header-timeout", "the PROXY protocol header did not arrive in time";
        /// The TLS handshake failed.
        TlsHandshake => 400, "tls-handshake", "the TLS handshake failed";
        /// The TLS handshake did not end in time.
        TlsHandshakeTimeout => 408, "tls-handshake-timeout", "the TLS handshake did not end in time";
        /// A client speaks without TLS where TLS is spoken.
        NotTls => 400, "not-tls", "this port speaks TLS: use https";
        /// A client of TCP sent only a part of what its route depends on.
        FirstBytesTimeout => 408, "first-bytes-timeout", "the first bytes of the connection did not arrive in time";
        /// The body did not come in time.
        BodyTimeout => 408, "body-timeout", "the request body did not arrive in time";
        /// The body is over the limit.
        BodyTooLarge => 413, "body-too-large", "the request body is larger than the limit";
        /// The body has a content coding, which the route refuses.
        CodedRequest => 415, "coded-request", "compressed request bodies are not accepted here";
        /// CONNECT, which only a forward proxy serves.
        ConnectMethod => 501, "connect-method", "this is not a forward proxy: CONNECT is not \
            supported";
        /// The request has been sent by this process before.
        Loop => 508, "loop", "the request came back to the proxy that sent it";
        /// The requests of one client, or of another key, exceed the route's `limit`.
        RateLimited => 429, "rate-limited", "too many requests";
        /// An operator has switched the route, or its upstream, to maintenance.
        Maintenance => 503, "maintenance", "this service is under maintenance";
        /// The client's address is not among those that the route's `allow` and `deny` admit.
        Denied => 403, "denied", "requests from this address are not allowed";
        /// The client has not authenticated, or with wrong credentials.
        Unauthorized => 401, "unauthorized", "a user name and a password are required";
        /// Too many passwords wait to be verified.
        AuthBusy => 503, "auth-busy", "too many passwords wait to be verified";
        /// The server that authenticates the route's clients did not answer in time.
        AuthTimeout => 504, "auth-timeout", "the authentication server did not answer in time";
        /// The server that authenticates the route's clients could not be asked, or fails.
        AuthFailed => 502, "auth-failed", "the authentication server could not be reached, or \
            failed";
        /// Every endpoint is at its limit.
        Saturated => 503, "saturated", "every endpoint is at its limit";
        /// The queue of the upstream is full.
        QueueFull => 503, "queue-full", "too many requests wait for an endpoint";
        /// No slot became free in time.
        QueueTimeout => 503, "queue-timeout", "no endpoint could take the request in time";
        /// The balancer refuses rather than overload.
        Busy => 502, "busy", "every endpoint is busy";
        /// No endpoint is up and ready.
        NoEndpoint => 503, "no-endpoint", "no endpoint is available";
        /// No endpoint took a connection.
        ConnectFailed => 502, "connect-failed", "no connection to an endpoint could be opened";
        /// The proxy itself lacks a resource for a connection: descriptors or ports.
        NoSocket => 503, "no-socket", "the proxy could not open a connection";
        /// No endpoint took a connection in time.
        ConnectTimeout => 504, "connect-timeout", "no connection to an endpoint was opened in time";
        /// The certificate of the endpoint was not accepted.
        UpstreamCertificate => 502, "upstream-certificate", "the certificate of the endpoint is not accepted";
        /// The TLS handshake with the endpoint failed for another reason.
        UpstreamTls => 502, "upstream-tls", "the TLS handshake with the endpoint failed";
        /// The endpoint closed the connection before it answered.
        UpstreamClosed => 502, "upstream-closed", "the endpoint closed the connection without an answer";
        /// The endpoint closed an idle connection just as the request was sent. The client's
        /// connection is closed, so that the client repeats the request.
        UpstreamStale => 502, "upstream-stale", "the endpoint closed an idle connection as the request was sent";
        /// The endpoint sent too many interim responses.
        UpstreamInterim => 502, "upstream-interim", "the endpoint sent too many interim responses";
        /// The endpoint did not begin to answer in time.
        FirstByteTimeout => 504, "first-byte-timeout", "the endpoint did not answer in time";
        /// The exchange took longer than its total timeout.
        TotalTimeout => 504, "total-timeout", "the exchange exceeded its time limit";
        /// The endpoint closed in mid-body. The client's connection is cut.
        UpstreamCut => 502, "upstream-cut", "the endpoint's answer was cut off";
        /// The endpoint fell silent in mid-body. The client's connection is cut.
        UpstreamStalled => 504, "upstream-stalled", "the endpoint's answer stopped";
        /// The body of the endpoint's response is malformed. The client's connection is cut.
        UpstreamBody => 502, "upstream-body", "the body of the endpoint's answer is malformed";
        /// There was no memory to compress a response. The client's connection is cut.
        CompressionFailed => 500, "compression-failed", "the answer could not be compressed";
        /// No bytes moved in a tunnel for too long.
        TunnelIdle => 504, "tunnel-idle", "the tunnel was idle for too long";
        /// The client closed before its exchange was over.
        ClientGone => 499, "client-gone", "the client closed the connection";
        /// The client took no bytes of its response for too long.
        ClientStalled => 408, "client-stalled", "the client stopped reading its response";
        /// The client sent or took less than `min_rate` while its request held a slot.
        ClientSlow => 408, "client-slow", "the client is too slow to hold a slot";
        /// There is no file at this path.
        NoFile => 404, "no-file", "file not found";
        /// A path with a NUL, which no file can have. For files also a path with an encoded
        /// slash, or one that leads out of the folder.
        BadPath => 400, "bad-path",
            "the path contains a NUL or an encoded slash, or leads out of the folder";
        /// The path leads to something that may not be read, is no file, or is outside the
        /// folder.
        FileForbidden => 403, "file-forbidden", "this file may not be read";
        /// Files are served for GET and HEAD only.
        NoMethod => 405, "no-method", "files allow only GET and HEAD";
        /// The disk reported an error.
        FileFailed => 500, "file-failed", "the file could not be read";
        /// The file changed while it was sent. The client's connection is cut.
        FileChanged => 500, "file-changed", "the file changed while it was sent";
        /// The process has reached its limit of open files.
        NoDescriptor => 503, "no-descriptor", "the server has too many files open";
        /// Answers that clients have not yet taken fill the memory for them.
        AnswerMemory => 503, "answer-memory", "too many answers wait for slow clients";
        /// The listener has reached its limit of connections.
        Connections => 503, "connections", "the listener has reached its limit of connections";
        /// The client accepts only a stored response, and there is none.
        NotCached => 504, "not-cached", "the client accepts only a stored response, and there is \
            none";
        /// The disk's queue is full.
        DiskBusy => 503, "disk-busy", "the disk cannot keep up with reads";
        /// The disk did not answer in time.
        DiskTimeout => 504, "disk-timeout", "the disk did not answer in time";
        /// The proxy was stopped before the exchange was over.
        Stopped => 503, "stopped", "the proxy was stopped";
        /// The exchange's configuration was replaced longer ago than `generation_timeout`.
        GenerationTimeout => 503, "generation-timeout", "the configuration of this request was replaced too long ago";
    }
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The whole response went to the client.
    Complete,
    /// A tunnel was opened, and one of its sides closed it.
    Tunnel,
    /// The request's head was refused.
    Request(RequestError),
    /// The request's body was refused.
    Body(BodyError),
    /// The response's head was malformed.
    Response(ResponseError),
    /// Any other end.
    Failure(Failure),
}

impl End {
    /// Number of different ends.
    pub const COUNT: usize = 2
        + RequestError::ALL.len()
        + BodyError::ALL.len()
        + ResponseError::ALL.len()
        + Failure::ALL.len();

    /// Every end, in the order of [`index`](Self::index).
    pub fn all() -> impl Iterator<Item = End> {
        [End::Complete, End::Tunnel]
            .into_iter()
            .chain(RequestError::ALL.iter().map(|&error| End::Request(error)))
            .chain(BodyError::ALL.iter().map(|&error| End::Body(error)))
            .chain(ResponseError::ALL.iter().map(|&error| End::Response(error)))
            .chain(Failure::ALL.iter().map(|&failure| End::Failure(failure)))
    }

    /// Position among all ends: the index of its counter.
    pub fn index(self) -> usize {
        let request = 2;
        let body = request + RequestError::ALL.len();
        let response = body + BodyError::ALL.len();
        let failure = response + ResponseError::ALL.len();
        match self {
            End::Complete => 0,
            End::Tunnel => 1,
            End::Request(error) => request + error as usize,
            End::Body(error) => body + error as usize,
            End::Response(error) => response + error as usize,
            End::Failure(kind) => failure + kind as usize,
        }
    }

    /// The word for logs and counters.
    pub fn word(self) -> &'static str {
        match self {
            End::Complete => "complete",
            End::Tunnel => "tunnel",
            End::Request(error) => error.word(),
            End::Body(error) => error.word(),
            End::Response(error) => error.word(),
            End::Failure(failure) => failure.word(),
        }
    }

    /// The status of the proxy's answer, if no response has begun.
    pub fn status(self) -> u16 {
        match self {
            End::Complete | End::Tunnel => 200,
            End::Request(error) => error.status(),
            End::Body(error) => error.status(),
            End::Response(error) => error.status(),
            End::Failure(failure) => failure.status(),
        }
    }

    /// Whether the endpoint is at fault.
    pub fn is_endpoint_fault(self) -> bool {
        match self {
            End::Response(_) => true,
            End::Failure(failure) => matches!(
                failure,
                Failure::ConnectFailed
                    | Failure::ConnectTimeout
                    | Failure::UpstreamCertificate
                    | Failure::UpstreamTls
                    | Failure::UpstreamClosed
                    | Failure::UpstreamInterim
                    | Failure::FirstByteTimeout
                    | Failure::TotalTimeout
                    | Failure::UpstreamCut
                    | Failure::UpstreamStalled
                    | Failure::UpstreamBody
            ),
            End::Complete | End::Tunnel | End::Request(_) | End::Body(_) => false,
        }
    }

    /// Whether a server is at fault: the endpoint, or this one.
    pub fn is_server_fault(self) -> bool {
        use Failure::{CompressionFailed, DiskTimeout, FileChanged, FileFailed, UpstreamStale};
        self.is_endpoint_fault()
            || matches!(
                self,
                End::Failure(
                    CompressionFailed | DiskTimeout | FileChanged | FileFailed | UpstreamStale
                )
            )
    }

    /// A sentence for the answer's body.
    pub fn text(self) -> &'static str {
        match self {
            End::Complete | End::Tunnel => "",
            End::Request(error) => error.text(),
            End::Body(error) => error.text(),
            End::Response(error) => error.text(),
            End::Failure(failure) => failure.text(),
        }
    }
}

impl From<RequestError> for End {
    fn from(error: RequestError) -> Self {
        End::Request(error)
    }
}

impl From<BodyError> for End {
    fn from(error: BodyError) -> Self {
        End::Body(error)
    }
}

impl From<ResponseError> for End {
    fn from(error: ResponseError) -> Self {
        End::Response(error)
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Failure(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_a_place_and_a_word_of_its_own() {
        let words: std::collections::HashSet<_> = End::all().map(End::word).collect();
        assert_eq!(words.len(), End::COUNT);
        for (index, end) in End::all().enumerate() {
            assert_eq!(end.index(), index, "{end:?}");
        }
    }
}
