//! The status listener: HTTP for people, scrapers and health checks.

use std::convert::Infallible;
use std::rc::Rc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Admin, accept, csv, metrics};
use crate::net::listen::Listener;
use crate::net::stream::Stream;

type Answer = Response<Full<Bytes>>;

/// Answers requests for ever.
pub(super) async fn serve(admin: Rc<Admin>, listener: Listener) {
    loop {
        let stream = accept("status page", &listener).await;
        let admin = admin.clone();
        tokio::task::spawn_local(async move {
            match stream {
                Stream::Tcp(stream) => connection(admin, stream).await,
                Stream::Unix(stream) => connection(admin, stream).await,
            }
        });
    }
}

async fn connection(admin: Rc<Admin>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
    let service = service_fn(move |request| {
        let admin = admin.clone();
        async move { Ok::<_, Infallible>(answer(&admin, &request)) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    // Who leaves before the answer has no use for it.
    let _ = served.await;
}

fn answer(admin: &Admin, request: &Request<Incoming>) -> Answer {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/status.json") => json(admin),
        (&Method::GET, "/metrics") => metrics(admin, request),
        (&Method::GET, "/;csv" | "/status;csv") => csv(admin),
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n"),
        _ => text(StatusCode::NOT_FOUND, "not found\n"),
    }
}

fn json(admin: &Admin) -> Answer {
    match serde_json::to_vec(&admin.sources.read()) {
        Ok(body) => with_type(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
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

fn text(status: StatusCode, body: &str) -> Answer {
    with_type(
        status,
        "text/plain; charset=utf-8",
        body.to_owned().into_bytes(),
    )
}

fn with_type(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
