//! The status listener: HTTP for people, scrapers and health checks.
//!
//! Owns the resources and the access to them. A slow or silent client takes only a place from the
//! others, and places are limited.

mod answer;
mod operation;
mod quiet;
mod tokens;
mod viewers;

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode, Version};
use hyper_util::rt::TokioIo;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::monitor::HistorySpan;
use super::{Acceptor, Admin, BACKLOG, Requester, csv, metrics};
use crate::net::Address;
use crate::net::descriptors::{Taker, is_reserved, lowered};
use crate::net::listen::{Listener, Peer};
use answer::{Answer, AnswerBody, Piece, hand_over, in_pieces, json, text, with_place, with_type};
use quiet::{Activity, Noted, Watched};
use tokens::Tokens;
use viewers::Viewers;

/// Most connections at once. For a further one, the connection that is longest without a request
/// is closed.
const MOST_CONNECTIONS: usize = 256;
/// Most answers with all figures at once, as they are long; further ones are refused.
const MOST_LONG_ANSWERS: usize = 8;
/// Most pieces of an answer that are written ahead of the sender: as many as hyper puts into one
/// call.
const PIECES_AHEAD: usize = 16;

/// The resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Page,
    Json,
    Metrics,
    Csv,
    Health,
    Ready,
    Change,
    Purge,
    Events,
    Plots,
    Endpoint,
    Misses,
}

/// Path, method, resource, and a description.
const RESOURCES: [(&str, Method, Resource, &str); 14] = [
    ("/", Method::GET, Resource::Page, "the status page"),
    (
        "/status.json",
        Method::GET,
        Resource::Json,
        "all metrics as JSON",
    ),
    (
        "/metrics",
        Method::GET,
        Resource::Metrics,
        "all metrics for Prometheus",
    ),
    (
        "/;csv",
        Method::GET,
        Resource::Csv,
        "metrics as CSV, with HAProxy's columns",
    ),
    ("/status;csv", Method::GET, Resource::Csv, "the same"),
    ("/;csv;norefresh", Method::GET, Resource::Csv, "the same"),
    (
        "/healthz",
        Method::GET,
        Resource::Health,
        "200 while the process runs",
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
        "drains, stops or reweights an endpoint; needs the token",
    ),
    (
        "/purge",
        Method::POST,
        Resource::Purge,
        "drops cached responses; needs the token",
    ),
    (
        "/events",
        Method::GET,
        Resource::Events,
        "the data of the page, as server-sent events",
    ),
    (
        "/plots.json",
        Method::GET,
        Resource::Plots,
        "the last minute by second; the last hour with ?span=hour",
    ),
    (
        "/endpoint.json",
        Method::GET,
        Resource::Endpoint,
        "one endpoint in detail, by ?index=N",
    ),
    (
        "/misses.json",
        Method::GET,
        Resource::Misses,
        "recent URLs that the caches did not answer, by route",
    ),
];

/// The listener and what its connections share.
#[derive(Debug)]
struct Site {
    admin: Arc<Admin>,
    tokens: Tokens,
    viewers: Viewers,
    connections: RefCell<Vec<Rc<Activity>>>,
    long_answers: Arc<Semaphore>,
    /// Whether only this machine can connect.
    is_loopback: bool,
}

/// Answers requests. Accepts connections until the process drains, so that a successor can have
/// the address. Open connections continue.
pub(super) async fn serve(admin: Arc<Admin>, listener: Listener) {
    let site = Site::open(admin);
    let mut is_full_known = false;
    let mut acceptor = Acceptor::new("status page", listener);
    // The accept queue holds at most this many connections when draining begins.
    let mut last_count = BACKLOG;
    loop {
        // Accepts first, as closing the listener resets the connections in its queue. After a
        // hand-over the other process has the queue, and newer figures.
        let accepted = tokio::select! {
            biased;
            () = site.admin.handed_over() => None,
            accepted = acceptor.accept_until(|| site.admin.draining()) => accepted,
        };
        let Some((mut socket, peer)) = accepted else {
            return;
        };
        if site.admin.is_draining() {
            last_count -= 1;
            if last_count == 0 {
                return;
            }
        }
        if is_reserved(&socket, Taker::Status) {
            socket = lowered(socket);
        }
        // The last descriptors are reserved for the control socket.
        let is_short = is_reserved(&socket, Taker::Status);
        let count = site.connections.borrow().len();
        if count >= MOST_CONNECTIONS || is_short {
            if !std::mem::replace(&mut is_full_known, true) {
                tracing::warn!(
                    "status page: {count} connections are open: closing the ones without a request"
                );
            }
            if !site.make_room() {
                continue;
            }
        }
        is_full_known &= is_short || count >= MOST_CONNECTIONS / 2;
        if let Err(error) = begin(&site, peer, socket) {
            tracing::warn!("status page: a connection was closed: {error}");
        }
    }
}

