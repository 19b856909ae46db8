//! Viewers of the page: each has a stream of server-sent events. A slow viewer gets fewer
//! messages, each with all changes since its last one. Nothing is buffered for it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::answer::{Answer, AnswerBody, answer, text};
use crate::admin::monitor::Look;
use crate::admin::{Admin, ConnectionPlace, Requester};

/// Most viewers at once.
pub(super) const MOST: usize = 32;

/// Number of viewers.
#[derive(Debug, Clone, Default)]
pub(super) struct Viewers(Rc<Cell<usize>>);

impl Viewers {
    /// Adds a viewer, unless there are too many.
    pub(super) fn stream(&self, admin: &Arc<Admin>) -> Answer {
        let Some(place) = ConnectionPlace::take(&self.0, MOST) else {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{MOST} pages are already being updated: close one of them\n"),
            );
        };
        let (sender, messages) = mpsc::channel(1);
        tokio::task::spawn_local(send(place, admin.clone(), sender));
        answer(
            StatusCode::OK,
            "text/event-stream",
            AnswerBody::Messages(messages),
        )
    }
}

/// Sends the changes whenever there is a new look and room for it, until the viewer leaves. The
/// viewer keeps its place until then.
async fn send(_place: ConnectionPlace, admin: Arc<Admin>, messages: mpsc::Sender<Bytes>) {
    let mut looks = admin.monitor.looks();
    let first = looks.wait_for(|it| it.number > 0).await;
    let Ok(mut start) = first.map(|it| it.start.clone()) else {
        return;
    };
    let begin = format!("retry: 2000\n{}", start_event(&start));
    if messages.send(begin.into()).await.is_err() {
        return;
    }
    let mut last: Option<Arc<Look>> = None;
    loop {
        // Waits for room first, so that the look is at most a second old.
        let Ok(room) = messages.reserve().await else {
            return;
        };
        if last.is_some() {
            tokio::select! {
                changed = looks.changed() => if changed.is_err() { return },
                () = messages.closed() => return,
            }
        }
        let look = looks.borrow_and_update().clone();
        // The rows are of other objects than before.
        let is_other = !Arc::ptr_eq(&start, &look.start);
        if is_other {
            start = look.start.clone();
        }
        let message = move |_: &Admin| {
            let (begin, before) = if is_other {
                (start_event(&look.start), None)
            } else {
                (String::new(), last.as_deref())
            };
            let message = look.message(before);
            (format!("{begin}data: {message}\n\n"), look)
        };
        let (message, look) = admin.aside(Requester::Page, message).await;
        room.send(message.into());
        last = Some(look);
    }
}

/// The event that describes the rows of the messages after it.
fn start_event(start: &str) -> String {
    format!("event: start\ndata: {start}\n\n")
}
