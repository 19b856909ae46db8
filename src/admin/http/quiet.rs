//! The state of a status connection, and its time limits. No client that requests, reads or sends
//! nothing keeps its place forever.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Longest time for a request's head; on a new connection from its start.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest idle time before the next request: longer than the usual time between two scrapes.
const KEEP_TIMEOUT: Duration = Duration::from_secs(90);
/// Longest time for a whole answer, except messages.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time without progress during a request.
const QUIET_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of checks of these limits.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Interval of checks for a first request, after another process has taken over.
const FIRST_REQUEST_INTERVAL: Duration = Duration::from_millis(5);

/// The state of a connection.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Waits for a head, or for the rest of one.
    Head,
    /// Handles a request, or sends messages.
    Request,
    /// Sends an answer.
    Answer,
    /// Sends the last bytes of an answer.
    Rest,
    /// Idle, for another request.
    Kept,
}

/// The state of a connection, and since when.
#[derive(Debug)]
pub(super) struct Activity {
    step: Cell<(Step, Instant)>,
    moved: Cell<Instant>,
    give_way: Notify,
    sends_messages: Cell<bool>,
}

impl Activity {
    fn new() -> Self {
        let now = Instant::now();
        Activity {
            step: Cell::new((Step::Head, now)),
            moved: Cell::new(now),
            give_way: Notify::new(),
            sends_messages: Cell::new(false),
        }
    }

    /// Notes a request.
    pub(super) fn request(&self) {
        self.enter(Step::Request);
    }

    /// Notes that an answer with an end is about to be sent.
    pub(super) fn answer(&self) {
        self.enter(Step::Answer);
    }

    /// Waits for the first request, as an earlier close would hit a client that has just
    /// connected.
    pub(super) async fn has_begun(&self) {
        while matches!(self.step.get().0, Step::Head) {
            tokio::time::sleep(FIRST_REQUEST_INTERVAL).await;
        }
    }

    /// Notes that messages are about to be sent, while the client stays.
    pub(super) fn send_messages(&self) {
        self.sends_messages.set(true);
    }

    /// Whether it sends messages.
    pub(super) fn sends_messages(&self) -> bool {
        self.sends_messages.get()
    }

    /// Since when it has no request; `None` during a request.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        match self.step.get() {
            (Step::Head | Step::Kept, since) => Some(since),
            (Step::Request | Step::Answer | Step::Rest, _) => None,
        }
    }

    /// Ends it, to make room for another one.
    pub(super) fn give_way(&self) {
        self.give_way.notify_one();
    }

    /// Waits until it has to end.
    pub(super) async fn is_over(&self) {
        loop {
            let (step, since) = self.step.get();
            let quiet = self.moved.get() + QUIET_TIMEOUT;
            let due = match step {
                Step::Head => since + HEAD_TIMEOUT,
                Step::Kept => since + KEEP_TIMEOUT,
                Step::Request => quiet,
                Step::Answer | Step::Rest => quiet.min(since + ANSWER_TIMEOUT),
            };
            let now = Instant::now();
            if now >= due {
                return;
            }
            let look = due.min(now + LOOK_INTERVAL);
            tokio::select! {
                () = tokio::time::sleep_until(look.into()) => {}
                () = self.give_way.notified() => return,
            }
        }
    }

    fn enter(&self, step: Step) {
        self.step.set((step, Instant::now()));
    }

    fn has_moved(&self) {
        self.moved.set(Instant::now());
    }
}

/// The body of an answer, which notes its end.
pub(super) struct Noted<B> {
    body: B,
    activity: Rc<Activity>,
}

impl<B> Noted<B> {
    pub(super) fn new(body: B, activity: Rc<Activity>) -> Self {
        Noted { body, activity }
    }
}

/// hyper drops a body once it has taken all of it.
impl<B> Drop for Noted<B> {
    fn drop(&mut self) {
        match self.activity.step.get() {
            // The limit counts from the start of the answer.
            (Step::Answer, since) => self.activity.step.set((Step::Rest, since)),
            _ => self.activity.enter(Step::Rest),
        }
    }
}

impl<B: Body + Unpin> Body for Noted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that notes progress in both directions.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    activity: Rc<Activity>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S) -> Self {
        Watched {
            stream,
            activity: Rc::new(Activity::new()),
        }
    }

    pub(super) fn activity(&self) -> Rc<Activity> {
        self.activity.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.activity.has_moved();
        if let (Step::Kept, _) = self.activity.step.get() {
            self.activity.enter(Step::Head);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let len = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.activity.has_moved();
        Poll::Ready(Ok(len))
    }

    /// hyper calls this when all present bytes of an answer are written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if let (Step::Rest, _) = self.activity.step.get() {
            self.activity.enter(Step::Kept);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bytes))?;
        self.activity.has_moved();
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// An incomplete answer.
    struct Unfinished;

    impl Body for Unfinished {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_connection_is_kept_once_the_last_of_its_answer_is_written() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = Watched::new(near);
        let activity = stream.activity();
        assert!(activity.idle_since().is_some(), "a head is to come");
        activity.request();
        activity.answer();
        let body = Noted::new(Unfinished, activity.clone());
        stream.write_all(b"the first piece").await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(activity.idle_since(), None, "there is more of it");
        let (_, begun) = activity.step.get();
        drop(body);
        let (step, since) = activity.step.get();
        assert!(matches!(step, Step::Rest), "{step:?}");
        assert_eq!(since, begun, "one time for all of it");
        assert_eq!(activity.idle_since(), None, "it is on its way");
        stream.flush().await.unwrap();
        assert!(activity.idle_since().is_some(), "it waits for a request");
        far.write_all(b"G").await.unwrap();
        stream.read_u8().await.unwrap();
        let (step, _) = activity.step.get();
        assert!(matches!(step, Step::Head), "{step:?}");
    }
}
