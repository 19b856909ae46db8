//! Every feature over HTTP/1 also works over HTTP/2.
//!
//! * This file: the sites of the tests, and endpoints that follow a script.
//! * [`cache`], [`compression`] and [`files`]: the sources of responses, and their form.
//! * `messages`: trailers, interim responses, bodies and their ends.
//! * `fields`: the fields of a request at endpoints.
//! * `limits`: refusals, waits, retries and other endpoints.
//! * `websocket`: tunnels.
//! * `observed`: logs and figures.
//! * `ending`: drain, reload, upgrade, idle connections.

mod cache;
mod compression;
mod ending;
mod fields;
mod files;
mod limits;
mod messages;
mod observed;
mod websocket;

use std::io;
use std::sync::{Arc, Mutex};

use evenkeel_testkit::http2::{Ends, H2Response};
use evenkeel_testkit::{H2Client, Proxy, RawOrigin, RawStream};

use crate::setup::program;

/// The further lines of a configuration, in TOML.
#[derive(Debug, Clone, Copy)]
struct Shape<'a> {
    /// Further keys of `[server]`, and tables behind it.
    server: &'a str,
    /// Further keys of the listener.
    listener: &'a str,
    /// The keys of the route.
    route: &'a str,
    /// Further keys of the upstream.
    upstream: &'a str,
    /// Further tables.
    tables: &'a str,
}

impl Default for Shape<'_> {
    fn default() -> Self {
        Shape {
            server: "",
            listener: "",
            route: "upstream = 'app'",
            upstream: "",
            tables: "",
        }
    }
}

impl Shape<'_> {
    /// The configuration with these endpoints, which are values of TOML.
    fn config(&self, endpoints: &[String]) -> String {
        format!(
            "[server]\nworkers = 1\ncontrol = '$DIR/control.sock'\n{}\n\
             [status]\nbind = '127.0.0.1:0'\n\
             [access_log]\npath = '$DIR/access.log'\nformat = 'json'\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\nh2c = true\n{}\n\
             [[route]]\nname = 'app'\n{}\n\
             [upstream.app]\nendpoints = [{}]\n{}\n{}\n",
            self.server,
            self.listener,
            self.route,
            endpoints.join(", "),
            self.upstream,
            self.tables
        )
    }

    fn start(&self, endpoints: &[String]) -> Proxy {
        Proxy::start(program(), &self.config(endpoints)).unwrap()
    }

    /// The program before one endpoint.
    fn before(&self, endpoint: impl ToString) -> Proxy {
        self.start(&[format!("'{}'", endpoint.to_string())])
    }
}

fn connect(proxy: &Proxy) -> H2Client {
    H2Client::connect(proxy.socket_addr("web")).unwrap()
}

/// Sends a request without a body, and reads the response.
#[track_caller]
fn ask(
    client: &mut H2Client,
    stream: u32,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> H2Response {
    client
        .request(stream, method, path, fields, Ends::Now)
        .unwrap();
    client.response(stream).unwrap()
}

/// A response that is whole, with this status and this text.
#[track_caller]
fn assert_answered(response: &H2Response, status: u16, text: &str) {
    assert_eq!(
        (response.status, &*response.text(), response.reset),
        (status, text, None),
        "{response:?}"
    );
}

/// Fields that need not be the same over HTTP/1 and HTTP/2, or from one second to another.
const OF_A_HOP: [&str; 5] = [
    "connection",
    "date",
    "keep-alive",
    "transfer-encoding",
    "age",
];

/// Makes the same request over HTTP/2 and over HTTP/1: both get the same status, fields and
/// content. Returns the response of HTTP/2.
#[track_caller]
fn ask_both(
    proxy: &Proxy,
    client: &mut H2Client,
    stream: u32,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> H2Response {
    let response = ask(client, stream, method, path, fields);
    let lines = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"));
    let lines: String = lines.collect();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: test.example\r\n{lines}\r\n");
    let same = proxy.client().ask(request).unwrap();
    let what = format!("{method} {path} {fields:?}: {:?}", response.fields);
    assert_eq!(response.reset, None, "{what}");
    assert_eq!(response.status, same.status, "{what}");
    assert!(response.body == same.body, "{what}");
    let sorted = |fields: &[(String, String)]| {
        let fields = fields.iter();
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        let mut fields: Vec<_> = fields
            .filter(|(name, _)| !OF_A_HOP.contains(&name.as_str()))
            .collect();
        fields.sort();
        fields
    };
    assert_eq!(sorted(&response.fields), sorted(&same.fields), "{what}");
    assert_plain(&response);
    response
}

/// No field is there that HTTP/2 forbids, and the length is right.
#[track_caller]
fn assert_plain(response: &H2Response) {
    for name in ["connection", "keep-alive", "transfer-encoding", "upgrade"] {
        assert_eq!(response.field(name), None, "{response:?}");
    }
    if let Some(len) = response.field("content-length")
        && !response.body.is_empty()
    {
        assert_eq!(len, response.body.len().to_string());
    }
}

/// An endpoint that follows a script, and keeps the heads that it was sent.
struct Endpoint {
    raw: RawOrigin,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    /// `answer` gets each head, and the connection to answer on; it says whether that goes
    /// on.
    fn scripted(
        answer: impl Fn(&str, &mut RawStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let asked = heads.clone();
        let raw = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                asked.lock().unwrap().push(head.clone());
                if answer(&head, &mut stream).is_err() {
                    return;
                }
            }
        });
        Endpoint {
            raw: raw.unwrap(),
            heads,
        }
    }

    /// Answers each request with the result of `answer` for its head.
    fn answering(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Endpoint::scripted(move |head, stream| stream.send(answer(head)))
    }

    fn address(&self) -> String {
        self.raw.address.to_string()
    }

    fn count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

/// Ends the connection of a script.
fn close() -> io::Result<()> {
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// The path in a head.
fn path_of(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

/// The values of a field in a head.
fn values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let lines = head.lines().filter_map(|it| it.split_once(": "));
    let named = lines.filter(|(it, _)| it.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value).collect()
}

/// A response of HTTP/1 with these fields and this body.
fn text_of(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let len = body.len();
    let head = format!("HTTP/1.1 {status} Word\r\nContent-Length: {len}\r\n{fields}\r\n");
    [head.as_bytes(), body].concat()
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
