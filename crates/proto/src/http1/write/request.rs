//! The head that an endpoint gets.

use std::net::IpAddr;

use super::lines::{Line, copy_fields, push_all};
use super::request_id_field;
use crate::cdn_loop::LoopId;
use crate::field::{Field, FieldKind};
use crate::forwarded::Believed;
use crate::head::{Method, RequestHead, Scheme, Version};
use crate::identity::TraceParent;
use crate::span::Span;

/// The facts on the client and on the proxy itself that an endpoint gets.
#[derive(Debug, Clone, Copy)]
pub struct ClientInfo<'a> {
    /// Address without port; `None` where it has none, as on a Unix socket.
    pub address: Option<&'a [u8]>,
    /// The scheme that the request came by.
    pub scheme: Scheme,
    /// The report of a trusted proxy; `None` where no such proxy is in front.
    pub relayed: Option<Relayed<'a>>,
    /// The fields that carry these facts.
    pub forward: Forward,
    /// The `Host` of a request that names none: that of the endpoint, which takes its own.
    pub default_host: &'a [u8],
    /// The value of `Client-Cert` (RFC 9440) for the certificate that the client has shown. It
    /// replaces the field of a trusted proxy.
    pub certificate: Option<&'a [u8]>,
    /// Whether the client's handshake is not over: an attacker may have sent a copy of its
    /// request (`Early-Data`, RFC 8470 §5.1).
    pub is_early: bool,
    /// The names of the request.
    pub marks: Marks<'a>,
    /// The proxy's own name.
    pub loop_id: &'a LoopId,
    /// Whether the proxy adds to `Via`.
    pub via: Via,
}

/// A trusted proxy's report on a client, and the proxy itself.
#[derive(Debug, Clone, Copy)]
pub struct Relayed<'a> {
    /// The believed part of its fields.
    pub believed: &'a Believed,
    /// The proxy's own address; `None` on a Unix socket.
    pub proxy: Option<IpAddr>,
}

/// Which fields tell an endpoint of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    pub x_forwarded: bool,
    /// `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// `X-Real-IP`.
    pub x_real_ip: bool,
}

impl Relayed<'_> {
    /// Appends each proxy behind the client, as `item` writes it.
    #[cold]
    fn proxies(self, out: &mut Vec<u8>, item: impl Fn(&mut Vec<u8>, &[u8])) {
        // Without a reported address, the proxy is the client.
        let last = self.proxy.filter(|_| self.believed.client.is_some());
        for proxy in self.believed.hops.iter().rev().copied().chain(last) {
            item(out, proxy.to_string().as_bytes());
        }
    }
}

impl Forward {
    /// None of them.
    pub const NOTHING: Forward = Forward {
        x_forwarded: false,
        forwarded: false,
        x_real_ip: false,
    };
}

/// The treatment of `Via` in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The client's goes on as it is.
    Kept,
    /// A line with the client's version follows it.
    Added,
}

/// The proxy's names for a request, instead of its client's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks<'a> {
    /// Value of `X-Request-ID`; `None` passes the client's on.
    pub request_id: Option<&'a [u8]>,
    /// `traceparent`; `None` passes the client's on.
    pub trace: Option<TraceMark>,
}

impl Marks<'_> {
    /// Everything goes on as the client sent it.
    pub const NONE: Marks<'static> = Marks {
        request_id: None,
        trace: None,
    };
}

/// A `traceparent` that replaces the client's.
#[derive(Debug, Clone, Copy)]
pub struct TraceMark {
    /// Its value.
    pub parent: TraceParent,
    /// Whether it goes on with the client's trace, so that the client's
    /// `tracestate` belongs to it.
    pub continues: bool,
}

