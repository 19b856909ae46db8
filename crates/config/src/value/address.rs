//! Addresses to listen at and to connect to.

use crate::setting::{Fault, FromText, resolve_to};
use evenkeel_net::Address;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

resolve_to!(Bind => Address, SocketPath => Address, ResolverAddress => SocketAddr);

/// The URL of a collector of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl {
    /// Host and port: what to connect to, and the value of `Host`.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

impl FromText for CollectorUrl {
    const FORM: &'static str = "a URL, such as `\"http://127.0.0.1:4318\"`";
    const PATTERN: Option<&'static str> = Some("^http://");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!("`{text}` is not a valid URL of a collector"));
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(if text.starts_with("https://") {
                fault.help(
                    "only `http` is supported: send to a collector on this machine, which can \
                    forward with TLS",
                )
            } else {
                fault.help("write it as in \"http://127.0.0.1:4318\"")
            });
        };
        if !rest.bytes().all(|it| it.is_ascii_graphic() && it != b'#') {
            return Err(
                fault.help("write no spaces and no `#`, and %XX for characters outside ASCII")
            );
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(fault.help(
                "a user and a password go into `headers`, as in authorization = \"Basic …\"",
            ));
        }
        let after_host = &authority[authority.rfind(']').unwrap_or(0)..];
        let authority = if after_host.contains(':') {
            authority.to_owned()
        } else {
            // The port that is registered for OTLP over HTTP.
            format!("{authority}:4318")
        };
        let (host, port) = authority.rsplit_once(':').unwrap_or_default();
        if !host.is_empty() && port.parse::<u16>().is_err() {
            return Err(fault.help(port_help(port, 1)));
        }
        if host.is_empty() {
            return Err(fault.help("write a host and a port, as in \"http://127.0.0.1:4318\""));
        }
        let path = if matches!(path, "" | "/") {
            "/v1/traces"
        } else {
            path
        };
        Ok(Self {
            authority,
            path: path.to_owned(),
        })
    }
}

/// The address that a listener listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind(pub Address);

impl FromText for Bind {
    const FORM: &'static str = "an address, such as `\"0.0.0.0:8080\"`, `\"[::]:80\"`, `\":8080\"` or `\"unix:/run/x.sock\"`";
    const SEVERAL: Option<&'static str> =
        Some("a listener has one address: write one `[[listener]]` for each");

    fn from_text(text: &str) -> Result<Self, Fault> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self);
        }
        if let Ok(address) = text.parse() {
            return Ok(Self(Address::Tcp(address)));
        }
        let fault = Fault::new(format!("`{text}` is not a valid address to listen on"));
        if text.contains("${") || text.contains("{{") || text.contains("{$") {
            return Err(fault.help(
                "variables are not expanded in values: set it with `--set listener.0.bind=:8080` \
                 or EVENKEEL_LISTENER__0__BIND=:8080",
            ));
        }
        let mut options = text.split_whitespace().skip(1);
        if text.starts_with("https://") || options.any(|it| matches!(it, "ssl" | "tls" | "crt")) {
            return Err(fault.help(
                "write only the address, and add tls = { certificates = [{ chain = \"FILE\", key \
                 = \"FILE\" }] }",
            ));
        }
        if let Some(meant) = with_brackets(text) {
            return Err(fault.help(format!("did you mean `\"{meant}\"`?")));
        }
        if let Some(port) = text.strip_prefix(':').or_else(|| text.strip_prefix("*:")) {
            return match port.parse() {
                Ok(port) => Ok(Self(Address::Tcp(SocketAddr::new(
                    Ipv4Addr::UNSPECIFIED.into(),
                    port,
                )))),
                Err(_) => Err(fault.help(port_help(port, 0))),
            };
        }
        if text.parse::<u16>().is_ok() {
            return Err(fault.help(format!("did you mean `\":{text}\"`?")));
        }
        if let Some(path) = text.strip_prefix('/') {
            return Err(fault.help(format!("did you mean `\"unix:/{path}\"`?")));
        }
        if text.parse::<IpAddr>().is_ok() {
            return Err(fault.help(format!(
                "the port is missing: \"{}\"",
                with_port(text, 8080)
            )));
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            return Err(fault.help(format!("did you mean `\"127.0.0.1:{port}\"`?")));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
        Err(match is_ip(host) {
            true => fault.help(port_help(port, 0)),
            false if is_like_ipv4(host) => fault.help(IPV4_HELP),
            false => {
                fault.help("write an IP address and a port, as in \"0.0.0.0:8080\" or \":8080\"")
            }
        })
    }
}

