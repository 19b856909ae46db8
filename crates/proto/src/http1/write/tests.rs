use std::net::IpAddr;

use super::request::forwarded_fields;
use super::*;
use crate::cdn_loop::LoopId;
use crate::forwarded::Believed;
use crate::head::{Method, RequestHead, ResponseHead, Scheme};
use crate::http1::{parse_request, parse_response};
use crate::identity::TraceParent;

const CLIENT: ClientInfo<'_> = ClientInfo {
    address: Some(b"192.0.2.1"),
    scheme: Scheme::Http,
    relayed: None,
    forward: Forward {
        x_forwarded: true,
        forwarded: true,
        x_real_ip: false,
    },
    default_host: b"app:8080",
    certificate: None,
    is_early: false,
    marks: Marks::NONE,
    loop_id: &LOOP_ID,
    via: Via::Kept,
};
const LOOP_ID: LoopId = LoopId::ZERO;

fn written(request: &str) -> String {
    let mut head = RequestHead::default();
    parse_request(request.as_bytes(), &mut head).unwrap();
    let mut out = Vec::new();
    request_head(&mut out, request.as_bytes(), &head, CLIENT);
    String::from_utf8(out).unwrap()
}

/// The lines behind the fields of a request from `host`.
fn added(host: &str) -> String {
    format!(
        "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: {host}\r\n\
         Forwarded: for=192.0.2.1;proto=http;host=\"{host}\"\r\nCDN-Loop: evenkeel-000000000\r\n\r\n"
    )
}

#[test]
fn writes_request_heads() {
    for (request, expected) in [
        (
            "GET /a?b HTTP/1.1\r\nhost: h\r\nX-a:1\r\nY: \t2 \r\n\r\n",
            "GET /a?b HTTP/1.1\r\nhost: h\r\nX-a:1\r\nY: \t2 \r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost:h\r\ncontent-length:\t0012 \r\nA: b\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\ncontent-length: 12\r\nA: b\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 000\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: h\r\nA: b\r\nTransfer-Encoding:\tchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nA: b\r\nTransfer-Encoding: chunked\r\n",
        ),
        (
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: x-a, host\r\nX-A: 1\r\nKeep-Alive: 5\r\n\
             TE: trailers\r\nProxy: p\r\nX_Forwarded_For: 6\r\nForwarded: for=6\r\n\
             Content_Length: 6\r\nTransfer.Encoding: chunked\r\nUpgrade: websocket\r\n\
             HTTP2-Settings: A\r\nB: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nB: 2\r\n",
        ),
        (
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\nHost: h\r\nConnection: upgrade\r\n",
        ),
        (
            "GET http://h?q HTTP/1.1\r\nA: b\r\nHost: evil\r\n\r\n",
            "GET /?q HTTP/1.1\r\nHost: h\r\nA: b\r\n",
        ),
        (
            "OPTIONS http://h HTTP/1.1\r\nHost: h\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: h\r\n",
        ),
    ] {
        assert_eq!(written(request), format!("{expected}{}", added("h")));
    }
}

#[test]
fn marks_stand_in_the_place_of_the_client_s() {
    let parent = TraceParent {
        trace_id: 1,
        parent_id: 2,
        flags: TraceParent::SAMPLED,
    };
    let own_trace = "traceparent: 00-00000000000000000000000000000001-0000000000000002-01\r\n";
    let trace = |continues| Some(TraceMark { parent, continues });
    let request = "GET / HTTP/1.1\r\nHost: h\r\nX-REQUEST-ID: a\r\nx-request-id: b\r\n\
                   traceparent: x\r\nTraceState: c=1\r\ntracestate: d=2\r\n\r\n";
    let theirs = &request["GET / HTTP/1.1\r\nHost: h\r\n".len()..request.len() - 2];
    let ids = "X-REQUEST-ID: a\r\nx-request-id: b\r\n";
    let states = "TraceState: c=1\r\ntracestate: d=2\r\n";
    let own_id = "X-Request-ID: id\r\n";
    for (request_id, trace, expected) in [
        (None, None, theirs.to_owned()),
        (
            Some(&b"id"[..]),
            None,
            format!("traceparent: x\r\n{states}{own_id}"),
        ),
        (None, trace(true), format!("{ids}{states}{own_trace}")),
        (Some(b"id"), trace(false), format!("{own_id}{own_trace}")),
    ] {
        let client = ClientInfo {
            marks: Marks { request_id, trace },
            ..CLIENT
        };
        let mut head = RequestHead::default();
        parse_request(request.as_bytes(), &mut head).unwrap();
        let mut out = Vec::new();
        request_head(&mut out, request.as_bytes(), &head, client);
        let out = String::from_utf8(out).unwrap();
        let start = "GET / HTTP/1.1\r\nHost: h\r\n";
        assert_eq!(out, format!("{start}{expected}{}", added("h")));
    }
}

