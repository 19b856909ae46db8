//! Figures of a listener.

use std::sync::atomic::Ordering;

use evenkeel_metrics::{Detail, figures};

use super::Sources;
use super::exchanges::ExchangeCounters;

figures! {
    /// Figures of a listener.
    figures ListenerFigures;
    /// Counters of a listener.
    cells ListenerCounters;
    /// Further facts of a listener.
    given ListenerGiven;

    /// Its name.
    given name: String;
    /// Its address.
    given bind: String;
    /// Whether it takes new connections: until the process drains.
    given accepting: bool;
    /// Connections accepted.
    counter connections => "connections_total";
    /// Connections open now.
    gauge open => "connections_open";
    /// Most connections at once; absent where there is no limit.
    given connections_limit: Option<u32> => gauge "connections_limit";
    /// Connections refused because of that limit (`connections`).
    counter connections_refused => "connections_refused_total";
    /// Connections refused because no file descriptor was free (`no-descriptor`).
    counter connections_no_descriptor => "connections_no_descriptor_total";
    /// Idle client connections closed to make room.
    counter connections_displaced => "connections_displaced_total";
    /// Certificates that it serves; absent without TLS.
    given certificates: Option<u64> => gauge "certificates";
    /// Certificates that have expired; absent without TLS.
    given certificates_expired: Option<u64> => gauge "certificates_expired";
    /// Certificates with less than a twelfth of their lifetime left; absent without TLS.
    given certificates_ending: Option<u64> => gauge "certificates_ending";
    /// Files of certificates that can't be used; absent without TLS.
    given certificates_unreadable: Option<u64> => gauge "certificates_unreadable";
    /// Names whose certificate is not issued yet; absent without ACME.
    given certificates_missing: Option<u64> => gauge "certificates_missing";
    /// Names whose last order of a certificate failed; absent without ACME.
    given certificates_failed: Option<u64> => gauge "certificates_failed";
    /// When the next of its certificates expires, in seconds since 1970; absent without
    /// TLS.
    given certificate_expiry_unix_s: Option<u64> => gauge "certificate_expiry_timestamp_seconds";
    /// TLS handshakes that succeeded.
    counter tls_handshakes => "tls_handshakes_total";
    /// TLS handshakes that resumed an earlier session.
    counter tls_resumed => "tls_resumed_total";
    /// TLS handshakes that failed, or did not end in time.
    counter tls_failed => "tls_failed_total";
    /// Connections that spoke HTTP/2.
    counter http2_connections => "http2_connections_total";
    /// HTTP/2 connections closed because the client broke the protocol, cost too much or stalled.
    counter http2_broken => "http2_broken_total";
    /// HTTP/2 streams reset because too many clients read nothing, and this client for the longest.
    counter http2_displaced => "http2_displaced_total";
    /// Times that accepting paused because no file descriptor was free.
    counter accept_pauses => "accept_pauses_total";
    /// Requests whose body was read on after their answer.
    counter drains => "drains_total";
    /// Requests whose connection was closed before the end of that body.
    counter drains_cut => "drains_cut_total";
    /// Its exchanges, refused ones included.
    nested exchanges: ExchangeCounters;
}

impl Sources {
    pub(super) fn listener(&self, index: usize, detail: Detail) -> ListenerFigures {
        let settings = &self.config.listeners[index];
        let certificates = self.tls[index].as_ref().map(|it| it.counts());
        let given = ListenerGiven {
            name: settings.name.clone(),
            bind: settings.bind.to_string(),
            accepting: !self.is_draining.load(Ordering::Relaxed),
            connections_limit: settings.limits.connections,
            certificates: certificates.map(|it| it.served),
            certificates_expired: certificates.map(|it| it.expired),
            certificates_ending: certificates.map(|it| it.ending),
            certificates_unreadable: certificates.map(|it| it.unreadable),
            certificates_missing: certificates.and_then(|it| it.missing),
            certificates_failed: certificates.and_then(|it| it.failed),
            certificate_expiry_unix_s: certificates.and_then(|it| it.next_expiry_unix_s),
        };
        let cells = self.counters.iter().map(|it| &*it.listeners[index]);
        given.with(cells, detail)
    }
}
