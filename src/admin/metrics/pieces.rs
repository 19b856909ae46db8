//! A text that is written while it is sent. The sender asks for each piece, and only one is in
//! memory. In protocol buffers the length of a family precedes it, so there each family is a
//! piece.
//!
//! The writer is an `async` function that stops whenever a piece is full. It waits only for the
//! request for the next one.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Length at which a piece is handed over, in bytes. Many kernels let no other thread have the
/// core while they copy the bytes of one call, and hyper puts up to sixteen pieces into one.
const PIECE_LEN: usize = 8 * 1024;
/// Capacity of a piece, so that a sample seldom enlarges it.
const CAPACITY: usize = PIECE_LEN + 4 * 1024;

/// The place of a piece for the sender.
type Handed = Rc<RefCell<Option<Vec<u8>>>>;

/// A writer, as the sender sees it.
pub struct Pieces {
    /// `None` once all is written.
    writing: Option<Pin<Box<dyn Future<Output = ()>>>>,
    handed: Handed,
}

impl Pieces {
    /// A text that is written as its pieces are asked for. The writer has to end its output.
    pub(super) fn new<W>(writing: impl FnOnce(Output) -> W) -> Self
    where
        W: Future<Output = ()> + 'static,
    {
        let handed = Handed::default();
        let output = Output {
            bytes: Vec::with_capacity(CAPACITY),
            handed: handed.clone(),
        };
        Pieces {
            writing: Some(Box::pin(writing(output))),
            handed,
        }
    }
}

impl Iterator for Pieces {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let writing = self.writing.as_mut()?.as_mut();
        let mut cx = Context::from_waker(Waker::noop());
        if writing.poll(&mut cx).is_ready() {
            self.writing = None;
        }
        let piece = self.handed.take();
        debug_assert!(
            piece.is_some() || self.writing.is_none(),
            "what writes waits for nothing but to be asked"
        );
        piece
    }
}

/// A writer's side: the piece in progress.
#[derive(Debug)]
pub(super) struct Output {
    bytes: Vec<u8>,
    handed: Handed,
}

impl Output {
    /// Hands the piece over if it is full. Continues once another one is asked for.
    pub(super) async fn pause(&mut self) {
        if self.bytes.len() < PIECE_LEN {
            return;
        }
        let piece = std::mem::replace(&mut self.bytes, Vec::with_capacity(CAPACITY));
        *self.handed.borrow_mut() = Some(piece);
        let mut is_asked = false;
        poll_fn(|_| {
            if std::mem::replace(&mut is_asked, true) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Hands over the last piece. Nothing is written after it.
    pub(super) fn end(self) {
        *self.handed.borrow_mut() = Some(self.bytes);
    }
}

impl Deref for Output {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Output {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}
