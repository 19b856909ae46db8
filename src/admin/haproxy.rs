//! Our figures in HAProxy's terms.
//!
//! A listener is a frontend, an upstream a backend, an endpoint a server.

use evenkeel_policy::endpoint::Admin;

use crate::metrics::end::{End, Failure};
use crate::observe::figures::{
    EndpointFigures, EndpointStatus, ExchangeFigures, ListenerFigures, UpstreamFigures,
};
use crate::observe::probes::ProbeEnd;

/// The states of a server, in HAProxy's order.
pub(super) const SERVER_STATES: [&str; 5] = ["DOWN", "UP", "MAINT", "DRAIN", "NOLB"];

/// The state of a server. One of weight 0 gets no more than a drained one.
pub(super) fn server_state(endpoint: &EndpointFigures) -> &'static str {
    match (endpoint.admin.0, endpoint.is_lost) {
        (Admin::Stop, _) => "MAINT",
        (Admin::Drain | Admin::Ready, true) => "DOWN",
        (Admin::Drain, false) => "DRAIN",
        (Admin::Ready, false) if endpoint.weight == 0 => "DRAIN",
        (Admin::Ready, false) => "UP",
    }
}

/// The end of its last probe, in the words of HAProxy's statistics.
pub(super) fn check_status(end: ProbeEnd) -> &'static str {
    match end {
        ProbeEnd::Connected => "L4OK",
        ProbeEnd::Answered | ProbeEnd::Exchange => "L7OK",
        ProbeEnd::Local => "SOCKERR",
        ProbeEnd::ConnectFailed => "L4CON",
        ProbeEnd::ConnectTimeout => "L4TOUT",
        ProbeEnd::TlsFailed => "L6RSP",
        ProbeEnd::AnswerTimeout => "L7TOUT",
        ProbeEnd::Malformed | ProbeEnd::Content => "L7RSP",
        ProbeEnd::Status | ProbeEnd::Refused => "L7STS",
    }
}

/// The state of a frontend in the CSV.
pub(super) fn frontend_state(listener: &ListenerFigures) -> &'static str {
    if listener.accepting { "OPEN" } else { "STOP" }
}

/// The state of a backend.
pub(super) fn backend_state(upstream: &UpstreamFigures) -> &'static str {
    if upstream.eligible > 0 { "UP" } else { "DOWN" }
}

/// Whether time counts as a backend's uptime; true also before its first probes.
pub(super) fn is_backend_up(upstream: &UpstreamFigures) -> bool {
    upstream.eligible > 0 || upstream.endpoints.iter().any(is_unprobed)
}

/// Whether time counts as a server's uptime; true also while it drains, and before its first
/// probe.
pub(super) fn is_server_up(endpoint: &EndpointFigures) -> bool {
    matches!(server_state(endpoint), "UP" | "DRAIN") || is_unprobed(endpoint)
}

fn is_unprobed(endpoint: &EndpointFigures) -> bool {
    endpoint.state == EndpointStatus::Unprobed
}

/// Requests refused as malformed, or not received in time.
pub(super) fn request_errors(exchanges: &ExchangeFigures) -> u64 {
    exchanges.ends.sum(|end| match end {
        End::Request(_) | End::Body(_) => true,
        End::Failure(failure) => matches!(
            failure,
            Failure::HeadTimeout
                | Failure::FirstBytesTimeout
                | Failure::ProxyHeader
                | Failure::TlsHandshake
                | Failure::TlsHandshakeTimeout
                | Failure::NotTls
                | Failure::ProxyHeaderTimeout
                | Failure::BodyTimeout
                | Failure::BodyTooLarge
        ),
        End::Complete | End::Tunnel | End::Response(_) => false,
    })
}

/// Exchanges whose client left, stopped reading or was too slow.
pub(super) fn client_aborts(exchanges: &ExchangeFigures) -> u64 {
    exchanges.ends.sum(|end| {
        matches!(
            end,
            End::Failure(Failure::ClientGone | Failure::ClientStalled | Failure::ClientSlow)
        )
    })
}

/// Exchanges that the endpoint cut off.
pub(super) fn server_aborts(exchanges: &ExchangeFigures) -> u64 {
    exchanges.ends.sum(|end| {
        matches!(
            end,
            End::Failure(Failure::UpstreamCut | Failure::UpstreamStalled)
        )
    })
}

/// Attempts that failed once the connection was open.
pub(super) fn response_errors(endpoint: &EndpointFigures) -> u64 {
    endpoint.failures.saturating_sub(endpoint.connect_failures)
}

/// Times that a server went from up to down, for any reason.
pub(super) fn went_down(endpoint: &EndpointFigures) -> u64 {
    let causes = [endpoint.ejections, endpoint.downs, endpoint.unreachables];
    causes.into_iter().map(u64::from).sum()
}

/// Attempts to open a connection.
pub(super) fn connection_attempts(endpoint: &EndpointFigures) -> u64 {
    endpoint.connects + endpoint.connect_failures
}

/// Its weight during a slow start, in percent; `None` otherwise.
pub(super) fn throttle(endpoint: &EndpointFigures) -> Option<u64> {
    let share = endpoint.effective_weight / f64::from(endpoint.weight.max(1));
    (endpoint.state == EndpointStatus::Starting).then_some((share * 100.0).round() as u64)
}

/// A weight as a whole number: at least one for a server that takes part.
pub(super) fn whole_weight(weight: f64) -> u64 {
    weight.ceil() as u64
}

/// The sum of a value over the endpoints of an upstream.
pub(super) fn sum(upstream: &UpstreamFigures, of: impl Fn(&EndpointFigures) -> u64) -> u64 {
    upstream.endpoints.iter().map(of).sum()
}

/// The weight of all endpoints that get exchanges.
pub(super) fn active_weight(upstream: &UpstreamFigures) -> f64 {
    let active = upstream.endpoints.iter().filter(|it| it.eligible);
    active.map(|it| it.effective_weight).sum()
}
