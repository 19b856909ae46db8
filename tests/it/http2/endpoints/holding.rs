//! An endpoint that holds requests until a test lets them go, and counts them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::http2::{ErrorCode, kind};
use evenkeel_testkit::{H2Server, RawOrigin, RawStream};

use super::is_timeout;

/// How long a request for `/wait` takes.
const WAIT: Duration = Duration::from_millis(50);

/// The observations of such an endpoint.
#[derive(Debug, Default)]
pub struct Seen {
    /// Requests that are held.
    pub held: AtomicUsize,
    /// Most of them at once, on all connections.
    pub most: AtomicUsize,
    /// Requests that were refused.
    pub refused: AtomicUsize,
    /// GOAWAY frames that came.
    pub goaways: AtomicUsize,
    /// Connections that have ended.
    pub ended: AtomicUsize,
    is_released: AtomicBool,
}

/// An endpoint that answers `/hold…` on release, `/wait…` after a while, and all else at once,
/// each with its path.
pub struct Holding {
    pub origin: RawOrigin,
    pub seen: Arc<Seen>,
}

impl Holding {
    /// With these settings. Beyond `limit` requests at once a connection refuses them.
    pub fn start(settings: &'static [(u16, u32)], limit: usize) -> Self {
        let seen = Arc::<Seen>::default();
        let kept = seen.clone();
        let origin = RawOrigin::start(move |_, raw| {
            let _ = serve(raw, settings, limit, &kept);
            kept.ended.fetch_add(1, Ordering::SeqCst);
        });
        Holding {
            origin: origin.unwrap(),
            seen,
        }
    }

    /// Waits until this many requests are held.
    #[track_caller]
    pub fn until_held(&self, count: usize) {
        until(&format!("{count} requests are held"), || {
            self.seen.held.load(Ordering::SeqCst) == count
        });
    }

    /// Answers the held requests, and later ones.
    pub fn release(&self) {
        self.seen.is_released.store(true, Ordering::SeqCst);
    }

    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.origin.connections() - self.seen.ended.load(Ordering::SeqCst)
    }
}

struct Pending {
    stream: u32,
    path: String,
    /// `None` until it is released.
    due: Option<Instant>,
}

fn serve(
    raw: RawStream,
    settings: &'static [(u16, u32)],
    limit: usize,
    seen: &Seen,
) -> io::Result<()> {
    let mut server = H2Server::accept(raw, settings)?;
    let mut pending = Vec::<Pending>::new();
    let served = serve_all(&mut server, &mut pending, limit, seen);
    seen.held.fetch_sub(pending.len(), Ordering::SeqCst);
    served
}

fn serve_all(
    server: &mut H2Server,
    pending: &mut Vec<Pending>,
    limit: usize,
    seen: &Seen,
) -> io::Result<()> {
    loop {
        let now = Instant::now();
        let is_released = seen.is_released.load(Ordering::SeqCst);
        let is_due = |it: &mut Pending| it.due.map_or(is_released, |due| due <= now);
        for it in pending.extract_if(.., is_due) {
            seen.held.fetch_sub(1, Ordering::SeqCst);
            server.respond(it.stream, 200, &it.path)?;
        }
        server.raw().set_step(Duration::from_millis(5));
        let first = server.raw().peek_first();
        server.raw().set_step(STEP);
        match first {
            Ok(_) => {}
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        }
        let (kind, stream) = {
            let frame = server.next()?;
            (frame.kind, frame.stream)
        };
        if kind == kind::GOAWAY {
            seen.goaways.fetch_add(1, Ordering::SeqCst);
        }
        if kind == kind::RST_STREAM {
            let left = pending.extract_if(.., |it| it.stream == stream).count();
            seen.held.fetch_sub(left, Ordering::SeqCst);
        }
        while let Some(request) = server.whole() {
            let path = request.path().to_owned();
            let due = match path.as_str() {
                _ if pending.len() >= limit => {
                    seen.refused.fetch_add(1, Ordering::SeqCst);
                    server.reset(request.stream, ErrorCode::RefusedStream)?;
                    continue;
                }
                it if it.starts_with("/hold") => None,
                it if it.starts_with("/wait") => Some(now + WAIT),
                _ => {
                    server.respond(request.stream, 200, &path)?;
                    continue;
                }
            };
            pending.push(Pending {
                stream: request.stream,
                path,
                due,
            });
            let held = seen.held.fetch_add(1, Ordering::SeqCst) + 1;
            seen.most.fetch_max(held, Ordering::SeqCst);
        }
    }
}