/// Starts to serve an accepted connection.
fn begin(site: &Rc<Site>, peer: Peer, socket: OwnedFd) -> io::Result<()> {
    match peer {
        Peer::Tcp(_) => connection(site, peer, TcpStream::from_std(socket.into())?),
        Peer::Unix => connection(site, peer, UnixStream::from_std(socket.into())?),
    }
    Ok(())
}

/// Serves a connection. It counts until it ends or gives way to another.
fn connection(site: &Rc<Site>, peer: Peer, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
    let from = match peer {
        Peer::Tcp(address) => Some(address.ip()),
        Peer::Unix => None,
    };
    let stream = Watched::new(stream);
    let activity = stream.activity();
    site.connections.borrow_mut().push(activity.clone());
    let site = site.clone();
    tokio::task::spawn_local(async move {
        let service = service_fn(|request| {
            let (site, activity) = (site.clone(), activity.clone());
            async move {
                activity.request();
                let answer = site.answer(from, request).await;
                match answer.body() {
                    AnswerBody::Messages(_) => activity.send_messages(),
                    _ => activity.answer(),
                }
                Ok::<_, Infallible>(answer.map(|body| Noted::new(body, activity)))
            }
        });
        let served = http1::Builder::new()
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(stream), service);
        let mut served = pin!(served);
        let taken_over = async {
            site.admin.handed_over().await;
            activity.has_begun().await;
        };
        // A client that leaves early needs no answer.
        let is_over = tokio::select! {
            _ = served.as_mut() => true,
            () = activity.is_over() => true,
            // A stream of messages has no end.
            () = taken_over => activity.sends_messages(),
        };
        if !is_over {
            // The other process gives the next answers.
            served.as_mut().graceful_shutdown();
            tokio::select! {
                _ = served => {}
                () = activity.is_over() => {}
            }
        }
        let mut all = site.connections.borrow_mut();
        all.retain(|it| !Rc::ptr_eq(it, &activity));
    });
}

impl Site {
    /// A site without connections. Starts the watch over its tokens.
    fn open(admin: Arc<Admin>) -> Rc<Self> {
        let config = admin.sources().config.clone();
        let settings = config.status.as_ref();
        let refused = admin.sources().status_tokens_refused.clone();
        let site = Rc::new(Site {
            tokens: Tokens::new(refused),
            viewers: Viewers::default(),
            connections: RefCell::default(),
            long_answers: Arc::new(Semaphore::new(MOST_LONG_ANSWERS)),
            is_loopback: settings.is_some_and(|it| is_loopback(&it.bind)),
            admin,
        });
        let watched = site.clone();
        tokio::task::spawn_local(async move { watched.tokens.watch().await });
        site
    }

    /// Closes the connection that is longest without a request. Returns whether there is one.
    fn make_room(&self) -> bool {
        let mut all = self.connections.borrow_mut();
        let idle = all.iter().enumerate();
        let idle = idle.filter_map(|(at, it)| Some((it.idle_since()?, at)));
        let Some((_, at)) = idle.min() else {
            return false;
        };
        all.swap_remove(at).give_way();
        true
    }

