//! HAProxy's termination state (configuration manual, section 8.5) of each
//! end: who ended the exchange, in which phase. The two characters about
//! persistence cookies are always `-`.

use super::record::Phase;
use crate::metrics::end::{End, Failure};

/// The four characters.
pub(super) fn termination(end: End, phase: Phase) -> [u8; 4] {
    let (who, at) = state(end, phase);
    [who, at, b'-', b'-']
}

fn state(end: End, phase: Phase) -> (u8, u8) {
    let at = letter(phase);
    let failure = match end {
        // Answered without an upstream.
        End::Complete if phase == Phase::Local => return (b'L', b'R'),
        End::Complete | End::Tunnel => return (b'-', b'-'),
        End::Request(_) => return (b'P', b'R'),
        End::Body(_) => return (b'P', at),
        End::Response(_) => return (b'P', b'H'),
        End::Failure(failure) => failure,
    };
    match failure {
        // As an answer that is configured.
        Failure::NoRoute | Failure::Maintenance => (b'L', b'R'),
        Failure::HeadTimeout
        | Failure::FirstBytesTimeout
        | Failure::ProxyHeaderTimeout
        | Failure::TlsHandshakeTimeout => (b'c', b'R'),
        Failure::BodyTimeout => (b'c', at),
        Failure::BodyTooLarge => (b'P', at),
        Failure::ConnectMethod
        | Failure::Loop
        | Failure::ProxyHeader
        | Failure::TlsHandshake
        | Failure::NotTls => (b'P', b'R'),
        Failure::Saturated | Failure::QueueFull | Failure::Busy => (b'S', b'Q'),
        Failure::QueueTimeout => (b's', b'Q'),
        Failure::NoEndpoint
        | Failure::ConnectFailed
        | Failure::UpstreamCertificate
        | Failure::UpstreamTls => (b'S', b'C'),
        Failure::NoSocket => (b'R', b'C'),
        Failure::ConnectTimeout => (b's', b'C'),
        Failure::UpstreamClosed | Failure::UpstreamStale => (b'S', b'H'),
        Failure::UpstreamInterim => (b'P', b'H'),
        Failure::FirstByteTimeout => (b's', b'H'),
        Failure::TotalTimeout => (b's', at),
        Failure::UpstreamCut => (b'S', b'D'),
        // It took no more of the request, or gave no more of its answer.
        Failure::UpstreamStalled => (b's', at),
        Failure::UpstreamBody => (b'P', b'D'),
        Failure::CompressionFailed => (b'R', b'D'),
        Failure::TunnelIdle => (b's', b'D'),
        // While an answer of ours was sent.
        Failure::ClientGone | Failure::ClientStalled if phase == Phase::Local => match failure {
            Failure::ClientGone => (b'C', b'D'),
            _ => (b'c', b'D'),
        },
        Failure::ClientGone => (b'C', at),
        Failure::ClientStalled | Failure::ClientSlow => (b'c', at),
        Failure::NoFile | Failure::NoMethod | Failure::NotCached => (b'L', b'R'),
        Failure::AmbiguousPath
        | Failure::BadPath
        | Failure::FileForbidden
        | Failure::RateLimited
        | Failure::CodedRequest
        | Failure::Denied
        | Failure::Unauthorized => (b'P', b'R'),
        Failure::AuthBusy => (b'R', b'R'),
        // An auth server is to a route as an endpoint is to a request.
        Failure::AuthTimeout => (b's', b'H'),
        Failure::AuthFailed => (b'S', b'H'),
        Failure::NoDescriptor | Failure::AnswerMemory | Failure::Connections => (b'R', b'R'),
        // A disk is to a file as an endpoint is to a request.
        Failure::DiskBusy => (b'S', b'Q'),
        Failure::DiskTimeout => (b's', b'H'),
        Failure::FileFailed => (b'S', b'H'),
        Failure::FileChanged => (b'S', b'D'),
        Failure::Stopped | Failure::GenerationTimeout => (b'K', at),
    }
}

