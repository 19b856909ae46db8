//! Filling the index after a start.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use evenkeel_cache::disk::index::Place;
use evenkeel_cache::disk::layout::{
    Entry, FOOTER_BYTES, FRAME_BYTES, Footer, Frame, Kind, SEGMENT_HEAD_BYTES, SegmentHead, Summary,
};
use evenkeel_cache::disk::ring::{Ring, Sealed};
use evenkeel_cache::disk::{Position, Size};
use evenkeel_cache::record::{Head, head_len};
use evenkeel_cache::vary;

use super::super::reading::read_up_to;
use super::Writer;

/// Bytes that are read at each frame of a segment without summary: most heads end there.
const FRAME_READ_BYTES: usize = 4 << 10;

/// Whether all frames of a segment were found: it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Whole,
    InPart,
}

impl Writer {
    /// Finds the segments in the folder.
    pub(super) fn find_segments(&mut self) -> io::Result<()> {
        let found = self.folder.segments()?;
        self.unloaded = found.iter().map(|(segment, _)| *segment).collect();
        self.newest_found = self.unloaded.last().copied();
        let sealed = found.iter().map(|(segment, bytes)| Sealed {
            segment: *segment,
            bytes: *bytes,
            // Until its head is read, all marks of purges are kept.
            purges: 0,
        });
        self.ring = Ring::new(self.shared.capacity_bytes, sealed);
        self.hold_purges();
        self.count_bytes();
        match self.unloaded.last() {
            Some(newest) => {
                let next = Position {
                    segment: newest + 1,
                    offset: 0,
                };
                let index = &self.shared.index;
                self.shared
                    .queue
                    .begin(index, next, || index.begin(*newest));
            }
            None => self.end_loading(),
        }
        Ok(())
    }

    /// Loads the newest segment that is not loaded yet.
    pub(super) fn load_next(&mut self) {
        let Some(segment) = self.unloaded.pop() else {
            return;
        };
        match self.load(segment) {
            Ok(Loaded::Whole) => {}
            // A process that was killed leaves its last segment so.
            Ok(Loaded::InPart) if Some(segment) == self.newest_found => {}
            Ok(Loaded::InPart) => {
                self.shared.counters.damaged.add(1);
                tracing::warn!(
                    "cache: segment {segment} of {} is damaged: older segments are removed, \
                     because marks of removed responses may be missing",
                    self.folder
                );
                for older in std::mem::take(&mut self.unloaded) {
                    self.remove_unloaded(older);
                }
            }
            Err(error) => {
                self.shared.counters.failed_reads.add(1);
                tracing::warn!(
                    "cache: segment {segment} of {} can't be read: {error}; it is skipped, and so \
                     are older segments",
                    self.folder
                );
                self.unloaded.clear();
            }
        }
        if self.unloaded.is_empty() {
            self.end_loading();
        }
    }

    pub(super) fn end_loading(&mut self) {
        self.shared.index.end_loading();
        self.hold_purges();
        self.shared.queue.notify();
    }

    fn remove_unloaded(&mut self, segment: u32) {
        if self.folder.remove_segment(segment).is_ok() {
            self.ring.set_bytes(segment, None);
            self.count_bytes();
        }
    }

    fn load(&mut self, segment: u32) -> io::Result<Loaded> {
        let file = Arc::new(self.folder.open_segment(segment)?);
        let head = read_up_to(&file, 0, SEGMENT_HEAD_BYTES)?;
        if head.len() < SEGMENT_HEAD_BYTES {
            // A process that is killed when it has just made the file leaves it so.
            self.remove_unloaded(segment);
            return Ok(Loaded::InPart);
        }
        if let Ok(head) = SegmentHead::read(&head) {
            self.ring.set_purges(segment, head.purges);
        }
        let (footer, summary, loaded) = match read_summary(&file, segment)? {
            Some((footer, summary)) => (footer, summary, Loaded::Whole),
            None => {
                let (footer, summary) = self.seal_found(&file, segment)?;
                (footer, summary, Loaded::InPart)
            }
        };
        let Ok(entries) = footer.entries(&summary) else {
            return Ok(Loaded::InPart);
        };
        self.shared.set_segment(segment, Some(file));
        let index = &self.shared.index;
        for entry in entries {
            if entry.kind == Kind::Removal {
                index.load_removal(entry.hashes.key, entry.position);
                continue;
            }
            let set = match entry.names {
                b"" => None,
                names => match index.names().id_of(names) {
                    None => continue,
                    set => set,
                },
            };
            let place = Place {
                hashes: entry.hashes,
                position: entry.position,
                size: entry.size,
                is_verified: false,
            };
            index.load(&place, set);
        }
        Ok(loaded)
    }