const IPV4_HELP: &str = "an IPv4 address has four numbers from 0 to 255";

/// Whether a text is an address in the form that stands before a port.
fn is_ip(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok(),
    }
}

/// An IPv6 address with its port, where the brackets are missing.
fn with_brackets(text: &str) -> Option<String> {
    let (address, port) = text.rsplit_once(':')?;
    let is_port = (2..=5).contains(&port.len()) && port.parse::<u16>().is_ok_and(|it| it > 0);
    let is_address = address.parse::<Ipv6Addr>().is_ok();
    (is_port && is_address).then(|| format!("[{address}]:{port}"))
}

/// Whether a text is nothing but numbers with dots, as no name of a host is.
fn is_like_ipv4(text: &str) -> bool {
    text.contains('.') && text.bytes().all(|it| it.is_ascii_digit() || it == b'.')
}

/// Advice for a text that is not a port; `min` is the smallest port allowed.
pub(crate) fn port_help(port: &str, min: u16) -> String {
    let known = [("http", 80), ("https", 443), ("http-alt", 8080)];
    let is_number = !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit());
    match known
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(port))
    {
        Some((_, number)) => format!("write the port as a number: {number}"),
        None if is_number => format!("the port must be {min} to 65535"),
        None => format!("a port is a number from {min} to 65535"),
    }
}

/// Path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPath(pub Address);

impl FromText for SocketPath {
    const FORM: &'static str =
        "the path of a Unix socket, such as `\"/run/evenkeel/control.sock\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        unix_path(text.strip_prefix("unix:").unwrap_or(text)).map(Self)
    }
}

fn with_port(address: &str, port: u16) -> String {
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

/// Longest path of a Unix socket, in bytes: `sockaddr_un` has room for a NUL too (unix(7)).
pub const MAX_SOCKET_PATH: usize = 107;

fn unix_path(path: &str) -> Result<Address, Fault> {
    if path.is_empty() {
        return Err(Fault::new("the path of the socket is missing")
            .help("write it after `unix:`, as in \"unix:/run/app.sock\""));
    }
    if path.len() > MAX_SOCKET_PATH {
        let what = format!("the path of the socket is longer than {MAX_SOCKET_PATH} bytes");
        return Err(Fault::new(what));
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

/// The address of an endpoint, before its name is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// An address.
    Address(Address),
    /// A name to look up.
    Host {
        /// The name.
        name: String,
        /// The port.
        port: u16,
    },
}

/// An endpoint's address with the text that it was written as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointAddress {
    /// As written.
    pub text: String,
    /// The parsed address.
    pub destination: Destination,
}

impl FromText for EndpointAddress {
    const FORM: &'static str = "an address, such as `\"10.0.0.1:8080\"`, `\"app.internal:80\"` or `\"unix:/run/app.sock\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let destination = destination(text)?;
        Ok(Self {
            text: text.to_owned(),
            destination,
        })
    }
}

