//! Requests to an issuer over HTTPS, each with a deadline.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use evenkeel_tls::{Authorities, ClientSettings, Policy, Verify, client_config};
use http::header::{CONTENT_TYPE, DATE, HeaderValue, LOCATION, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;

use crate::clock::Clock;
use crate::error::with_causes;

/// How long a request may take, with its response.
const DEADLINE: Duration = Duration::from_secs(30);

/// The largest response that is read, in bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// When the state of a renewal is asked for again, where the server does not say.
const RENEWAL_INFO_EVERY: &str = "21600";

/// How long a server may want to be left alone. Its word is not taken for more.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(7 * 86_400);

/// A client of HTTPS that keeps its connections.
#[derive(Clone)]
pub(crate) struct Https(Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>);

/// The facts in the headers of responses.
#[derive(Debug, Default)]
pub(crate) struct ServerHints {
    /// The `Retry-After` of the last response, if it was a failure.
    retry_after: Option<Duration>,
    /// The time of the server, and of this machine when it came.
    date: Option<(SystemTime, SystemTime)>,
}

/// The requests of one attempt.
pub(crate) struct Requests {
    https: Https,
    clock: Arc<dyn Clock>,
    heard: Arc<Mutex<ServerHints>>,
}

/// Which URLs connections are for.
#[derive(Clone, Copy)]
pub(crate) enum Schemes {
    /// URLs that begin with `https://`.
    Https,
    /// URLs that begin with `https://` or `http://`.
    Both,
}

/// Connections to servers that these authorities vouch for.
///
/// # Errors
/// TLS cannot be configured.
pub(crate) fn connector(
    authorities: Authorities,
    schemes: Schemes,
) -> Result<HttpsConnector<HttpConnector>, rustls::Error> {
    let config = client_config(ClientSettings {
        policy: Policy::default(),
        verify: Verify::By(authorities),
        pins: Vec::new(),
        identity: None,
        alpn: Vec::new(),
        sessions: 1,
        key_log: None,
    })?;
    let builder = HttpsConnectorBuilder::new().with_tls_config(ClientConfig::clone(&config));
    let builder = match schemes {
        Schemes::Https => builder.https_only(),
        Schemes::Both => builder.https_or_http(),
    };
    Ok(builder.enable_http1().build())
}

impl Https {
    /// # Errors
    /// TLS cannot be configured.
    pub(crate) fn new(authorities: Authorities) -> Result<Self, rustls::Error> {
        let connector = connector(authorities, Schemes::Https)?;
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

impl Requests {
    pub(crate) fn new(https: Https, clock: Arc<dyn Clock>) -> (Self, Arc<Mutex<ServerHints>>) {
        let heard = Arc::default();
        let requests = Self {
            https,
            clock,
            heard: Arc::clone(&heard),
        };
        (requests, heard)
    }
}

impl ServerHints {
    /// How long the server wants to be left alone, by its last response.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// How far the clock of the server is from ours, by its last response, and whether it is
    /// ahead.
    pub(crate) fn clock_skew(&self) -> Option<(Duration, bool)> {
        let (theirs, ours) = self.date?;
        Some(match theirs.duration_since(ours) {
            Ok(ahead) => (ahead, true),
            Err(behind) => (behind.duration(), false),
        })
    }
}

impl HttpClient for Requests {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let is_get = request.method() == Method::GET;
        let response = self.https.0.request(request);
        let (clock, heard) = (Arc::clone(&self.clock), Arc::clone(&self.heard));
        Box::pin(async move {
            let whole = async {
                let response = response.await.map_err(|it| other(with_causes(&it)))?;
                let (parts, body) = response.into_parts();
                let body = Limited::new(body, MAX_RESPONSE).collect().await;
                Ok::<_, Error>((parts, body.map_err(Error::Other)?.to_bytes()))
            };
            let (mut parts, body) = tokio::select! {
                whole = whole => whole?,
                () = clock.sleep(DEADLINE) => {
                    let seconds = DEADLINE.as_secs();
                    return Err(other(format!("no whole response within {seconds} s")));
                }
            };
            let now = clock.now();
            let is_failure = parts.status.is_client_error() || parts.status.is_server_error();
            {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                let retry_after = retry_after(&parts.headers, now);
                heard.retry_after = retry_after.filter(|_| is_failure);
                let date = date(&parts.headers, DATE.as_str());
                heard.date = date.map(|it| (it, now)).or(heard.date);
            }
            if let Some(text) = not_acme(&parts, &body, is_get) {
                return Err(other(text));
            }
            // The client would complain about the JSON.
            let content = parts.headers.get(CONTENT_TYPE);
            let content = content.and_then(|it| it.to_str().ok());
            let is_json = content.is_some_and(|it| it.contains("json"));
            if is_failure && !is_json {
                return Err(other(format!("the server answered {}", parts.status)));
            }
            if is_get && !is_failure && !parts.headers.contains_key(RETRY_AFTER) {
                // The client takes no state of a renewal without it.
                let every = HeaderValue::from_static(RENEWAL_INFO_EVERY);
                parts.headers.insert(RETRY_AFTER, every);
            }
            Ok(Response::from_parts(parts, Full::new(body)).into())
        })
    }
}

/// A description of an answer that can't come from a server of ACME; `None` if it may.
fn not_acme(parts: &Parts, body: &[u8], is_get: bool) -> Option<String> {
    let status = parts.status;
    let field = |name| {
        parts
            .headers
            .get(name)
            .and_then(|it: &HeaderValue| it.to_str().ok())
    };
    // JSON, a chain of certificates, or nothing.
    let body = body.trim_ascii_start();
    let kind = field(CONTENT_TYPE).unwrap_or("no content type");
    let may_be_acme = body.is_empty() || body.starts_with(b"{") || kind.contains("pem");
    let answered = if status.is_redirection() {
        let to = field(LOCATION).map(|it| format!(" to {it}"));
        format!("{status}{}", to.unwrap_or_default())
    } else if status.is_success() && !may_be_acme {
        format!("{status} with {kind} instead of JSON")
    } else if status == StatusCode::NOT_FOUND && is_get && !kind.contains("json") {
        status.to_string()
    } else {
        return None;
    };
    let text = format!("the server answered {answered}: check the URL of its directory");
    Some(text.replace(char::is_control, " "))
}

fn other(text: String) -> Error {
    Error::Other(text.into())
}

/// `Retry-After`, in seconds or as a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let after = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = date(headers, RETRY_AFTER.as_str())?;
            until.duration_since(now).unwrap_or_default()
        }
    };
    Some(after.min(MAX_RETRY_AFTER))
}

fn date(headers: &HeaderMap, name: &str) -> Option<SystemTime> {
    let value = headers.get(name)?.to_str().ok()?;
    httpdate::parse_http_date(value.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_000);
        for (value, expected) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(777)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("99999999999", Some(7 * 86_400)),
            ("-1", None),
            ("soon", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
            let found = retry_after(&headers, now).map(|it| it.as_secs());
            assert_eq!(found, expected, "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