/// Appends the head that an endpoint gets for `head`.
pub fn request_head(out: &mut Vec<u8>, buf: &[u8], head: &RequestHead, client: ClientInfo<'_>) {
    request_line(out, buf, head);
    let host = head.host.of(buf);
    let own_host = head.wire.host_in_target || host.is_empty();
    if own_host {
        let host = if host.is_empty() {
            client.default_host
        } else {
            host
        };
        push_all(out, [b"Host: ", host, b"\r\n"]);
    }
    let upgrade = head.wire.upgrade.is_some();
    let hops_left = head.hops_left(buf).filter(|&hops| hops > 0);
    let marks = client.marks;
    copy_fields(out, buf, &head.fields, head.wire.end, |field| {
        match field.kind {
            FieldKind::Host if own_host => Line::Leave,
            FieldKind::Host | FieldKind::ContentLength | FieldKind::TransferEncoding => {
                Line::Restate
            }
            FieldKind::Connection
            | FieldKind::HopByHop
            | FieldKind::KeepAlive
            | FieldKind::Forwarded => Line::Leave,
            FieldKind::ProxyClaim => Line::copy_if(
                client.relayed.is_some()
                    && !(client.forward.x_real_ip && is_real_ip(buf, field))
                    && !(client.certificate.is_some() && is_certificate(buf, field)),
            ),
            FieldKind::Upgrade => Line::copy_if(upgrade),
            FieldKind::Expect => {
                Line::copy_if(head.wire.expect_continue && !field.value.is_empty())
            }
            FieldKind::MaxForwards => Line::copy_if(hops_left.is_none()),
            FieldKind::RequestId => Line::copy_if(marks.request_id.is_none()),
            FieldKind::TraceParent => Line::copy_if(marks.trace.is_none()),
            FieldKind::TraceState => Line::copy_if(marks.trace.is_none_or(|it| it.continues)),
            _ => Line::Copy,
        }
    });
    if upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    }
    if let Some(hops) = hops_left {
        let hops = (hops - 1).to_string();
        push_all(out, [b"Max-Forwards: ", hops.as_bytes(), b"\r\n"]);
    }
    if let Some(value) = client.certificate {
        push_all(out, [b"Client-Cert: ", value, b"\r\n"]);
    }
    if client.is_early {
        out.extend_from_slice(b"Early-Data: 1\r\n");
    }
    if let Some(id) = marks.request_id {
        request_id_field(out, id);
    }
    if let Some(trace) = marks.trace {
        push_all(out, [b"traceparent: ", &trace.parent.text(), b"\r\n"]);
    }
    forwarded_fields(out, buf, host, &client);
    if client.via == Via::Added {
        out.extend_from_slice(match head.version {
            Version::Http10 => b"Via: 1.0 evenkeel\r\n",
            Version::Http11 => b"Via: 1.1 evenkeel\r\n",
            Version::Http2 => b"Via: 2.0 evenkeel\r\n",
        });
    }
    out.extend_from_slice(client.loop_id.end_of_head());
}

fn request_line(out: &mut Vec<u8>, buf: &[u8], head: &RequestHead) {
    out.extend_from_slice(head.method_span.of(buf));
    out.push(b' ');
    let target = match head.method {
        Method::Connect => head.target.of(buf),
        _ => head.path_and_query.of(buf),
    };
    if matches!(target.first(), None | Some(b'?')) {
        out.extend_from_slice(head.path(buf));
    }
    out.extend_from_slice(target);
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// `X-Forwarded-*` in the common form, `Forwarded` by RFC 7239.
pub(super) fn forwarded_fields(
    out: &mut Vec<u8>,
    buf: &[u8],
    host: &[u8],
    client: &ClientInfo<'_>,
) {
    let Forward {
        x_forwarded,
        forwarded,
        x_real_ip,
    } = client.forward;
    let told = |span: fn(&Believed) -> Span| match client.relayed {
        Some(relayed) => span(relayed.believed).of(buf),
        None => &[],
    };
    let host = match told(|it| it.host) {
        [] => host,
        told => told,
    };
    if x_forwarded {
        if let Some(address) = client.address {
            push_all(out, [b"X-Forwarded-For: ", address, b""]);
            if let Some(relayed) = client.relayed {
                relayed.proxies(out, |out, proxy| push_all(out, [b", ", proxy, b""]));
            }
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(match client.scheme {
            Scheme::Http => b"X-Forwarded-Proto: http\r\n" as &[u8],
            Scheme::Https => b"X-Forwarded-Proto: https\r\n",
        });
        if !host.is_empty() {
            push_all(out, [b"X-Forwarded-Host: ", host, b"\r\n"]);
        }
        let port = told(|it| it.port);
        if !port.is_empty() {
            push_all(out, [b"X-Forwarded-Port: ", port, b"\r\n"]);
        }
    }
    if forwarded {
        out.extend_from_slice(b"Forwarded: ");
        forwarded_for(out, client.address);
        out.extend_from_slice(match client.scheme {
            Scheme::Http => b";proto=http" as &[u8],
            Scheme::Https => b";proto=https",
        });
        if !host.is_empty() {
            push_all(out, [b";host=\"", host, b"\""]);
        }
        if let Some(relayed) = client.relayed {
            relayed.proxies(out, |out, proxy| {
                out.extend_from_slice(b", ");
                forwarded_for(out, Some(proxy));
            });
        }
        out.extend_from_slice(b"\r\n");
    }
    if let Some(address) = client.address.filter(|_| x_real_ip) {
        push_all(out, [b"X-Real-IP: ", address, b"\r\n"]);
    }
}

/// An address as `Forwarded` has it (RFC 7239 section 6).
fn forwarded_for(out: &mut Vec<u8>, address: Option<&[u8]>) {
    match address {
        Some(address) if address.contains(&b':') => push_all(out, [b"for=\"[", address, b"]\""]),
        Some(address) => push_all(out, [b"for=", address, b""]),
        None => out.extend_from_slice(b"for=unknown"),
    }
}

/// Whether a field is `Client-Cert` or `Client-Cert-Chain`, in any spelling that an
/// endpoint takes for it.
fn is_certificate(buf: &[u8], field: &Field) -> bool {
    field.is_read_as(b"client-cert", buf) || field.is_read_as(b"client-cert-chain", buf)
}

/// Whether a field is `X-Real-IP`, in any spelling that an endpoint takes for it.
fn is_real_ip(buf: &[u8], field: &Field) -> bool {
    field.is_read_as(b"x-real-ip", buf)
}
