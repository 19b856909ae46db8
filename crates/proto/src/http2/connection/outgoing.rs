//! Sending to the peer, and the credit that it gets in return.

use super::*;

/// The place of the flags in the head of a frame.
const FLAGS_AT: usize = 4;

/// Sending.
impl<R: Role> Core<R> {
    /// Sends the head of a response, or the trailers of a message: a block of fields. `ends` says
    /// whether nothing follows.
    pub fn send_fields(&mut self, id: StreamId, block: &[u8], ends: bool) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        if stream.outgoing != Direction::Open {
            return;
        }
        if ends {
            stream.outgoing = Direction::Ended;
        }
        let with_size;
        let block = if std::mem::take(&mut self.peer.shrank_table) {
            let mut own = Vec::new();
            encode::no_table(&mut own);
            with_size = [&own, block].concat();
            &with_size
        } else {
            block
        };
        let max = self.peer.max_frame as usize;
        let start = self.unsent.len();
        let (mut rest, mut kind) = (block, FrameKind::Headers);
        let mut own = if ends { flags::END_STREAM } else { 0 };
        loop {
            let (part, behind) = rest.split_at(rest.len().min(max));
            let last = if behind.is_empty() {
                flags::END_HEADERS
            } else {
                0
            };
            self.push_frame(kind, own | last, id, part);
            if behind.is_empty() {
                self.last_frame = Some((id, start));
                return;
            }
            (rest, kind, own) = (behind, FrameKind::Continuation, 0);
        }
    }

    /// Sends content, as far as the windows and `room` bytes allow: how much of it was taken. If
    /// some is left, the stream waits: see [`next_writable`](Self::next_writable). The end is
    /// sent with the last byte.
    pub fn send_content(&mut self, id: StreamId, bytes: &[u8], ends: bool, room: usize) -> usize {
        let connection = self.send_window.max(0) as usize;
        let Some(stream) = self.streams.get_mut(id) else {
            return 0;
        };
        if stream.outgoing != Direction::Open {
            return 0;
        }
        let own = stream.send_window.max(0) as usize;
        let len = bytes.len().min(own).min(connection).min(room);
        let is_all = len == bytes.len();
        stream.waits = !is_all;
        stream.send_window -= len as i64;
        if is_all && ends {
            stream.outgoing = Direction::Ended;
        }
        self.send_window -= len as i64;
        if len > 0 {
            self.idle_frames
                .earn(FRAMES_EARNED + len as u32 / CONTENT_PER_FRAME);
        }
        let max = self.peer.max_frame.min(PAYLOAD_MAX) as usize;
        let mut rest = &bytes[..len];
        while !rest.is_empty() || (is_all && ends) {
            let (part, behind) = rest.split_at(rest.len().min(max));
            let is_last = is_all && ends && behind.is_empty();
            let own = if is_last { flags::END_STREAM } else { 0 };
            let start = self.unsent.len();
            self.push_frame(FrameKind::Data, own, id, part);
            self.last_frame = Some((id, start));
            rest = behind;
            if is_last {
                break;
            }
        }
        len
    }

    /// Ends a message. The end is put on its last frame, as long as that is unsent and
    /// nothing stands behind it.
    pub fn end(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        if stream.outgoing != Direction::Open {
            return;
        }
        stream.outgoing = Direction::Ended;
        stream.waits = false;
        let last = self.last_frame.filter(|it| it.0 == id);
        let flags = last.and_then(|(_, at)| self.unsent.get_mut(at + FLAGS_AT));
        match flags {
            Some(flags) => *flags |= flags::END_STREAM,
            None => self.push_frame(FrameKind::Data, flags::END_STREAM, id, &[]),
        }
    }

    /// Whether content could be sent now, where there is room for `room` bytes. Otherwise the
    /// stream waits for it: see [`next_writable`](Self::next_writable).
    pub fn can_send(&mut self, id: StreamId, room: usize) -> bool {
        let is_open = self.send_window > 0 && room > 0;
        let Some(stream) = self.streams.get_mut(id) else {
            return true;
        };
        let can = stream.outgoing != Direction::Open || (is_open && stream.send_window > 0);
        stream.waits = !can;
        can
    }

    /// The waiting stream that sends next, if the windows let it send. It waits no longer.
    ///
    /// An urgent stream comes first. Among equals, incremental streams take turns (RFC 9218 §10).
    pub fn next_writable(&mut self) -> Option<StreamId> {
        if self.send_window <= 0 {
            return None;
        }
        let ready = self.streams.iter_mut();
        let ready = ready.filter(|(_, it)| it.waits && it.send_window > 0);
        let (id, stream) = ready.min_by_key(|(_, it)| (it.priority.urgency, it.turn))?;
        stream.waits = false;
        if stream.priority.is_incremental {
            self.turns += 1;
            stream.turn = self.turns;
        }
        Some(id)
    }

    /// Takes content of a message out: how many bytes went into `room`. The peer may send as
    /// many again.
    pub fn read_content(&mut self, id: StreamId, room: &mut [u8]) -> usize {
        let Some(stream) = self.streams.get_mut(id) else {
            return 0;
        };
        let len = stream.read_into(room);
        self.credit(id, len as u32);
        len
    }

    /// Bytes of content that can be read.
    pub fn readable_len(&mut self, id: StreamId) -> usize {
        let stream = self.streams.get_mut(id);
        stream.map_or(0, |it| it.unread().len())
    }

    /// How a message that comes ends, once all of its content was read.
    pub fn incoming(&mut self, id: StreamId) -> Option<(Direction, &[u8])> {
        let stream = self.streams.get_mut(id)?;
        if !stream.unread().is_empty() && stream.incoming == Direction::Ended {
            return Some((Direction::Open, &[]));
        }
        Some((stream.incoming, &stream.trailers))
    }

    /// Whether content and trailers may still be sent on a stream.
    pub fn outgoing(&mut self, id: StreamId) -> Option<Direction> {
        self.streams.get_mut(id).map(|it| it.outgoing)
    }

    /// The exchange of a stream has ended: it makes room for another. A stream is reset with
    /// this code if one of its messages is not whole.
    pub fn release(&mut self, id: StreamId, code: ErrorCode) {
        let Some(stream) = self.streams.remove(id) else {
            return;
        };
        self.held -= stream.held;
        if stream.outgoing == Direction::Ended {
            self.completed = self.completed.wrapping_add(1);
            if self.completed.is_multiple_of(RESPONSES_PER_RESET)
                && let Some(resets) = &mut self.resets
            {
                resets.earn(1);
            }
        }
        self.credit(0, stream.unread().len() as u32);
        if stream.is_closed() {
            return;
        }
        if R::LEAVES_RESPONSES && stream.incoming == Direction::Open {
            self.late += stream.receive_window.max(0) as u64;
        }
        self.push_reset(id, R::release_code(stream.incoming, stream.outgoing, code));
    }

    /// Serves no stream behind the last one that was opened.
    pub fn shut_down(&mut self) {
        if self.goes_away.is_none() {
            self.go_away(ErrorCode::NoError);
        }
    }

    /// Whether no further stream is served.
    pub fn is_shut_down(&self) -> bool {
        self.goes_away.is_some()
    }

    pub(super) fn go_away(&mut self, code: ErrorCode) {
        // It never grows (RFC 9113 §6.8).
        let told = self.goes_away.unwrap_or(StreamId::MAX);
        let last = R::last_served(self).min(told);
        self.goes_away = Some(last);
        let payload = [last.to_be_bytes(), code.number().to_be_bytes()].concat();
        self.push_frame(FrameKind::GoAway, 0, 0, &payload);
    }

    /// The peer may send so many bytes more, at a stream and on the connection.
    pub(super) fn credit(&mut self, id: StreamId, len: u32) {
        self.uncredited += len;
        let due = (self.settings.connection_window / 2).min(CREDIT_MAX);
        if self.uncredited >= due {
            let more = std::mem::take(&mut self.uncredited);
            self.receive_window += i64::from(more);
            self.push_frame(FrameKind::WindowUpdate, 0, 0, &more.to_be_bytes());
        }
        let window = self.settings.stream_window;
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        stream.uncredited += len;
        let is_due = u64::from(stream.uncredited) * 2 >= u64::from(window);
        if is_due && stream.incoming == Direction::Open {
            let more = std::mem::take(&mut stream.uncredited);
            stream.receive_window += i64::from(more);
            self.push_frame(FrameKind::WindowUpdate, 0, id, &more.to_be_bytes());
        }
    }

    /// Answers a frame. A peer that asks and does not read is not answered for ever.
    pub(super) fn reply(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), Fatal> {
        if self.replies > REPLIES_MAX {
            let why = "too many answers that the peer does not read";
            return Err(fatal(ErrorCode::EnhanceYourCalm, why));
        }
        self.replies += HEAD_LEN + payload.len();
        self.push_frame(kind, flags::ACK, 0, payload);
        Ok(())
    }

    pub(super) fn push_reset(&mut self, id: StreamId, code: ErrorCode) {
        if !self.were_reset.contains(&id) {
            if self.were_reset.len() == RESET_MAX {
                self.were_reset.pop_front();
            }
            self.were_reset.push_back(id);
        }
        let payload = code.number().to_be_bytes();
        self.push_frame(FrameKind::RstStream, 0, id, &payload);
    }

    pub(super) fn push_frame(
        &mut self,
        kind: FrameKind,
        flags: u8,
        stream: StreamId,
        payload: &[u8],
    ) {
        let head = FrameHead {
            len: payload.len() as u32,
            kind,
            flags,
            stream,
        };
        self.last_frame = None;
        self.unsent.extend_from_slice(&head.bytes());
        self.unsent.extend_from_slice(payload);
    }
}
