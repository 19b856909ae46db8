//! The words of refusals: status, a part of the answer's text, and the word in the access log.
//! One table, so that a word changes in one place.

/// Why a request is refused or fails.
#[derive(Debug, Clone, Copy)]
pub struct Reason {
    /// Status of the answer; 0 for no answer.
    pub status: u16,
    /// Word in the access log.
    pub word: &'static str,
    /// Part of the answer's text, compared without case.
    pub text: &'static str,
}

const fn reason(status: u16, word: &'static str, text: &'static str) -> Reason {
    Reason { status, word, text }
}

// The request's head.
pub const REQUEST_LINE: Reason = reason(400, "request-line", "request line is malformed");
pub const BARE_LF: Reason = reason(400, "bare-lf", "ends in LF");
pub const FIELD_NAME: Reason = reason(400, "field-name", "field name is malformed");
pub const SPACE_BEFORE_COLON: Reason = reason(400, "space-before-colon", "before its colon");
pub const OBS_FOLD: Reason = reason(400, "obs-fold", "folded");
pub const NUL: Reason = reason(400, "nul", "NUL");
pub const FIELD_VALUE: Reason = reason(400, "field-value", "control byte");
pub const TARGET: Reason = reason(400, "target", "target is malformed");
pub const HOST_MISSING: Reason = reason(400, "host-missing", "Host field is missing");
pub const HOST_REPEATED: Reason = reason(400, "host-repeated", "Host field is repeated");
pub const HOST_INVALID: Reason = reason(400, "host-invalid", "Host field is malformed");
pub const CONTENT_LENGTH: Reason = reason(400, "content-length", "not a number");
pub const CONTENT_LENGTH_REPEATED: Reason =
    reason(400, "content-length-repeated", "Content-Length is repeated");
pub const LENGTH_AND_CODING: Reason = reason(400, "length-and-coding", "are both present");
pub const TRANSFER_CODING: Reason = reason(400, "transfer-coding", "transfer coding");
pub const VERSION: Reason = reason(505, "version", "version is not supported");
pub const TARGET_TOO_LONG: Reason = reason(414, "target-too-long", "target is longer");
pub const HEAD_TOO_LARGE: Reason = reason(431, "head-too-large", "head is larger");
pub const EXPECTATION: Reason = reason(417, "expectation", "expectation");

// The request's body.
pub const CHUNK_SIZE: Reason = reason(400, "chunk-size", "chunk size is malformed");
pub const CHUNK_EXTENSION: Reason =
    reason(400, "chunk-extension", "a chunk extension is malformed");
pub const CHUNK_END: Reason = reason(400, "chunk-end", "where its size says");
pub const TRAILER: Reason = reason(400, "trailer", "trailer");
pub const BODY_TOO_LARGE: Reason = reason(413, "body-too-large", "body is larger");

// The client's pace.
pub const HEAD_TIMEOUT: Reason = reason(408, "head-timeout", "head");
pub const PROXY_HEADER: Reason = reason(400, "proxy-header", "begin with a PROXY protocol header");
pub const PROXY_HEADER_TIMEOUT: Reason = reason(
    408,
    "proxy-header-timeout",
    "PROXY protocol header did not arrive",
);
pub const TLS_HANDSHAKE: Reason = reason(0, "tls-handshake", "");
pub const TLS_HANDSHAKE_TIMEOUT: Reason = reason(0, "tls-handshake-timeout", "");
pub const NOT_TLS: Reason = reason(400, "not-tls", "speaks TLS");
pub const BODY_TIMEOUT: Reason = reason(408, "body-timeout", "body");

// Routes.
pub const AMBIGUOUS_PATH: Reason = reason(400, "ambiguous-path", "lead to different routes");

pub const MAINTENANCE: Reason = reason(503, "maintenance", "this service is under maintenance");
pub const DENIED: Reason = reason(403, "denied", "from this address are not allowed");
pub const UNAUTHORIZED: Reason = reason(401, "unauthorized", "a user name and a password");
pub const AUTH_BUSY: Reason = reason(503, "auth-busy", "wait to be verified");
pub const AUTH_TIMEOUT: Reason = reason(504, "auth-timeout", "did not answer in time");
pub const AUTH_FAILED: Reason = reason(502, "auth-failed", "could not be reached");
pub const CODED_REQUEST: Reason = reason(415, "coded-request", "compressed");
pub const RATE_LIMITED: Reason = reason(429, "rate-limited", "too many requests");