    /// Takes one of the places for long answers, to hold until the answer is sent.
    ///
    /// # Errors
    /// The answer that says that all places are taken.
    fn long_place(&self) -> Result<OwnedSemaphorePermit, Box<Answer>> {
        let place = self.long_answers.clone().try_acquire_owned();
        place.map_err(|_| {
            Box::new(text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "{MOST_LONG_ANSWERS} answers of this length are still being sent: try again\n"
                ),
            ))
        })
    }

    /// An answer with all figures, written aside.
    async fn long(
        &self,
        content_type: &'static str,
        write: impl FnOnce(&Admin) -> Vec<u8> + Send + 'static,
    ) -> Answer {
        match self.long_place() {
            Ok(place) => {
                let bytes = self.admin.aside(Requester::Page, write).await;
                with_place(place, content_type, bytes)
            }
            Err(refusal) => *refusal,
        }
    }

    /// The metrics. In HTTP/1.0 nothing shows the length of an answer, so a cut one would look
    /// complete. There the whole answer is written before it is sent.
    async fn metrics(
        &self,
        version: Version,
        names: metrics::Names,
        format: metrics::Format,
    ) -> Answer {
        let content_type = format.content_type();
        if version == Version::HTTP_10 {
            let write = move |admin: &Admin| {
                let pieces = metrics::pieces(admin.sources().read(), names, format);
                pieces.collect::<Vec<_>>().concat()
            };
            return self.long(content_type, write).await;
        }
        match self.long_place() {
            Ok(place) => {
                let pieces = self.admin.metrics_aside(names, format).await;
                in_pieces(place, content_type, pieces)
            }
            Err(refusal) => *refusal,
        }
    }

    async fn answer(&self, from: Option<IpAddr>, request: Request<Incoming>) -> Answer {
        if self.is_loopback && !is_host_of_loopback(request.headers()) {
            // The name of another site's page may resolve to this machine.
            let what = "use the name localhost or an IP address to reach this page\n";
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
            Resource::Json => self.long("application/json", figures).await,
            Resource::Metrics => {
                let accept = request.headers().get(ACCEPT);
                let format = metrics::Format::accepted(accept.and_then(|it| it.to_str().ok()));
                let Some(names) = metrics::Names::of_query(request.uri().query()) else {
                    let what = "unknown names of metrics: `names` is haproxy or evenkeel\n";
                    return text(StatusCode::BAD_REQUEST, what);
                };
                self.metrics(request.version(), names, format).await
            }
            Resource::Csv => {
                let write = |admin: &Admin| {
                    let figures = admin.sources().read();
                    csv::table(&figures, &admin.seen_of(&figures))
                };
                self.long("text/plain; charset=utf-8", write).await
            }
            Resource::Health => text(StatusCode::OK, "ok\n"),
            Resource::Ready => ready(admin),
            Resource::Change => operation::change(admin, &self.tokens, from, request).await,
            Resource::Purge => operation::purge(admin, &self.tokens, from, request).await,
            Resource::Events if is_head => with_type(StatusCode::OK, "text/event-stream", ""),
            Resource::Events => self.viewers.stream(admin),
            Resource::Plots => match request.uri().query() {
                None | Some("span=minute") => plots(admin, HistorySpan::Minute).await,
                Some("span=hour") => plots(admin, HistorySpan::Hour).await,
                Some(_) => text(StatusCode::BAD_REQUEST, "?span= is minute or hour\n"),
            },
            Resource::Endpoint => detail(admin, request.uri().query()).await,
            Resource::Misses => json(admin.aside(Requester::Page, misses).await),
        }
    }
}

impl Admin {
    /// Writes the metrics aside, piece by piece as they are taken. The figures are read in turn,
    /// and a slow client delays nobody.
    async fn metrics_aside(
        self: &Arc<Self>,
        names: metrics::Names,
        format: metrics::Format,
    ) -> mpsc::Receiver<Piece> {
        let read = |admin: &Admin| admin.sources().read();
        let figures = self.aside(Requester::Page, read).await;
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        tokio::task::spawn_blocking(move || {
            hand_over(metrics::pieces(figures, names, format), &sender);
        });
        pieces
    }
}