    /// Reads a segment that was not sealed record by record, and seals it.
    fn seal_found(&mut self, file: &File, segment: u32) -> io::Result<(Footer, Vec<u8>)> {
        let (summary, end) = self.scan(file, segment)?;
        let bytes = summary.bytes(end);
        let (entries, footer) = bytes.split_at(bytes.len() - FOOTER_BYTES);
        let footer = Footer::read(footer, segment).map_err(|_| io::ErrorKind::InvalidData)?;
        // If that fails, the next start reads it record by record too.
        let sealed = file
            .set_len(end.offset)
            .and_then(|()| file.write_all_at(&bytes, end.offset));
        if sealed.is_ok() {
            let len = end.offset + bytes.len() as u64;
            self.ring.set_bytes(segment, Some(len));
            self.count_bytes();
        }
        Ok((footer, entries.to_vec()))
    }

    /// The summary of a segment that has none, and where its records end.
    ///
    /// The end is at a damaged frame, or at a record that is not whole.
    fn scan(&mut self, file: &File, segment: u32) -> io::Result<(Summary, Position)> {
        let file_len = file.metadata()?.len();
        let mut summary = Summary::default();
        let mut position = Position {
            segment,
            offset: SEGMENT_HEAD_BYTES as u64,
        };
        loop {
            let mut bytes = read_up_to(file, position.offset, FRAME_READ_BYTES)?;
            let Ok(frame) = Frame::read(&bytes, position) else {
                break;
            };
            let end = position.offset + FRAME_BYTES as u64 + u64::from(frame.len);
            if end > file_len {
                break;
            }
            let mut entry = Entry {
                hashes: frame.hashes,
                kind: frame.kind,
                position,
                size: Size::of(FRAME_BYTES as u64 + u64::from(frame.len)),
                names: b"",
            };
            if frame.kind == Kind::Removal {
                summary.add(&entry);
            } else {
                if let Ok(head_len) = head_len(&bytes[FRAME_BYTES..])
                    && FRAME_BYTES + head_len > bytes.len()
                {
                    bytes = read_up_to(file, position.offset, FRAME_BYTES + head_len)?;
                }
                match Head::read(&bytes[FRAME_BYTES..]) {
                    Ok(head) => {
                        let names = vary::names(head.selector());
                        entry.names = &names;
                        summary.add(&entry);
                    }
                    Err(_) => self.shared.counters.damaged.add(1),
                }
            }
            position.offset += frame.whole_len();
        }
        Ok((summary, position))
    }
}

/// The footer and the summary of a sealed segment; `None` if it is not sealed, or they are
/// damaged.
fn read_summary(file: &File, segment: u32) -> io::Result<Option<(Footer, Vec<u8>)>> {
    let len = file.metadata()?.len();
    let Some(footer_at) = len.checked_sub(FOOTER_BYTES as u64) else {
        return Ok(None);
    };
    let footer = read_up_to(file, footer_at, FOOTER_BYTES)?;
    let Ok(footer) = Footer::read(&footer, segment) else {
        return Ok(None);
    };
    let summary_len = footer.summary_len();
    if footer.position.offset + summary_len != footer_at {
        return Ok(None);
    }
    let summary = read_up_to(file, footer.position.offset, summary_len as usize)?;
    let is_whole = footer.entries(&summary).is_ok();
    Ok(is_whole.then_some((footer, summary)))
}
