//! Who watches the page: a stream of server-sent events each. A viewer that is
//! slow gets fewer messages, each with all that has changed since its last one;
//! nothing is kept for it.

use std::cell::Cell;
use std::rc::Rc;

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::answer::{Answer, AnswerBody, answer, text};
use crate::admin::Admin;
use crate::admin::monitor::Look;

/// Most viewers at once.
pub(super) const MOST: usize = 32;

/// How many there are.
#[derive(Debug, Clone, Default)]
pub(super) struct Viewers(Rc<Cell<usize>>);

impl Viewers {
    /// Another one, unless there are too many.
    pub(super) fn stream(&self, admin: &Rc<Admin>) -> Answer {
        if self.0.get() >= MOST {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{MOST} pages are being updated already: close one of them\n"),
            );
        }
        let (sender, messages) = mpsc::channel(1);
        let viewer = Viewer::new(self.0.clone());
        tokio::task::spawn_local(viewer.send(admin.clone(), sender));
        answer(
            StatusCode::OK,
            "text/event-stream",
            AnswerBody::Messages(messages),
        )
    }
}

/// One viewer, counted.
struct Viewer(Rc<Cell<usize>>);

impl Viewer {
    fn new(count: Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Viewer(count)
    }

    /// Sends what has changed, whenever there is room for it and a new look,
    /// until nobody takes it any more.
    async fn send(self, admin: Rc<Admin>, messages: mpsc::Sender<Bytes>) {
        let start = format!(
            "retry: 2000\nevent: start\ndata: {}\n\n",
            admin.monitor.start()
        );
        if messages.send(start.into()).await.is_err() {
            return;
        }
        let mut looks = admin.monitor.looks();
        let mut last: Option<Rc<Look>> = None;
        loop {
            // First room, then the look: so it is no older than a second.
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
            let message = look.message(last.as_deref());
            room.send(format!("data: {message}\n\n").into());
            last = Some(look);
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
