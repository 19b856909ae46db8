//! Reclaiming the oldest segment: records that were asked for are written again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use evenkeel_cache::disk::layout::{FRAME_BYTES, Frame, Kind, whole_len};
use evenkeel_cache::disk::ring::Step;
use evenkeel_cache::disk::{Position, Size};
use evenkeel_cache::purge::Fate;
use evenkeel_cache::record::{self, Head};
use evenkeel_cache::vary;

use super::super::reading::read_up_to;
use super::{Record, Writer};
use crate::net::clock;

/// Bytes that are read of a record at first: the head of most.
const HEAD_BYTES: usize = 4 << 10;

/// Bytes of a body that are copied at once.
const COPIED_BYTES: usize = 1 << 20;

/// Bytes that may be moved for each object that is written, at least: with short objects
/// else none would.
const LEAST_MOVED_BYTES: u64 = 64 << 10;

/// A segment that goes.
#[derive(Debug)]
pub(super) struct Drain {
    segment: u32,
    file: Arc<File>,
    /// Records that were asked for, the next one last.
    asked: Vec<(u64, Size)>,
    /// Bytes that may be moved now.
    allowed: u64,
    /// Bytes that may be moved in all: half of a segment, so that new objects have room.
    left: u64,
}

impl Writer {
    /// Begins to reclaim the oldest segment, if there has to be room.
    pub(super) fn begin_drain(&mut self) {
        while let Some(segment) = self.ring.victim() {
            let Some(file) = self.shared.segment(segment) else {
                // Its entries are not loaded yet.
                self.reclaim(segment);
                continue;
            };
            let mut asked = self.shared.index.asked_for(segment);
            asked.reverse();
            self.drain = Some(Drain {
                segment,
                file,
                asked,
                allowed: 0,
                left: self.ring.segment_bytes() / 2,
            });
            return;
        }
    }

    /// Moves some records, after an object of this length was written.
    pub(super) fn move_some(&mut self, len: u64) {
        let Some(drain) = &mut self.drain else {
            return;
        };
        drain.allowed += len.max(LEAST_MOVED_BYTES);
        while let Some(drain) = &mut self.drain
            && drain.allowed > 0
        {
            let next = drain.asked.pop().filter(|_| drain.left > 0);
            let Some((offset, size)) = next else {
                return self.end_drain();
            };
            let moved = self.move_one(offset, size);
            let Some(drain) = &mut self.drain else {
                return;
            };
            match moved {
                Ok(len) => {
                    drain.allowed = drain.allowed.saturating_sub(len);
                    drain.left = drain.left.saturating_sub(len);
                }
                Err(error) => {
                    // The next object meets the same error, if it stays, and pauses.
                    drain.left = 0;
                    tracing::debug!("cache: a response was not stored on the disk: {error}");
                }
            }
        }
    }

    /// Moves a record; gives how many bytes were read and written.
    fn move_one(&mut self, offset: u64, size: Size) -> io::Result<u64> {
        let shared = self.shared.clone();
        let Some(drain) = &self.drain else {
            return Ok(0);
        };
        let old = Position {
            segment: drain.segment,
            offset,
        };
        let file = drain.file.clone();
        let first = HEAD_BYTES.min(size.max_len() as usize);
        let mut bytes = read_up_to(&file, offset, first)?;
        let Ok(frame) = Frame::read(&bytes, old) else {
            return Ok(0);
        };
        let Ok(head_len) = record::head_len(&bytes[FRAME_BYTES..]) else {
            return Ok(0);
        };
        if bytes.len() < FRAME_BYTES + head_len {
            bytes = read_up_to(&file, offset, FRAME_BYTES + head_len)?;
        }
        let Ok(head) = Head::read(&bytes[FRAME_BYTES..]) else {
            return Ok(0);
        };
        let now = clock::now();
        let object = head.without_body(&shared.secret, &shared.clocks, now, head.seen());
        let Ok(object) = object else {
            return Ok(0);
        };
        if frame.kind != Kind::Record
            || u64::from(frame.len) != head_len as u64 + head.body_len()
            || !shared.index.has(frame.hashes, old)
            || shared.purges.judge(&shared.secret, &object) == Fate::Gone
        {
            return Ok(0);
        }
        let names = vary::names(head.selector());
        let set = match names.as_slice() {
            b"" => None,
            names => shared.index.names().id_of(names),
        };
        let body_len = head.body_len();
        let record = Record {
            kind: Kind::Record,
            hashes: frame.hashes,
            names: &names,
            len: frame.len,
        };
        let Step::Append(position) = self.ring.step(
            whole_len(frame.len),
            self.open
                .as_ref()
                .map_or(0, |open| open.summary.len_with(record.names)),
        ) else {
            return Ok(0);
        };
        let head = &mut bytes[FRAME_BYTES..FRAME_BYTES + head_len];
        record::renew(head, object.seen(), object.stored(now).is_purged);
        let from = offset + (FRAME_BYTES + head_len) as u64;
        let written = self.write(&record, position, |writer, at| {
            writer.buffer.extend_from_slice(head);
            writer.copy_body(&file, from, at + head_len as u64, body_len)
        })?;
        let mut place = written.place;
        // Its body was copied as it was.
        place.is_verified = false;
        shared.queue.set_next(written.next, || {
            if shared.index.has(frame.hashes, old) {
                shared.index.insert(&place, set);
                shared.counters.kept.add(1);
            }
        });
        Ok(whole_len(frame.len))
    }

    fn copy_body(&self, file: &File, mut from: u64, mut to: u64, mut len: u64) -> io::Result<()> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        while len > 0 {
            let part = read_up_to(file, from, COPIED_BYTES.min(len as usize))?;
            if part.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            open.file.write_all_at(&part, to)?;
            let copied = part.len() as u64;
            (from, to, len) = (from + copied, to + copied, len - copied);
        }
        Ok(())
    }

    /// Removes the segment that goes; the next one goes then, if it has to.
    pub(super) fn end_drain(&mut self) {
        if let Some(drain) = self.drain.take() {
            self.reclaim(drain.segment);
            self.begin_drain();
        }
    }

    /// Removes the oldest segment with all that it has.
    pub(super) fn reclaim(&mut self, segment: u32) {
        let was_loading = !self.unloaded.is_empty();
        self.unloaded.retain(|it| *it != segment);
        if was_loading && self.unloaded.is_empty() {
            self.end_loading();
        }
        let gone = self.shared.index.reclaim(segment);
        self.shared.counters.evicted.add(gone);
        self.shared.set_segment(segment, None);
        if let Err(error) = self.folder.remove_segment(segment) {
            tracing::warn!("cache: remove a segment of {}: {error}", self.folder);
        }
        self.ring.reclaim();
        self.count_bytes();
        self.hold_purges();
    }
}
