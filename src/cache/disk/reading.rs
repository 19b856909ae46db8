//! Reading a record, and comparing it with its sums.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use evenkeel_cache::Object;
use evenkeel_cache::disk::Position;
use evenkeel_cache::disk::index::Place;
use evenkeel_cache::disk::layout::{FRAME_BYTES, Frame, Kind};
use evenkeel_cache::object::{Body, FilePart};
use evenkeel_cache::record::{self, BLOCK_BYTES, Damage, Head};
use evenkeel_policy::Instant;
use rustix::io::Errno;

use super::Shared;
use crate::files::read_in_page_cache;

/// Records up to this length are read as a whole. The body of a longer one is sent from
/// its file.
const WHOLE_BYTES: u64 = 1 << 20;

/// A worker reads so much itself, from the page cache: with its sums that takes about
/// 30 µs.
const AT_ONCE_BYTES: u64 = 128 << 10;

/// Read of a long record for its head. Few heads are longer.
const HEAD_BYTES: usize = 16 << 10;

/// A response that was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The response; without its body where that is a part of a file.
    pub object: Object,
    /// The body of a long one. It was compared with its sums.
    pub body: Option<FilePart>,
    /// The position of a long one.
    pub position: Position,
}

impl Found {
    /// One whose body is in memory.
    pub fn of(object: Object) -> Self {
        Found {
            object,
            body: None,
            position: Position::default(),
        }
    }

    /// Whether it is the same version of a response as another object. Both were new at the same
    /// moment, to the nanosecond.
    pub fn is_same(&self, other: &Object) -> bool {
        let len = self
            .body
            .as_ref()
            .map_or(self.object.body_len(), |it| it.len);
        len == other.body_len()
            && self.object.born() == other.born()
            && self.object.lines() == other.lines()
            && self.object.selector() == other.selector()
    }
}

/// Result of a read, for all who waited for it.
#[derive(Debug, Clone)]
pub(super) enum Fetched {
    Found(Found),
    /// Its segment has gone meanwhile.
    Reclaimed,
    Damaged(Damage),
    Failed(Errno),
}

#[derive(Debug)]
enum Fault {
    Damaged(Damage),
    Failed(io::Error),
}

impl From<Damage> for Fault {
    fn from(damage: Damage) -> Self {
        Fault::Damaged(damage)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Failed(error)
    }
}

/// A record that is to be read.
#[derive(Debug)]
pub(super) struct Reading {
    pub shared: Arc<Shared>,
    pub place: Place,
    pub now: Instant,
}

impl Reading {
    fn is_long(&self) -> bool {
        self.place.size.max_len() > WHOLE_BYTES
    }

    /// Reads it without waiting for a disk; `None` if that can't be.
    pub fn in_page_cache(&self) -> Option<Fetched> {
        let len = match self.is_long() {
            true if self.place.is_verified => HEAD_BYTES as u64,
            true => return None,
            false => self.place.size.max_len(),
        };
        if len > AT_ONCE_BYTES {
            return None;
        }
        let Some(file) = self.shared.segment(self.place.position.segment) else {
            return Some(Fetched::Reclaimed);
        };
        let mut bytes = vec![0; len as usize];
        let read = read_in_page_cache(&file, self.place.position.offset, &mut bytes)?;
        let read = &bytes[..read];
        let found = if self.is_long() {
            self.head(&file, read)
        } else {
            self.whole(read)
        };
        match found {
            Ok(found) => Some(Fetched::Found(found)),
            // A part of it is not there.
            Err(Fault::Damaged(Damage::Short)) => None,
            Err(fault) => Some(fault.into()),
        }
    }

    /// Reads it. Blocks.
    pub fn fetch(&self) -> Fetched {
        let Some(file) = self.shared.segment(self.place.position.segment) else {
            return Fetched::Reclaimed;
        };
        let found = if self.is_long() {
            self.fetch_long(&file)
        } else {
            let len = self.place.size.max_len() as usize;
            read_up_to(&file, self.place.position.offset, len)
                .map_err(Fault::from)
                .and_then(|bytes| self.whole(&bytes))
        };
        found.map_or_else(Fetched::from, Fetched::Found)
    }

    fn fetch_long(&self, file: &Arc<File>) -> Result<Found, Fault> {
        let start = self.place.position.offset;
        let mut bytes = read_up_to(file, start, HEAD_BYTES)?;
        let record = bytes.get(FRAME_BYTES..).ok_or(Damage::Short)?;
        let head_len = FRAME_BYTES + record::head_len(record)?;
        if head_len > bytes.len() {
            bytes = read_up_to(file, start, head_len)?;
        }
        let found = self.head(file, &bytes)?;
        if let Some(body) = &found.body
            && !self.place.is_verified
        {
            check_body(&Head::read(&bytes[FRAME_BYTES..])?, body)?;
            self.shared.index.verified(&self.place);
        }
        Ok(found)
    }

    /// The frame and the head that some bytes begin with.
    fn start<'a>(&self, bytes: &'a [u8]) -> Result<(Frame, Head<'a>), Damage> {
        let frame = Frame::read(bytes, self.place.position)?;
        let head = Head::read(&bytes[FRAME_BYTES..])?;
        let len = head.head_len() as u64 + head.body_len();
        if frame.kind != Kind::Record
            || frame.hashes != self.place.hashes
            || u64::from(frame.len) != len
        {
            return Err(Damage::Lengths);
        }
        Ok((frame, head))
    }

    /// Of all bytes of a record.
    fn whole(&self, bytes: &[u8]) -> Result<Found, Fault> {
        let (frame, head) = self.start(bytes)?;
        let end = FRAME_BYTES + frame.len as usize;
        let body = bytes.get(FRAME_BYTES + head.head_len()..end);
        let body = body.ok_or(Damage::Short)?;
        if !head.is_body(body) {
            return Err(Damage::Sum.into());
        }
        let Shared { secret, clocks, .. } = &*self.shared;
        let object = head.object(&Body::of(body), secret, clocks, self.now, head.seen())?;
        Ok(Found::of(object))
    }

    /// Of the head of a long record.
    fn head(&self, file: &Arc<File>, bytes: &[u8]) -> Result<Found, Fault> {
        let (_, head) = self.start(bytes)?;
        let Shared { secret, clocks, .. } = &*self.shared;
        let object = head.without_body(secret, clocks, self.now, head.seen())?;
        let body = FilePart {
            file: file.clone(),
            offset: self.place.position.offset + (FRAME_BYTES + head.head_len()) as u64,
            len: head.body_len(),
        };
        Ok(Found {
            object,
            body: Some(body),
            position: self.place.position,
        })
    }
}

impl From<Fault> for Fetched {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Damaged(damage) => Fetched::Damaged(damage),
            Fault::Failed(error) => {
                Fetched::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
        }
    }
}

/// Compares a body with its sums, block by block.
fn check_body(head: &Head<'_>, body: &FilePart) -> Result<(), Fault> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut done = 0;
    for index in 0..head.block_count() {
        let len = (body.len - done).min(BLOCK_BYTES as u64) as usize;
        match body
            .file
            .read_exact_at(&mut block[..len], body.offset + done)
        {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(Damage::Short.into());
            }
            read => read?,
        }
        if !head.is_block(index, &block[..len]) {
            return Err(Damage::Sum.into());
        }
        done += len as u64;
    }
    Ok(())
}

/// So many bytes of a file, or as many as there are.
pub(super) fn read_up_to(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
