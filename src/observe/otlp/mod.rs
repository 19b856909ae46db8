//! Spans of sampled exchanges, sent to a collector by OTLP over HTTP.
//!
//! A worker hands a finished span to the exporter's thread and continues. While the thread has no
//! room, the span is dropped and counted. The thread sends its spans once a second, or sooner if
//! there are many. Spans that the collector does not take are counted as lost, and not sent
//! again.
//!
//! Each configuration may name another collector ([`Exporters::follow`]). The exporter of an
//! earlier one ends by itself with the last generation that sends to it.

mod encode;
mod span;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::config::Otlp;
use crate::metrics::Counter;

pub use span::Span;

/// Most spans that wait for the exporter; further ones are dropped.
const SPANS_WAITING: usize = 4096;
/// Most spans in a request.
const BATCH: usize = 512;
/// Longest answer of a collector, in bytes.
const MAX_ANSWER_LEN: usize = 64 * 1024;
/// Longest time that a span waits for others.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// The fate of spans that the exporter took.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// The collector has taken them.
    pub sent: AtomicU64,
    /// The collector has not.
    pub lost: AtomicU64,
    /// Handed over, and neither sent nor lost yet.
    waiting: AtomicU64,
}

/// Hands spans of workers over to the exporter.
#[derive(Debug, Clone)]
pub struct SpanSender {
    spans: SyncSender<Span>,
    counts: Arc<SpanCounts>,
}

impl SpanSender {
    /// Hands a span over without waiting. Counts it in `dropped` if there is no room.
    pub fn send(&self, span: Span, dropped: &Counter) {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        if self.spans.try_send(span).is_err() {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            dropped.add(1);
        }
    }
}

/// An exporter's thread; ends when every sender is gone.
#[derive(Debug)]
pub struct Exporter {
    thread: JoinHandle<()>,
}

/// Starts the thread.
///
/// # Errors
/// The thread can't be started.
fn start(settings: Otlp, counts: Arc<SpanCounts>) -> io::Result<(SpanSender, Exporter)> {
    let (spans, receiver) = sync_channel(SPANS_WAITING);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let thread = std::thread::Builder::new().name("otlp".into());
    let counts_there = counts.clone();
    let thread = thread.spawn(move || export_all(&runtime, &settings, &receiver, &counts_there))?;
    let sender = SpanSender { spans, counts };
    Ok((sender, Exporter { thread }))
}

/// The exporters of all configurations so far.
#[derive(Debug, Default)]
pub struct Exporters {
    counts: Arc<SpanCounts>,
    /// The newest configuration's, while it has one.
    current: Option<(Otlp, SpanSender)>,
    /// Exporters that have not ended.
    running: Vec<Exporter>,
}

/// The exporter of a configuration that is to come into force.
#[derive(Debug)]
pub enum NextExporter {
    /// None.
    None,
    /// The present one.
    Current,
    /// A new one, for another collector.
    New {
        /// Settings of the configuration.
        settings: Otlp,
        /// Hands spans of workers over.
        sender: SpanSender,
        /// Its thread, which ends with the last sender.
        exporter: Exporter,
    },
}

impl Exporters {
    /// The fate of spans, over all exporters.
    pub fn counts(&self) -> Arc<SpanCounts> {
        self.counts.clone()
    }

    /// Prepares the exporter of another configuration. The same settings keep the same exporter.
    /// Changes nothing yet; dropped, it leaves nothing behind.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn prepare(&self, settings: Option<&Otlp>) -> io::Result<NextExporter> {
        let Some(settings) = settings else {
            return Ok(NextExporter::None);
        };
        if self.current.as_ref().is_some_and(|(it, _)| it == settings) {
            return Ok(NextExporter::Current);
        }
        let (sender, exporter) = start(settings.clone(), self.counts.clone())?;
        Ok(NextExporter::New {
            settings: settings.clone(),
            sender,
            exporter,
        })
    }

    /// Switches to the prepared exporter.
    pub fn follow(&mut self, next: NextExporter) -> Option<SpanSender> {
        self.running.retain(|it| !it.thread.is_finished());
        match next {
            NextExporter::None => self.current = None,
            NextExporter::Current => {}
            NextExporter::New {
                settings,
                sender,
                exporter,
            } => {
                self.running.push(exporter);
                self.current = Some((settings, sender));
            }
        }
        Some(self.current.as_ref()?.1.clone())
    }

    /// Waits until everything is sent. After `timeout` the rest is lost. All senders must be
    /// gone.
    pub fn finish(self, timeout: Duration) {
        drop(self.current);
        let deadline = Instant::now() + timeout;
        let mut are_slow = false;
        for exporter in self.running {
            are_slow |= !exporter.finish(deadline);
        }
        if are_slow {
            let waiting = self.counts.waiting.load(Ordering::Relaxed);
            self.counts.lost.fetch_add(waiting, Ordering::Relaxed);
            tracing::warn!("spans: the collector is slow: {waiting} waiting spans are lost");
        }
    }
}

impl Exporter {
    /// Waits until everything is sent, or until the deadline. Returns whether it is sent.
    fn finish(self, deadline: Instant) -> bool {
        while !self.thread.is_finished() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.thread.join().is_err() {
            tracing::error!("spans: the exporter panicked");
        }
        true
    }
}