#[test]
fn writes_connect_and_http_1_0() {
    assert_eq!(
        written("CONNECT h:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
        format!("CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n{}", added("h:1"))
    );
    assert_eq!(
        written("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: app:8080\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: http\r\n\
         Forwarded: for=192.0.2.1;proto=http\r\nCDN-Loop: evenkeel-000000000\r\n\r\n"
    );
}

#[test]
fn brackets_an_ipv6_client() {
    let client = ClientInfo {
        address: Some(b"2001:db8::1"),
        scheme: Scheme::Https,
        ..CLIENT
    };
    let mut out = Vec::new();
    forwarded_fields(&mut out, b"", b"", &client);
    assert_eq!(
        out,
        b"X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Proto: https\r\n\
          Forwarded: for=\"[2001:db8::1]\";proto=https\r\n"
    );
}

/// Field lines that an endpoint gets of the client, for a request with `fields`
/// from a trusted proxy at `10.0.0.1`.
fn relayed(fields: &str, forward: Forward) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let (buf, mut head) = (request.as_bytes(), RequestHead::default());
    parse_request(buf, &mut head).unwrap();
    let mut believed = Believed::default();
    believed.read(buf, &head, |it| it.to_string().starts_with("10."));
    let proxy: IpAddr = "10.0.0.1".parse().unwrap();
    let address = believed.client.unwrap_or(proxy).to_string();
    let client = ClientInfo {
        address: Some(address.as_bytes()),
        scheme: believed.scheme.unwrap_or(Scheme::Http),
        relayed: Some(Relayed {
            believed: &believed,
            proxy: Some(proxy),
        }),
        forward,
        ..CLIENT
    };
    let mut out = Vec::new();
    request_head(&mut out, buf, &head, client);
    let out = String::from_utf8(out).unwrap();
    let out = out.strip_prefix("GET / HTTP/1.1\r\nHost: h\r\n").unwrap();
    let own_end = "CDN-Loop: evenkeel-000000000\r\n\r\n";
    out.strip_suffix(own_end).unwrap().to_owned()
}

#[test]
fn what_a_trusted_proxy_says_is_believed_and_added_to() {
    let all = Forward {
        x_real_ip: true,
        ..CLIENT.forward
    };
    assert_eq!(
        relayed(
            "X-Forwarded-For: 198.51.100.9, 2001:db8::1, 10.0.0.2\r\nX-Forwarded-Proto: https\r\n\
             X-Forwarded-Host: www.example\r\nX-Forwarded-Port: 8443\r\n\
             X-Forwarded-Prefix: /a\r\nX_Real_IP: 198.51.100.9\r\n\
             X_Forwarded_Prefix: /b\r\nTrue_Client.IP: a\r\n",
            all
        ),
        "X-Forwarded-Prefix: /a\r\n\
         X-Forwarded-For: 2001:db8::1, 10.0.0.2, 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\
         X-Forwarded-Host: www.example\r\nX-Forwarded-Port: 8443\r\n\
         Forwarded: for=\"[2001:db8::1]\";proto=https;host=\"www.example\", for=10.0.0.2, for=10.0.0.1\r\n\
         X-Real-IP: 2001:db8::1\r\n"
    );
    let named = Forward {
        x_forwarded: true,
        ..Forward::NOTHING
    };
    assert_eq!(
        relayed(
            "X-Real-IP: 192.0.2.9\r\nX-Forwarded-For: rubbish\r\n",
            named
        ),
        "X-Real-IP: 192.0.2.9\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: http\r\n\
         X-Forwarded-Host: h\r\n"
    );
    assert_eq!(
        relayed("Forwarded: for=192.0.2.1\r\n", Forward::NOTHING),
        ""
    );
}

#[test]
fn claims_of_a_client_go_no_further() {
    for name in [
        "X-Real-IP",
        "x_real_ip",
        "X-Forwarded-Prefix",
        "X_Forwarded_Prefix",
        "X-Forwarded-Ssl",
        "X-Forwarded-Scheme",
        "X-Forwarded-Server",
        "X-Forwarded-User",
        "X-Forwarded",
        "X-Scheme",
        "X-Original-URL",
        "X-Rewrite-URL",
        "True-Client-IP",
        "True_Client_IP",
        "CF-Connecting-IP",
        "CF-Connecting-IPv6",
        "Fastly-Client-IP",
        "Fly-Client-IP",
        "X-Client-IP",
        "Client-IP",
        "X-Cluster-Client-IP",
        "X-Azure-ClientIP",
        "WL-Proxy-Client-IP",
        "Front-End-Https",
        "Front_End.Https",
        "Forwarded-For",
        "Remote-Addr",
        "X-Remote-User",
        "WL-Proxy-SSL",
        "CloudFront-Forwarded-Proto",
        "Fly-Forwarded-Proto",
        "X-Vercel-Forwarded-For",
        "X-Nf-Client-Connection-Ip",
        "X-Real-Scheme",
        "HTTPS",
        "X-Host",
        "X-HTTPS",
        "X-Remote-Addr",
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{name}: a\r\n\r\n");
        let expected = format!("GET / HTTP/1.1\r\nHost: h\r\n{}", added("h"));
        assert_eq!(written(&request), expected, "{name}");
    }
    for name in [
        "X-Requested-With",
        "Content-Type",
        "Accept-Zip",
        "X-Forward",
        "Cf-Visitor",
        "Host-For",
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{name}: a\r\n\r\n");
        assert!(
            written(&request).contains(&format!("{name}: a\r\n")),
            "{name}"
        );
    }
}

#[test]
fn writes_response_heads() {
    use Method::{Get, Head};
    use Persistence::{Close, Keep, KeepTold, Upgrade};
    use Transcode::{Chunk, Raw, Strip};
    for (method, transcode, persistence, response, expected) in [
        (
            Get,
            Raw,
            Keep,
            "HTTP/1.0 200 Quite Fine\r\nA:b\r\nConnection: close\r\ncontent-length: 5\r\nSet-Cookie: x\r\n\r\n",
            "HTTP/1.1 200 Quite Fine\r\nA:b\r\ncontent-length: 5\r\nSet-Cookie: x\r\n\r\n",
        ),
        (
            Get,
            Raw,
            Close,
            "HTTP/1.1 200\r\nContent-Length:05\r\n\r\n",
            "HTTP/1.1 200 \r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
        ),
        (
            Get,
            Raw,
            Keep,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n",
        ),
        (
            Get,
            Strip,
            Close,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n",
        ),
        (
            Get,
            Chunk,
            Keep,
            "HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nA: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (
            Head,
            Raw,
            KeepTold,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n",
        ),
        (
            Head,
            Raw,
            Keep,
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        ),
        (
            Get,
            Raw,
            Keep,
            "HTTP/1.1 204 No\r\nContent-Length: 5\r\nA: b\r\n\r\n",
            "HTTP/1.1 204 No\r\nA: b\r\n\r\n",
        ),
        (
            Get,
            Raw,
            Close,
            "HTTP/1.1 426 No\r\nConnection: upgrade\r\nUpgrade: x/2\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 426 No\r\nUpgrade: x/2\r\nContent-Length: 0\r\nConnection: upgrade\r\nConnection: close\r\n\r\n",
        ),
        (
            Get,
            Raw,
            Keep,
            "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\ncontent-length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        ),
        (
            Get,
            Raw,
            Keep,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (
            Get,
            Raw,
            Upgrade,
            "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        ),
    ] {
        let mut head = ResponseHead::default();
        parse_response(response.as_bytes(), method, &mut head).unwrap();
        let mut out = Vec::new();
        let edits = ResponseEdits {
            transcode,
            persistence,
            request_id: None,
            strict_transport: None,
        };
        response_head(&mut out, response.as_bytes(), &head, edits, None);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let kept = kept_of_response_head(response.as_bytes(), &head, edits);
        let is_same = kept != HeadReuse::Nothing;
        assert_eq!(is_same, response == expected, "{response}");
        check_dated(response.as_bytes(), &head, edits, kept);
    }
}

/// A response goes on with a `Date`: its own, or the one that is added.
fn check_dated(response: &[u8], head: &ResponseHead, edits: ResponseEdits<'_>, kept: HeadReuse) {
    let date = b"Sat, 21 Nov 2026 09:05:01 GMT";
    let mut written = Vec::new();
    response_head(&mut written, response, head, edits, Some(date));
    let count = memchr::memmem::find_iter(&written, b"\r\nDate: ").count();
    assert_eq!(count, 1, "{}", written.escape_ascii());
    if kept == HeadReuse::Undated {
        let mut out = Vec::new();
        let len = dated_status_line(&mut out, response, head, date);
        out.extend_from_slice(&response[len..]);
        assert_eq!(out, written);
    }
}

#[test]
fn a_date_of_the_endpoint_s_stays() {
    let response = b"HTTP/1.1 200 OK\r\ndate: x\r\nContent-Length: 0\r\n\r\n";
    let mut head = ResponseHead::default();
    parse_response(response, Method::Get, &mut head).unwrap();
    let mut out = Vec::new();
    response_head(&mut out, response, &head, KEPT, Some(b"y"));
    assert_eq!(out, response);
    assert_eq!(
        kept_of_response_head(response, &head, KEPT),
        HeadReuse::Whole
    );
}

const KEPT: ResponseEdits<'_> = ResponseEdits {
    transcode: Transcode::Raw,
    persistence: Persistence::Keep,
    request_id: None,
    strict_transport: None,
};

#[test]
fn a_minor_version_is_not_passed_on() {
    let response = b"HTTP/1.7 200 OK\r\nContent-Length: 0\r\n\r\n";
    let mut head = ResponseHead::default();
    parse_response(response, Method::Get, &mut head).unwrap();
    assert_eq!(
        kept_of_response_head(response, &head, KEPT),
        HeadReuse::Nothing
    );
}

#[test]
fn counts_the_proxies_that_a_request_may_pass() {
    for (method, sent, expected) in [
        ("TRACE", "max-forwards: 3\r\n", Some("Max-Forwards: 2\r\n")),
        (
            "OPTIONS",
            "Max-Forwards: 1\r\nMax-Forwards: 7\r\n",
            Some("Max-Forwards: 0\r\n"),
        ),
        ("TRACE", "Max-Forwards: -1\r\n", None),
        ("GET", "Max-Forwards: 3\r\n", None),
    ] {
        let fields = written(&format!("{method} / HTTP/1.1\r\nHost: h\r\n{sent}\r\n"));
        let found: Vec<_> = fields
            .split_inclusive('\n')
            .filter(|line| line.to_ascii_lowercase().starts_with("max-forwards"))
            .collect();
        assert_eq!(found, [expected.unwrap_or(sent)], "{method} {sent:?}");
    }
}

#[test]
fn an_expectation_goes_on_with_a_body_alone() {
    let expect = "Expect: 100-continue\r\nExpect:\r\n";
    for (framing, is_passed) in [
        ("Content-Length: 3\r\n", true),
        ("Transfer-Encoding: chunked\r\n", true),
        ("Content-Length: 0\r\n", false),
        ("", false),
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{expect}{framing}\r\n");
        let count = written(&request).matches("Expect").count();
        assert_eq!(count, usize::from(is_passed), "{framing:?}");
    }
}

#[test]
fn writes_three_digits() {
    assert_eq!(
        [100, 404, 999].map(status_digits),
        [*b"100", *b"404", *b"999"]
    );
}