fn letter(phase: Phase) -> u8 {
    match phase {
        Phase::Head | Phase::Local => b'R',
        Phase::Queue => b'Q',
        Phase::Connect => b'C',
        Phase::Response => b'H',
        Phase::Data => b'D',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_proto::{BodyError, RequestError, ResponseError};

    fn shown(end: impl Into<End>, phase: Phase) -> String {
        let state = termination(end.into(), phase);
        String::from_utf8_lossy(&state).into_owned()
    }

    #[test]
    fn says_who_ended_it_and_when() {
        use Failure as F;
        use Phase::{Connect, Data, Head, Local, Queue, Response};
        for (failure, phase, expected) in [
            (F::NoRoute, Local, "LR--"),
            (F::AmbiguousPath, Local, "PR--"),
            (F::RateLimited, Local, "PR--"),
            (F::Denied, Local, "PR--"),
            (F::Unauthorized, Local, "PR--"),
            (F::AuthBusy, Local, "RR--"),
            (F::AuthTimeout, Local, "sH--"),
            (F::AuthFailed, Local, "SH--"),
            (F::CodedRequest, Local, "PR--"),
            (F::CompressionFailed, Data, "RD--"),
            (F::HeadTimeout, Head, "cR--"),
            (F::FirstBytesTimeout, Local, "cR--"),
            (F::ProxyHeader, Head, "PR--"),
            (F::ProxyHeaderTimeout, Head, "cR--"),
            (F::TlsHandshake, Local, "PR--"),
            (F::TlsHandshakeTimeout, Local, "cR--"),
            (F::NotTls, Head, "PR--"),
            (F::BodyTimeout, Response, "cH--"),
            (F::BodyTimeout, Data, "cD--"),
            (F::BodyTooLarge, Local, "PR--"),
            (F::BodyTooLarge, Response, "PH--"),
            (F::ConnectMethod, Local, "PR--"),
            (F::Loop, Local, "PR--"),
            (F::Saturated, Local, "SQ--"),
            (F::QueueFull, Local, "SQ--"),
            (F::Busy, Local, "SQ--"),
            (F::QueueTimeout, Queue, "sQ--"),
            (F::NoEndpoint, Local, "SC--"),
            (F::ConnectFailed, Connect, "SC--"),
            (F::UpstreamCertificate, Connect, "SC--"),
            (F::UpstreamTls, Connect, "SC--"),
            (F::NoSocket, Connect, "RC--"),
            (F::ConnectTimeout, Connect, "sC--"),
            (F::UpstreamClosed, Response, "SH--"),
            (F::UpstreamStale, Response, "SH--"),
            (F::UpstreamInterim, Response, "PH--"),
            (F::FirstByteTimeout, Response, "sH--"),
            (F::TotalTimeout, Queue, "sQ--"),
            (F::TotalTimeout, Connect, "sC--"),
            (F::TotalTimeout, Response, "sH--"),
            (F::TotalTimeout, Data, "sD--"),
            (F::UpstreamCut, Data, "SD--"),
            (F::UpstreamStalled, Response, "sH--"),
            (F::UpstreamStalled, Data, "sD--"),
            (F::UpstreamBody, Data, "PD--"),
            (F::TunnelIdle, Data, "sD--"),
            (F::ClientGone, Head, "CR--"),
            (F::ClientGone, Local, "CD--"),
            (F::ClientGone, Queue, "CQ--"),
            (F::ClientGone, Connect, "CC--"),
            (F::ClientGone, Response, "CH--"),
            (F::ClientGone, Data, "CD--"),
            (F::ClientStalled, Local, "cD--"),
            (F::ClientStalled, Response, "cH--"),
            (F::ClientStalled, Data, "cD--"),
            (F::ClientSlow, Response, "cH--"),
            (F::ClientSlow, Data, "cD--"),
            (F::Stopped, Head, "KR--"),
            (F::Stopped, Queue, "KQ--"),
            (F::Stopped, Data, "KD--"),
            (F::GenerationTimeout, Data, "KD--"),
        ] {
            assert_eq!(shown(failure, phase), expected, "{failure:?} in {phase:?}");
        }
        assert_eq!(shown(End::Complete, Local), "LR--");
        assert_eq!(shown(End::Complete, Data), "----");
        assert_eq!(shown(End::Tunnel, Data), "----");
    }

    #[test]
    fn what_breaks_the_grammar_was_blocked_by_the_proxy() {
        for error in RequestError::ALL {
            assert_eq!(shown(*error, Phase::Head), "PR--", "{error:?}");
        }
        for error in BodyError::ALL {
            assert_eq!(shown(*error, Phase::Local), "PR--", "{error:?}");
            assert_eq!(shown(*error, Phase::Response), "PH--", "{error:?}");
            assert_eq!(shown(*error, Phase::Data), "PD--", "{error:?}");
        }
        for error in ResponseError::ALL {
            assert_eq!(shown(*error, Phase::Response), "PH--", "{error:?}");
        }
    }

    #[test]
    fn only_a_success_has_no_reason() {
        for end in End::all() {
            let is_success = matches!(end, End::Complete | End::Tunnel);
            assert_eq!(shown(end, Phase::Data) == "----", is_success, "{end:?}");
        }
    }
}
