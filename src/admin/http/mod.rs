//! The status listener: HTTP for people, scrapers and health checks.
//!
//! Owns what there is to ask for, and who may. A client that is slow, silent
//! or numerous takes nothing from the others but a place, and places are
//! bounded.

mod answer;
mod operation;
mod quiet;
mod tokens;
mod viewers;

use std::cell::Cell;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncRead, AsyncWrite};

use super::monitor::Span;
use super::{Acceptor, Admin, csv, metrics};
use crate::config::Address;
use crate::net::listen::{Listener, Peer};
use crate::net::stream::Stream;
use crate::runtime::Phase;
use answer::{Answer, json, text, with_type};
use quiet::Watched;
use tokens::Tokens;
use viewers::Viewers;

/// Connections at once; further ones are closed.
const MOST_CONNECTIONS: usize = 256;
/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that nothing moved over for so long is closed.
const QUIET_TIMEOUT: Duration = Duration::from_secs(30);

/// What there is to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Page,
    Json,
    Metrics,
    Csv,
    Health,
    Ready,
    Change,
    Events,
    Plots,
    Endpoint,
}

/// Where, how, and what it is.
const RESOURCES: [(&str, Method, Resource, &str); 11] = [
    ("/", Method::GET, Resource::Page, "the status page"),
    (
        "/status.json",
        Method::GET,
        Resource::Json,
        "all figures as JSON",
    ),
    (
        "/metrics",
        Method::GET,
        Resource::Metrics,
        "all figures for Prometheus",
    ),
    (
        "/;csv",
        Method::GET,
        Resource::Csv,
        "figures in HAProxy's fields",
    ),
    ("/status;csv", Method::GET, Resource::Csv, "the same"),
    (
        "/healthz",
        Method::GET,
        Resource::Health,
        "200 while the process serves",
    ),
    (
        "/ready",
        Method::GET,
        Resource::Ready,
        "200 while it takes new connections, 503 while it drains",
    ),
    (
        "/endpoints",
        Method::POST,
        Resource::Change,
        "drains, stops or weighs an endpoint, with the token",
    ),
    (
        "/events",
        Method::GET,
        Resource::Events,
        "what the page shows, as server-sent events",
    ),
    (
        "/plots.json",
        Method::GET,
        Resource::Plots,
        "the last minute by seconds; the last hour with ?span=hour",
    ),
    (
        "/endpoint.json",
        Method::GET,
        Resource::Endpoint,
        "one endpoint in detail, by ?index=N",
    ),
];

/// The listener and what its connections share.
#[derive(Debug)]
struct Site {
    admin: Rc<Admin>,
    tokens: Option<Tokens>,
    viewers: Viewers,
    connections: Cell<usize>,
    /// Whether only this machine can connect to it.
    is_loopback: bool,
}

/// Answers requests for ever.
pub(super) async fn serve(admin: Rc<Admin>, listener: Listener) {
    let settings = admin.sources.config.status.as_ref();
    let token = settings.and_then(|it| it.token.clone());
    let refused = admin.sources.status_tokens_refused.clone();
    let site = Rc::new(Site {
        tokens: token.map(|token| Tokens::new(token, refused)),
        viewers: Viewers::default(),
        connections: Cell::new(0),
        is_loopback: settings.is_some_and(|it| is_loopback(&it.bind)),
        admin,
    });
    let mut is_full_known = false;
    let mut acceptor = Acceptor::new("status page", listener);
    loop {
        let (stream, peer) = acceptor.accept().await;
        let count = site.connections.get();
        if count >= MOST_CONNECTIONS {
            if !std::mem::replace(&mut is_full_known, true) {
                tracing::warn!("status page: {count} connections are open: closing further ones");
            }
            continue;
        }
        is_full_known &= count >= MOST_CONNECTIONS / 2;
        site.connections.set(count + 1);
        let site = site.clone();
        tokio::task::spawn_local(async move {
            match stream {
                Stream::Tcp(stream) => connection(&site, peer, stream).await,
                Stream::Unix(stream) => connection(&site, peer, stream).await,
            }
            site.connections.set(site.connections.get() - 1);
        });
    }
}

async fn connection(
    site: &Rc<Site>,
    peer: Peer,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
) {
    let peer: Rc<str> = match peer {
        Peer::Tcp(address) => address.to_string().into(),
        Peer::Unix => "this machine".into(),
    };
    let service = service_fn(move |request| {
        let (site, peer) = (site.clone(), peer.clone());
        async move { Ok::<_, Infallible>(site.answer(&peer, request).await) }
    });
    let (stream, moved) = Watched::new(stream);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // Who leaves before the answer has no use for it.
    tokio::select! {
        _ = pin!(served) => {}
        () = moved.quiet_for(QUIET_TIMEOUT) => {}
    }
}

