//! An origin that has [`Pages`] and counts how often it was asked.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use super::pages::{Pages, number};
use crate::deadline::{STEP, holds_within};

/// A running origin, until dropped. Each connection has a thread.
#[derive(Debug)]
pub struct PageOrigin {
    /// The address that it listens on.
    pub address: SocketAddr,
    asked: Arc<AtomicU64>,
    open: Arc<AtomicU64>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PageOrigin {
    /// Listens on a free port of this machine.
    ///
    /// # Errors
    /// It can't.
    pub fn start(pages: Pages) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let asked = Arc::<AtomicU64>::default();
        let open = Arc::<AtomicU64>::default();
        let is_stopping = Arc::<AtomicBool>::default();
        let thread = {
            let (asked, open) = (asked.clone(), open.clone());
            let is_stopping = is_stopping.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if is_stopping.load(Relaxed) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let (pages, asked, open) = (pages.clone(), asked.clone(), open.clone());
                    open.fetch_add(1, Relaxed);
                    std::thread::spawn(move || {
                        // It ends when the other side closes, or sends something else.
                        let _ = serve(stream, &pages, &asked);
                        open.fetch_sub(1, Relaxed);
                    });
                }
            })
        };
        Ok(PageOrigin {
            address,
            asked,
            open,
            is_stopping,
            thread: Some(thread),
        })
    }

    /// Requests so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// Waits until no connection is open, so that the counts are final. Returns whether that
    /// happened.
    pub fn is_left_alone(&self) -> bool {
        holds_within(STEP, || self.open.load(Relaxed) == 0)
    }
}

impl Drop for PageOrigin {
    fn drop(&mut self) {
        self.is_stopping.store(true, Relaxed);
        // Wakes the thread out of accept.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, pages: &Pages, asked: &AtomicU64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Vec::new();
    let mut output = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        input.extend_from_slice(&buffer[..len]);
        output.clear();
        let mut read = 0;
        while let Some(len) = head_len(&input[read..])? {
            let number = requested(&input[read..read + len]).ok_or(io::ErrorKind::InvalidData)?;
            asked.fetch_add(1, Relaxed);
            pages.push_response(number, &mut output);
            read += len;
        }
        input.drain(..read);
        stream.write_all(&output)?;
    }
}

/// The length of a whole request without a body.
fn head_len(input: &[u8]) -> io::Result<Option<usize>> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    match httparse::Request::new(&mut fields).parse(input) {
        Ok(httparse::Status::Complete(len)) => Ok(Some(len)),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

/// The page that a request asks for.
fn requested(head: &[u8]) -> Option<u64> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    number(words.nth(1)?)
}