fn destination(text: &str) -> Result<Destination, Fault> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path(path).map(Destination::Address);
    }
    let fault = Fault::new(format!("`{text}` is not a valid address of an endpoint"));
    if let Ok(address) = text.parse::<SocketAddr>() {
        return match address.port() {
            0 => Err(fault.help("the port cannot be 0")),
            _ => Ok(Destination::Address(Address::Tcp(address))),
        };
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        if ["https", "wss", "grpcs"].contains(&scheme) {
            let host = rest.split('/').next().unwrap_or(rest);
            let host = if host.contains(':') {
                host.to_owned()
            } else {
                with_port(host, 443)
            };
            return Err(fault.help(format!(
                "an endpoint has no scheme: write \"{host}\", and `tls = true` in its upstream"
            )));
        }
        if let Some(path) = rest.strip_prefix("unix:") {
            // nginx writes the path of the request behind a colon.
            let path = path.split(':').next().unwrap_or(path);
            return Err(fault.help(format!("did you mean `\"unix:{path}\"`?")));
        }
        let host = rest.split('/').next().unwrap_or(rest);
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = if host.contains(':') {
            host.to_owned()
        } else {
            with_port(host, 80)
        };
        return Err(fault.help(format!("an endpoint has no scheme or path: \"{host}\"")));
    }
    if let Some(meant) = with_brackets(text) {
        return Err(fault.help(format!("did you mean `\"{meant}\"`?")));
    }
    if let Some((address, options)) = text.split_once(char::is_whitespace)
        && destination(address).is_ok()
    {
        return Err(fault.help(match endpoint_options(options) {
            Some(keys) => format!("write a table: {{ address = \"{address}\"{keys} }}"),
            None => format!("write options in a table: {{ address = \"{address}\", … }}"),
        }));
    }
    if let Some((address, _)) = text.split_once('/')
        && destination(address).is_ok()
    {
        return Err(fault.help(format!("an endpoint has no path: \"{address}\"")));
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(fault.help(format!("the port is missing: \"{}\"", with_port(text, 80))));
    }
    let Some((name, port)) = text.rsplit_once(':') else {
        if text.starts_with(['/', '.']) {
            return Err(fault.help(format!("did you mean `\"unix:{text}\"`?")));
        }
        if text.parse::<u16>().is_ok() {
            return Err(fault.help(format!("the host is missing: \"127.0.0.1:{text}\"")));
        }
        if text.is_empty() {
            return Err(fault.help("write host and port: \"127.0.0.1:8080\""));
        }
        return Err(fault.help(format!("the port is missing: \"{text}:80\"")));
    };
    if is_ip(name) {
        return Err(fault.help(port_help(port, 1)));
    }
    if is_like_ipv4(name) {
        return Err(fault.help(IPV4_HELP));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > 253 || !name.bytes().all(allowed) {
        return Err(fault.help("write a host and a port, as in \"10.0.0.1:8080\""));
    }
    match port.parse() {
        Ok(port) if port > 0 => Ok(Destination::Host {
            name: name.to_owned(),
            port,
        }),
        _ => Err(fault.help(port_help(port, 1))),
    }
}

/// The options of a server of nginx or HAProxy as keys of an endpoint's table.
fn endpoint_options(options: &str) -> Option<String> {
    let words = options.split(|it: char| it.is_whitespace() || it == '=');
    let mut words = words.filter(|it| !it.is_empty());
    let mut keys = String::new();
    while let Some(word) = words.next() {
        let key = match word {
            "backup" => {
                keys.push_str(", backup = true");
                continue;
            }
            "weight" => "weight",
            "maxconn" | "max_conns" => "max_in_flight",
            _ => return None,
        };
        let value = words.next()?.parse::<u32>().ok()?;
        keys.push_str(&format!(", {key} = {value}"));
    }
    Some(keys)
}

/// The name of a service, as SRV records have it (RFC 2782).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName(pub String);

impl FromText for ServiceName {
    const FORM: &'static str = "the name of a service, such as `\"_http._tcp.app.internal\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let mut labels = text.trim_end_matches('.').split('.');
        let is_label = |it: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            !it.is_empty() && it.len() < 64 && it.bytes().all(allowed)
        };
        let is_service =
            labels.clone().take(2).all(|it| it.starts_with('_')) && labels.clone().count() > 2;
        if is_service && text.len() < 254 && labels.all(is_label) {
            return Ok(Self(text.to_owned()));
        }
        let fault = Fault::new(format!("`{text}` is not a valid name of a service"));
        Err(fault.help("write service, protocol and domain, as in \"_http._tcp.app.internal\""))
    }
}

/// The address of a name server, with a port or at port 53.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolverAddress(pub SocketAddr);

impl FromText for ResolverAddress {
    const FORM: &'static str = "an address, such as `\"10.0.0.2\"` or `\"127.0.0.1:5353\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self(SocketAddr::new(ip, 53)));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() > 0 => Ok(Self(address)),
            _ => {
                let fault = Fault::new(format!("`{text}` is not a valid address of a name server"));
                Err(fault.help("write an IP address, as in \"10.0.0.2\" or \"10.0.0.2:5353\""))
            }
        }
    }
}