/// All figures as JSON. This can't fail, as they have no maps with unusual keys.
fn figures(admin: &Admin) -> Vec<u8> {
    serde_json::to_vec(&admin.sources().read()).unwrap_or_default()
}

fn ready(admin: &Admin) -> Answer {
    if admin.is_draining() {
        text(
            StatusCode::SERVICE_UNAVAILABLE,
            "draining: no new connections are accepted\n",
        )
    } else {
        text(StatusCode::OK, "ready\n")
    }
}

async fn plots(admin: &Arc<Admin>, span: HistorySpan) -> Answer {
    let plots = move |admin: &Admin| admin.monitor.plots(span);
    json(admin.aside(Requester::Page, plots).await)
}

async fn detail(admin: &Arc<Admin>, query: Option<&str>) -> Answer {
    let index = query.and_then(|it| it.strip_prefix("index="));
    let index = index.and_then(|it| it.parse().ok());
    let detail = move |admin: &Admin| admin.monitor.detail(&admin.sources(), index?);
    match admin.aside(Requester::Page, detail).await {
        Some(body) => json(body),
        None => text(
            StatusCode::NOT_FOUND,
            "there is no endpoint of this index\n",
        ),
    }
}

/// The recent misses of each route with a cache, as a JSON array of pairs.
fn misses(admin: &Admin) -> Vec<u8> {
    let sources = admin.sources();
    let routes = sources.config.routes.iter().enumerate();
    let cached = routes.filter(|(_, route)| route.cache.is_some());
    let misses: Vec<_> = cached
        .map(|(at, route)| (&route.name, sources.recent_misses(at)))
        .collect();
    // JSON of these can't fail.
    serde_json::to_vec(&misses).unwrap_or_default()
}

/// The parts of the document, between which the nonce goes.
static PAGE: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| super::page::document().split("$NONCE").collect());

/// The page; a browser applies only its own style and script.
fn page() -> Answer {
    let mut random = [0_u8; 16];
    if getrandom(&mut random, GetRandomFlags::empty()).is_err() {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no random bytes from the system\n",
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
    let mut body = "not found; available pages:\n".to_owned();
    for (path, method, _, what) in &RESOURCES {
        let method = method.as_str();
        body += &format!("{method:<4} {path:<15} {what}\n");
    }
    text(StatusCode::NOT_FOUND, body)
}

fn wrong_method(allowed: &Method) -> Answer {
    let allowed = match *allowed {
        Method::GET => "GET, HEAD",
        _ => "POST",
    };
    let what = format!("this page accepts only {allowed}\n");
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, what);
    let fields = answer.headers_mut();
    fields.insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn is_loopback(bind: &Address) -> bool {
    matches!(bind, Address::Tcp(address) if address.ip().is_loopback())
}

/// Whether the request names this machine as only a local client would. A program that sends no
/// name is not a browser.
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

    /// The documentation and the 404 answer have the same list; the answer has it in columns.
    #[test]
    fn all_paths_are_listed() {
        let docs = include_str!("../../../docs/status-page.md");
        let (_, section) = docs.split_once("## What else is there\n").unwrap();
        let (table, _) = section.split_once("\nEvery other path").unwrap();
        let rows = table.lines().filter_map(|it| it.split('|').nth(1));
        let documented: Vec<_> = rows
            .flat_map(|it| it.split('`').skip(1).step_by(2))
            .collect();
        let listed = RESOURCES.map(|(path, method, ..)| match method {
            Method::GET => path.to_owned(),
            method => format!("{method} {path}"),
        });
        assert_eq!(documented, listed);
        let AnswerBody::Whole(Some(body)) = not_found().into_body() else {
            panic!("a text");
        };
        let body = String::from_utf8(body.to_vec()).unwrap();
        for (line, (path, _, _, what)) in body.lines().skip(1).zip(&RESOURCES) {
            let places = (line.find(path), line.find(what));
            assert_eq!(places, (Some(5), Some(21)), "{body}");
        }
    }

    #[test]
    fn the_page_has_its_nonces() {
        assert!(PAGE.len() >= 3, "a style and a script");
    }
}