fn export_all(runtime: &Runtime, settings: &Otlp, spans: &Receiver<Span>, counts: &SpanCounts) {
    let mut last_error = None;
    let mut goes_on = true;
    while goes_on {
        let Ok(first) = spans.recv() else { return };
        let mut batch = vec![first];
        let until = Instant::now() + BATCH_TIME;
        while batch.len() < BATCH {
            match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(span) => batch.push(span),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    goes_on = false;
                    break;
                }
            }
        }
        let body = encode::request(settings, &batch);
        let sent = runtime.block_on(async {
            match tokio::time::timeout(settings.timeout, post(settings, body)).await {
                Ok(sent) => sent,
                Err(_) => Err(format!("no answer within {:?}", settings.timeout)),
            }
        });
        let count = batch.len() as u64;
        let lost = match &sent {
            Ok(rejected) => count.min(*rejected),
            Err(_) => count,
        };
        counts.lost.fetch_add(lost, Ordering::Relaxed);
        counts.sent.fetch_add(count - lost, Ordering::Relaxed);
        counts.waiting.fetch_sub(count, Ordering::Relaxed);
        note(settings, sent.err(), &mut last_error);
    }
}

/// Logs the collector's state when it changes.
fn note(settings: &Otlp, error: Option<String>, last_error: &mut Option<String>) {
    let collector = &settings.authority;
    match (&error, &last_error) {
        (Some(error), None) => {
            tracing::warn!(collector, "spans: collector {collector}: {error}");
        }
        (None, Some(_)) => {
            tracing::info!(collector, "spans: collector {collector} accepts them again");
        }
        _ => {}
    }
    *last_error = error;
}

/// Sends a request on its own connection. One a second needs no pool, and never meets a stale
/// connection. Returns the number of spans that the collector rejected.
async fn post(settings: &Otlp, body: Vec<u8>) -> Result<u64, String> {
    let stream = TcpStream::connect(&settings.authority).await;
    let stream = stream.map_err(|error| format!("connect: {error}"))?;
    let failed = |error: hyper::Error| error.to_string();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(failed)?;
    let mut request = Request::post(&settings.path)
        .header(HOST, &settings.authority)
        .header(CONTENT_TYPE, "application/json");
    for (name, value) in &settings.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(body)));
    let request = request.map_err(|error| error.to_string())?;
    // The sender is dropped here, and with it the connection.
    let answered = async move {
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_LEN);
        let body = body.collect().await.map_err(|error| error.to_string())?;
        Ok((status, rejected(&body.to_bytes())))
    };
    let (answered, _) = tokio::join!(answered, connection);
    match answered {
        Ok((StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NO_CONTENT, rejected)) => {
            Ok(rejected)
        }
        Ok((status, _)) => Err(format!("it answered {status}")),
        Err(error) => Err(error),
    }
}

/// The number of rejected spans in an answer (`partialSuccess`). JSON has 64-bit numbers as
/// strings, and collectors send both forms.
fn rejected(answer: &[u8]) -> u64 {
    let answer: serde_json::Value = serde_json::from_slice(answer).unwrap_or_default();
    let count = &answer["partialSuccess"]["rejectedSpans"];
    let written = count.as_str().and_then(|text| text.parse().ok());
    count.as_u64().or(written).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_collector_rejects() {
        for (answer, count) in [
            ("", 0),
            ("{}", 0),
            (
                r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"no"}}"#,
                3,
            ),
            (r#"{"partialSuccess":{"rejectedSpans":2}}"#, 2),
        ] {
            assert_eq!(rejected(answer.as_bytes()), count, "{answer}");
        }
    }

    fn otlp(collector: &str) -> Otlp {
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nanswer = {{}}\n\
             [otlp]\nurl = 'http://{collector}/v1/traces'"
        );
        let loaded = crate::config::load_text("test.toml", &text, crate::config::NameLookup::Skip);
        loaded.unwrap().config.otlp.unwrap()
    }

    fn follow(exporters: &mut Exporters, settings: Option<&Otlp>) -> Option<SpanSender> {
        let next = exporters.prepare(settings).unwrap();
        exporters.follow(next)
    }

    #[test]
    fn an_exporter_ends_with_its_last_sender() {
        let mut exporters = Exporters::default();
        let settings = ["127.0.0.1:1", "127.0.0.1:2"].map(otlp);
        let first = follow(&mut exporters, Some(&settings[0]));
        let again = follow(&mut exporters, Some(&settings[0]));
        assert_eq!(exporters.running.len(), 1);
        // The second configuration is refused.
        drop(exporters.prepare(Some(&settings[1])).unwrap());
        drop(exporters.prepare(None).unwrap());
        let (current, _) = exporters.current.as_ref().unwrap();
        assert_eq!((exporters.running.len(), current), (1, &settings[0]));
        let second = follow(&mut exporters, Some(&settings[1]));
        assert_eq!(exporters.running.len(), 2);
        drop((first, again));
        evenkeel_testkit::deadline::until("the first is gone", || {
            let _ = follow(&mut exporters, Some(&settings[1]));
            exporters.running.len() == 1
        });
        assert!(follow(&mut exporters, None).is_none());
        assert_eq!(exporters.running.len(), 1, "a generation has it");
        drop(second);
        exporters.finish(Duration::from_secs(5));
    }
}