// Not supported.
pub const CONNECT_METHOD: Reason = reason(501, "connect-method", "CONNECT is not supported");

pub const LOOP: Reason = reason(508, "loop", "came back to the proxy");

// The upstream.
pub const CONNECT_FAILED: Reason = reason(502, "connect-failed", "no connection to an endpoint");
pub const UPSTREAM_CERTIFICATE: Reason =
    reason(502, "upstream-certificate", "certificate of the endpoint");
pub const UPSTREAM_TLS: Reason = reason(502, "upstream-tls", "handshake with the endpoint");
pub const UPSTREAM_STATUS_LINE: Reason = reason(502, "upstream-status-line", "status line");
pub const UPSTREAM_FRAMING: Reason = reason(502, "upstream-framing", "ambiguous");
pub const UPSTREAM_HEAD_TOO_LARGE: Reason = reason(502, "upstream-head-too-large", "too large");
pub const UPSTREAM_UPGRADE: Reason = reason(502, "upstream-upgrade", "switched to a protocol");
pub const UPSTREAM_CLOSED: Reason = reason(502, "upstream-closed", "closed the connection");
pub const UPSTREAM_STALE: Reason = reason(0, "upstream-stale", "");
pub const UPSTREAM_INTERIM: Reason = reason(502, "upstream-interim", "too many interim responses");
pub const FIRST_BYTE_TIMEOUT: Reason = reason(504, "first-byte-timeout", "did not answer in time");
pub const TOTAL_TIMEOUT: Reason = reason(504, "total-timeout", "exceeded its time limit");
pub const SATURATED: Reason = reason(503, "saturated", "at its limit");
pub const QUEUE_FULL: Reason = reason(503, "queue-full", "too many requests wait");
pub const QUEUE_TIMEOUT: Reason = reason(503, "queue-timeout", "could take the request in time");
pub const NO_ENDPOINT: Reason = reason(503, "no-endpoint", "no endpoint is available");

// Files.
pub const NO_FILE: Reason = reason(404, "no-file", "file not found");
pub const BAD_PATH: Reason = reason(
    400,
    "bad-path",
    "the path contains a NUL or an encoded slash, or leads out of the folder",
);
pub const FILE_FORBIDDEN: Reason = reason(403, "file-forbidden", "may not be read");
pub const NO_METHOD: Reason = reason(405, "no-method", "GET and HEAD");
pub const FILE_FAILED: Reason = reason(500, "file-failed", "could not be read");
pub const CONNECTIONS: Reason = reason(503, "connections", "reached its limit of connections");
pub const NO_DESCRIPTOR: Reason = reason(503, "no-descriptor", "too many files open");
pub const DISK_BUSY: Reason = reason(503, "disk-busy", "cannot keep up with reads");
pub const ANSWER_MEMORY: Reason = reason(
    503,
    "answer-memory",
    "too many answers wait for slow clients",
);
pub const DISK_TIMEOUT: Reason = reason(504, "disk-timeout", "did not answer in time");
pub const FILE_CHANGED: Reason = reason(0, "file-changed", "");

// Slow clients; once the response has begun there is no answer.
pub const CLIENT_SLOW: Reason = reason(408, "client-slow", "too slow");

// Ends without an answer, since the response had begun.
pub const UPSTREAM_CUT: Reason = reason(0, "upstream-cut", "");
pub const UPSTREAM_STALLED: Reason = reason(0, "upstream-stalled", "");
pub const UPSTREAM_BODY: Reason = reason(0, "upstream-body", "");
pub const TUNNEL_IDLE: Reason = reason(0, "tunnel-idle", "");
pub const STOPPED: Reason = reason(503, "stopped", "the proxy was stopped");
pub const CLIENT_GONE: Reason = reason(0, "client-gone", "");
