//! The request to explain: from a method, a URL and fields to the bytes that a client sends.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A request to explain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRequest {
    /// Text for people: `GET http://host/path`.
    pub title: String,
    /// The head as a client sends it.
    pub request: String,
    /// The port of the URL, where it has a host.
    pub port: Option<u16>,
    /// Whether the scheme is `https`.
    #[serde(default)]
    pub is_https: bool,
    /// The name of the wanted listener.
    pub listener: Option<String>,
    /// The name of the wanted endpoint.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Address of the client; `None` for this machine.
    pub client: Option<IpAddr>,
    /// The client's first bytes, where the subject is a TCP connection and not a request.
    #[serde(default)]
    pub connection: Option<ExplainedConnection>,
}

/// The start of a client's TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExplainedConnection {
    /// The TLS server name (SNI); empty for none.
    pub server_name: String,
    /// The offered TLS protocols (ALPN).
    pub protocols: Vec<String>,
    /// Its first bytes.
    pub first_bytes: String,
}

/// Why there is no request to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRequest(String);

impl std::fmt::Display for NoRequest {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl ExplainedRequest {
    /// A request as `curl` sends it. `url` is `http://host/path`, the same without a scheme, or a
    /// path alone. A path alone needs a field `Host` among `fields`. A URL without a path is the
    /// whole target, so that the parser decides on its path. Malformed parts stay as they are, so
    /// that their refusal is explained.
    ///
    /// # Errors
    /// The port is not a number, the scheme is not one of HTTP, or a field is not `Name: value`.
    pub fn new(method: &str, url: &str, fields: &[String]) -> Result<Self, NoRequest> {
        let (url, _) = url.split_once('#').unwrap_or((url, ""));
        let is_https = url.starts_with("https://");
        let Url {
            authority,
            path_and_query,
            port,
        } = Url::split(url)?;
        for field in fields {
            if !field.contains(':') {
                let what = format!("`{field}` is not a valid header: write it as 'Name: value'");
                return Err(NoRequest(what));
            }
        }
        let is_host = |field: &String| {
            let name = field.split(':').next().unwrap_or_default();
            name.eq_ignore_ascii_case("host")
        };
        let authority = authority.filter(|_| !fields.iter().any(is_host));
        let target = match (authority, path_and_query.starts_with(['/', '*'])) {
            (_, true) => path_and_query.to_owned(),
            (Some(authority), false) => format!("http://{authority}{path_and_query}"),
            // Otherwise the URL's host would win over the field.
            (None, false) => format!("/{path_and_query}"),
        };
        let mut request = format!("{method} {target} HTTP/1.1\r\n");
        if let Some(authority) = authority {
            request += &format!("Host: {authority}\r\n");
        }
        for field in fields {
            request += &format!("{field}\r\n");
        }
        request += "\r\n";
        Ok(ExplainedRequest {
            title: format!("{method} {url}"),
            request,
            port,
            is_https,
            listener: None,
            endpoint: None,
            client: None,
            connection: None,
        })
    }

    /// A TCP connection to `address`: a port after a colon, with or without a host.
    ///
    /// # Errors
    /// The port is not a number.
    pub fn connection(address: &str, connection: ExplainedConnection) -> Result<Self, NoRequest> {
        let Url { port, .. } = Url::split(address)?;
        Ok(ExplainedRequest {
            title: format!("TCP {address}"),
            request: String::new(),
            port,
            is_https: false,
            listener: None,
            endpoint: None,
            client: None,
            connection: Some(connection),
        })
    }
}

/// The parts of a URL.
struct Url<'a> {
    /// Host with port; `None` for a path alone.
    authority: Option<&'a str>,
    path_and_query: &'a str,
    /// The port for the client's connection.
    port: Option<u16>,
}

impl<'a> Url<'a> {
    fn split(url: &'a str) -> Result<Self, NoRequest> {
        if url.starts_with('/') || url == "*" {
            return Ok(Url {
                authority: None,
                path_and_query: url,
                port: None,
            });
        }
        let (default_port, rest) = match url.split_once("://") {
            Some(("http", rest)) => (80, rest),
            Some(("https", rest)) => (443, rest),
            Some((scheme, _)) => {
                let what =
                    format!("`{scheme}` is not an HTTP scheme: write the URL as http://host/path");
                return Err(NoRequest(what));
            }
            None => (80, url),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path_and_query) = rest.split_at(end);
        let (_, after_host) = authority.split_at(authority.rfind(']').unwrap_or(0));
        let port = match after_host.rsplit_once(':') {
            None => default_port,
            Some((_, digits)) => digits.parse().map_err(|_| {
                NoRequest(format!(
                    "`{digits}` is not a valid port: write a number from 0 to 65535"
                ))
            })?,
        };
        Ok(Url {
            authority: Some(authority),
            path_and_query,
            port: Some(port),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        for (url, fields, port, request) in [
            (
                "http://a.test/b?c#d",
                &[][..],
                Some(80),
                "GET /b?c HTTP/1.1\r\nHost: a.test\r\n\r\n",
            ),
            (
                "a.test:8080",
                &[],
                Some(8080),
                "GET http://a.test:8080 HTTP/1.1\r\nHost: a.test:8080\r\n\r\n",
            ),
            (
                "https://[::1]?q",
                &[],
                Some(443),
                "GET http://[::1]?q HTTP/1.1\r\nHost: [::1]\r\n\r\n",
            ),
            (
                "http://a?q",
                &["Host: b"],
                Some(80),
                "GET /?q HTTP/1.1\r\nHost: b\r\n\r\n",
            ),
            (
                "http://[::1]:81/",
                &[],
                Some(81),
                "GET / HTTP/1.1\r\nHost: [::1]:81\r\n\r\n",
            ),
            (
                "/a",
                &["host: b", "X: 1"],
                None,
                "GET /a HTTP/1.1\r\nhost: b\r\nX: 1\r\n\r\n",
            ),
            (
                "http://a/",
                &["Host: b"],
                Some(80),
                "GET / HTTP/1.1\r\nHost: b\r\n\r\n",
            ),
        ] {
            let fields: Vec<_> = fields.iter().map(|it| it.to_string()).collect();
            let asked = ExplainedRequest::new("GET", url, &fields).expect(url);
            assert_eq!(
                (asked.request.as_str(), asked.port),
                (request, port),
                "{url}"
            );
        }
        for (url, fields) in [
            ("ftp://a/", &[][..]),
            ("http://a:b/", &[]),
            ("http://a:99999/", &[]),
            ("http://a/", &["X"]),
        ] {
            let fields: Vec<_> = fields.iter().map(|it| it.to_string()).collect();
            assert!(ExplainedRequest::new("GET", url, &fields).is_err(), "{url}");
        }
    }
}