impl Site {
    async fn answer(&self, peer: &str, request: Request<Incoming>) -> Answer {
        if self.is_loopback && !is_host_of_loopback(request.headers()) {
            // A page of another site may have had its name resolve to here.
            let what = "this is reached by the name localhost, or by address\n";
            return text(StatusCode::MISDIRECTED_REQUEST, what);
        }
        let path = request.uri().path();
        let Some((_, method, resource, _)) = RESOURCES.iter().find(|it| it.0 == path) else {
            return not_found();
        };
        let is_head = request.method() == Method::HEAD;
        if request.method() != method && !(is_head && method == Method::GET) {
            return wrong_method(method);
        }
        let admin = &self.admin;
        match resource {
            Resource::Page => page(),
            Resource::Json => figures(admin),
            Resource::Metrics => metrics(admin, &request),
            Resource::Csv => csv(admin),
            Resource::Health => text(StatusCode::OK, "ok\n"),
            Resource::Ready => ready(admin),
            Resource::Change => operation::change(admin, self.tokens.as_ref(), peer, request).await,
            Resource::Events if is_head => with_type(StatusCode::OK, "text/event-stream", ""),
            Resource::Events => self.viewers.stream(admin),
            Resource::Plots => match request.uri().query() {
                None | Some("span=minute") => json(admin.monitor.plots(Span::Minute)),
                Some("span=hour") => json(admin.monitor.plots(Span::Hour)),
                Some(_) => text(StatusCode::BAD_REQUEST, "?span= is minute or hour\n"),
            },
            Resource::Endpoint => detail(admin, request.uri().query()),
        }
    }
}

fn figures(admin: &Admin) -> Answer {
    match serde_json::to_vec(&admin.sources.read()) {
        Ok(body) => json(body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn metrics(admin: &Admin, request: &Request<Incoming>) -> Answer {
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|it| it.to_str().ok());
    let format = metrics::Format::accepted(accept);
    let names = metrics::Names::of_query(request.uri().query());
    let body = metrics::body(&admin.sources.read(), names, format);
    with_type(StatusCode::OK, format.content_type(), body)
}

fn csv(admin: &Admin) -> Answer {
    let table = csv::table(&admin.sources.read());
    with_type(StatusCode::OK, "text/plain; charset=utf-8", table)
}

fn ready(admin: &Admin) -> Answer {
    match *admin.phase.borrow() {
        Phase::Serve => text(StatusCode::OK, "ready\n"),
        Phase::Drain { .. } => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "draining: no new connections are taken\n",
        ),
    }
}

fn detail(admin: &Admin, query: Option<&str>) -> Answer {
    let index = query.and_then(|it| it.strip_prefix("index="));
    let index = index.and_then(|it| it.parse().ok());
    match index.and_then(|index| admin.monitor.detail(&admin.sources, index)) {
        Some(body) => json(body),
        None => text(
            StatusCode::NOT_FOUND,
            "there is no endpoint of this index\n",
        ),
    }
}

/// The document, in the parts between which its nonce stands.
static PAGE: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| super::page::document().split("$NONCE").collect());

/// The page; only its own style and script count in it.
fn page() -> Answer {
    let mut random = [0_u8; 16];
    if getrandom(&mut random, GetRandomFlags::empty()).is_err() {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the system gives no random bytes\n",
        );
    }
    let nonce: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let html = "text/html; charset=utf-8";
    let mut answer = with_type(StatusCode::OK, html, PAGE.join(&nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        let fields = answer.headers_mut();
        fields.insert(CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

fn not_found() -> Answer {
    let mut body = "not found; there is:\n".to_owned();
    for (path, method, _, what) in &RESOURCES {
        body += &format!("{method:<5} {path:<16} {what}\n");
    }
    text(StatusCode::NOT_FOUND, body)
}

fn wrong_method(allowed: &Method) -> Answer {
    let allowed = match *allowed {
        Method::GET => "GET, HEAD",
        _ => "POST",
    };
    let what = format!("this takes {allowed}\n");
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, what);
    let fields = answer.headers_mut();
    fields.insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn is_loopback(bind: &Address) -> bool {
    matches!(bind, Address::Tcp(address) if address.ip().is_loopback())
}

/// Whether the request names this machine as only itself would. Programs that
/// name nothing are no browsers.
fn is_host_of_loopback(fields: &HeaderMap) -> bool {
    let mut hosts = fields.get_all(HOST).iter();
    match (hosts.next().map(HeaderValue::to_str), hosts.next()) {
        (None, _) => true,
        (Some(Ok(host)), None) => is_name_of_loopback(host),
        _ => false,
    }
}

fn is_name_of_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address: Result<IpAddr, _> = bare.unwrap_or(name).parse();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|it| it.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loopback() {
        for (host, expected) in [
            ("localhost", true),
            ("LOCALHOST:8404", true),
            ("127.0.0.1:8404", true),
            ("127.1.2.3", true),
            ("[::1]:8404", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:8404", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:8404", false),
            ("", false),
            (":8404", false),
            ("localhost:8404:1", false),
        ] {
            assert_eq!(is_name_of_loopback(host), expected, "{host:?}");
        }
    }

    #[test]
    fn the_page_has_its_nonces() {
        assert!(PAGE.len() >= 3, "a style and a script");
    }
}
