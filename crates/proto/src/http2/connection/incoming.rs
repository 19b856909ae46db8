//! Frames of the peer, and their effects.

use super::super::fields::read_trailers;
use super::role::Common;
use super::*;

/// Frames that came.
impl<R: Role> Core<R> {
    pub(super) fn begin_content(&mut self, head: FrameHead, payload: &[u8]) -> FrameResult<R> {
        self.receive_window -= i64::from(head.len);
        if self.receive_window < 0 {
            let why = "more content than the window of the connection";
            return Err(fatal(ErrorCode::FlowControl, why));
        }
        let ends = head.has(flags::END_STREAM);
        let is_padded = head.has(flags::PADDED);
        let content = if is_padded {
            head.content(payload)
                .ok_or(protocol("more padding than there is"))?
        } else {
            payload
        };
        if (head.len == 0 || (is_padded && content.is_empty())) && !ends {
            self.spend_frame()?;
        }
        if self.is_idle(head.stream) {
            return Err(protocol("content of a stream that was not opened"));
        }
        let mut event = None;
        let is_wanted = match self.streams.get_mut(head.stream) {
            None => {
                // An endpoint sends on until it hears that the client has left, in frames as
                // short as it likes.
                match self.late.checked_sub(head.len.into()) {
                    Some(late) if head.len > 0 => self.late = late,
                    _ => self.take_late(head.stream, head.kind)?,
                }
                false
            }
            Some(stream) => match stream.incoming {
                Direction::Reset(_) => {
                    if stream.is_cancelled {
                        self.take_behind_reset(head.stream)?;
                    }
                    false
                }
                Direction::Ended => {
                    event = self.reset_stream(head.stream, ErrorCode::StreamClosed)?;
                    false
                }
                Direction::Open if stream.awaited.is_some() => {
                    event = self.reset_stream(head.stream, ErrorCode::Protocol)?;
                    false
                }
                Direction::Open => {
                    stream.receive_window -= i64::from(head.len);
                    if stream.receive_window < 0 {
                        event = self.reset_stream(head.stream, ErrorCode::FlowControl)?;
                    }
                    event.is_none()
                }
            },
        };
        if is_wanted && (!content.is_empty() || (!is_padded && head.len > 0)) {
            self.idle_frames.earn(1 + head.len / CONTENT_PER_FRAME);
        }
        let coming = Coming {
            stream: head.stream,
            left: head.len,
            ends,
            is_wanted,
        };
        if !is_padded {
            self.coming = Some(coming);
            return Ok(event);
        }
        // All of it is here.
        let padding = head.len - content.len() as u32;
        self.credit(head.stream, padding);
        let coming = Coming {
            left: content.len() as u32,
            ..coming
        };
        let mut content = content;
        Ok(self.take_content(coming, &mut content)?.or(event))
    }

    /// Takes the part of coming content that is here.
    pub(super) fn take_content(&mut self, coming: Coming, input: &mut &[u8]) -> FrameResult<R> {
        let len = input.len().min(coming.left as usize);
        let (bytes, rest) = input.split_at(len);
        *input = rest;
        let left = coming.left - len as u32;
        self.coming = (left > 0).then_some(Coming { left, ..coming });
        let stream = self.streams.get_mut(coming.stream);
        let Some(stream) = stream.filter(|it| coming.is_wanted && it.incoming == Direction::Open)
        else {
            self.credit(0, len as u32);
            return Ok(None);
        };
        let is_over = coming.ends && left == 0;
        let fits = stream.take(bytes);
        if !fits || (is_over && stream.expected.is_some_and(|it| it > 0)) {
            // The window of the connection is for others.
            self.credit(0, if fits { 0 } else { len as u32 });
            return self.reset_stream(coming.stream, ErrorCode::Protocol);
        }
        if is_over {
            stream.incoming = Direction::Ended;
        }
        let is_news = len > 0 || is_over;
        Ok(is_news.then(|| Common::Readable(coming.stream).into()))
    }

    pub(super) fn take_headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &mut impl FnMut() -> Room<R>,
    ) -> FrameResult<R> {
        if head.stream.is_multiple_of(2) {
            return Err(protocol("a stream with an even number"));
        }
        let block = head
            .content(payload)
            .ok_or(protocol("HEADERS that are too short"))?;
        let ends_stream = head.has(flags::END_STREAM);
        if head.has(flags::END_HEADERS) {
            return self.take_block(head.stream, ends_stream, block, room);
        }
        self.gathering = Some(Gathering {
            stream: head.stream,
            ends_stream,
            frames: 1,
            bytes: block.to_vec(),
        });
        Ok(None)
    }

    pub(super) fn take_continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &mut impl FnMut() -> Room<R>,
    ) -> FrameResult<R> {
        let Some(gathering) = &mut self.gathering else {
            return Err(protocol("CONTINUATION of nothing"));
        };
        gathering.frames += 1;
        let len = gathering.bytes.len() + payload.len();
        if gathering.frames > BLOCK_FRAMES_MAX || len > 2 * self.settings.max_head as usize {
            let why = "a block of fields that is too long, or in too many frames";
            return Err(fatal(ErrorCode::EnhanceYourCalm, why));
        }
        gathering.bytes.extend_from_slice(payload);
        if !head.has(flags::END_HEADERS) {
            return Ok(None);
        }
        match self.gathering.take() {
            Some(it) => self.take_block(it.stream, it.ends_stream, &it.bytes, room),
            None => Ok(None),
        }
    }

    /// A whole block of fields.
    pub(super) fn take_block(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> Room<R>,
    ) -> FrameResult<R> {
        if R::defers(self, id, ends, block)? {
            return Ok(None);
        }
        self.take_block_now(id, ends, block, room)
    }

    pub(super) fn take_block_now(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> Room<R>,
    ) -> FrameResult<R> {
        let Some(stream) = self.streams.get_mut(id) else {
            if id > self.last_stream {
                return R::take_head(self, id, ends, block, room);
            }
            self.skip_block(block)?;
            return self.take_late(id, FrameKind::Headers).map(|()| None);
        };
        match stream.incoming {
            Direction::Open if stream.awaited.is_some() => {
                R::take_head(self, id, ends, block, room)
            }
            Direction::Open => self.take_trailers(id, ends, block),
            Direction::Ended => {
                self.skip_block(block)?;
                self.reset_stream(id, ErrorCode::StreamClosed)
            }
            Direction::Reset(_) => {
                let is_cancelled = stream.is_cancelled;
                self.skip_block(block)?;
                if is_cancelled {
                    self.take_behind_reset(id)?;
                }
                Ok(None)
            }
        }
    }

    /// The peer goes on with a stream that it has reset (RFC 9113 §5.1).
    fn take_behind_reset(&mut self, id: StreamId) -> Result<(), Fatal> {
        self.spend_reset()?;
        self.push_reset(id, ErrorCode::StreamClosed);
        Ok(())
    }

    pub(super) fn take_trailers(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
    ) -> FrameResult<R> {
        let mut lines = Vec::new();
        let max = self.settings.max_head as usize;
        let read = read_trailers(self.decoder.block(block), &mut lines, max);
        let read = read.map_err(|_| undecodable())?;
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        let is_short = stream.expected.is_some_and(|it| it > 0);
        if !ends || is_short || read.is_err() {
            return self.reset_stream(id, ErrorCode::Protocol);
        }
        stream.held += lines.len();
        self.held += lines.len();
        stream.trailers = lines;
        stream.incoming = Direction::Ended;
        Ok(Some(Common::Readable(id).into()))
    }

    /// Decodes a block for the table alone.
    pub(super) fn skip_block(&mut self, block: &[u8]) -> Result<(), Fatal> {
        for _ in 0..=block.len() as u32 / CONTENT_PER_FRAME {
            self.spend_frame()?;
        }
        let mut room = Vec::new();
        let mut block = self.decoder.block(block);
        loop {
            room.clear();
            match block.next(&mut room) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(_) => return Err(undecodable()),
            }
        }
    }

    pub(super) fn take_priority(&mut self, head: FrameHead, payload: &[u8]) -> FrameResult<R> {
        self.spend_frame()?;
        if payload.len() != 5 {
            return self.reset_stream(head.stream, ErrorCode::FrameSize);
        }
        Ok(None)
    }

    pub(super) fn take_reset(&mut self, head: FrameHead, payload: &[u8]) -> FrameResult<R> {
        let number = payload.try_into().map_err(|_| frame_size("RST_STREAM"))?;
        let code = ErrorCode::from_number(u32::from_be_bytes(number));
        if self.is_idle(head.stream) {
            return Err(protocol("RST_STREAM of a stream that was not opened"));
        }
        let Some(stream) = self.streams.get_mut(head.stream) else {
            return self.spend_frame().map(|()| None);
        };
        if matches!(stream.incoming, Direction::Reset(_)) {
            return self.spend_frame().map(|()| None);
        }
        R::take_reset(self, head.stream, code)
    }

    pub(super) fn take_settings(&mut self, head: FrameHead, payload: &[u8]) -> FrameResult<R> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || (head.has(flags::ACK) && !payload.is_empty()) {
            return Err(frame_size("SETTINGS"));
        }
        if self.has_settings || head.has(flags::ACK) {
            self.spend_frame()?;
        }
        if head.has(flags::ACK) {
            return Ok(None);
        }
        self.has_settings = true;
        let mut event = None;
        for setting in settings {
            let why = "SETTINGS with an invalid value";
            match Setting::read(*setting).map_err(|code| fatal(code, why))? {
                Setting::InitialWindowSize(window) => {
                    self.change_windows(window)?;
                    event = Some(Common::Writable.into());
                }
                Setting::MaxFrameSize(max) => self.peer.max_frame = max,
                Setting::HeaderTableSize(size) => {
                    self.peer.shrank_table |= size < u32::from(TABLE_SIZE);
                }
                setting => R::take_setting(self, setting)?,
            }
        }
        R::end_settings(self);
        self.reply(FrameKind::Settings, &[])?;
        Ok(event)
    }

    /// The peer has another window for each stream (RFC 9113 §6.9.2).
    pub(super) fn change_windows(&mut self, window: u32) -> Result<(), Fatal> {
        let more = i64::from(window) - i64::from(self.peer.initial_window);
        self.peer.initial_window = window;
        for (_, stream) in self.streams.iter_mut() {
            stream.send_window += more;
            if stream.send_window > i64::from(WINDOW_MAX) {
                let why = "SETTINGS make a window too large";
                return Err(fatal(ErrorCode::FlowControl, why));
            }
        }
        Ok(())
    }

    pub(super) fn take_ping(&mut self, head: FrameHead, payload: &[u8]) -> FrameResult<R> {
        let payload = payload.try_into().map_err(|_| frame_size("PING"))?;
        self.spend_frame()?;
        if head.has(flags::ACK) {
            return Ok(R::take_pong(self, payload));
        }
        self.reply(FrameKind::Ping, &payload)?;
        Ok(None)
    }

    pub(super) fn take_go_away(&mut self, payload: &[u8]) -> FrameResult<R> {
        let (numbers, _) = payload.as_chunks::<4>();
        let [last, code, ..] = numbers else {
            return Err(frame_size("GOAWAY"));
        };
        self.spend_frame()?;
        let last = u32::from_be_bytes(*last) & WINDOW_MAX;
        let code = ErrorCode::from_number(u32::from_be_bytes(*code));
        Ok(Some(R::take_go_away(self, last, code)))
    }

    pub(super) fn take_window(&mut self, head: FrameHead, payload: &[u8]) -> FrameResult<R> {
        let more = payload
            .try_into()
            .map_err(|_| frame_size("WINDOW_UPDATE"))?;
        let more = u32::from_be_bytes(more) & WINDOW_MAX;
        self.spend_frame()?;
        if self.is_idle(head.stream) {
            return Err(protocol("WINDOW_UPDATE of a stream that was not opened"));
        }
        let window = if head.stream == 0 {
            &mut self.send_window
        } else {
            match self.streams.get_mut(head.stream) {
                Some(stream) => &mut stream.send_window,
                None => return Ok(None),
            }
        };
        *window += i64::from(more);
        let code = match more {
            0 => ErrorCode::Protocol,
            _ if *window > i64::from(WINDOW_MAX) => ErrorCode::FlowControl,
            _ => return Ok(Some(Common::Writable.into())),
        };
        if head.stream == 0 {
            return Err(fatal(code, "WINDOW_UPDATE of nothing, or of too much"));
        }
        self.reset_stream(head.stream, code)
    }

    /// Whether nobody has opened this stream yet. One that nobody can open counts so.
    pub(super) fn is_idle(&self, id: StreamId) -> bool {
        id > self.last_stream || (id != 0 && id.is_multiple_of(2))
    }

    /// DATA or HEADERS came for a stream that is gone. Frames on their way when the stream was
    /// reset here are passed over.
    fn take_late(&mut self, id: StreamId, kind: FrameKind) -> Result<(), Fatal> {
        if self.were_reset.contains(&id) {
            return self.spend_frame();
        }
        R::take_late(self, id, kind)
    }

    pub(super) fn spend_frame(&mut self) -> Result<(), Fatal> {
        if self.idle_frames.spend(self.now_ms) {
            return Ok(());
        }
        let why = "too many frames without content";
        Err(fatal(ErrorCode::EnhanceYourCalm, why))
    }

    pub(super) fn spend_reset(&mut self) -> Result<(), Fatal> {
        let now_ms = self.now_ms;
        if self.resets.as_mut().is_none_or(|it| it.spend(now_ms)) {
            return Ok(());
        }
        Err(fatal(ErrorCode::EnhanceYourCalm, "too many resets"))
    }

    /// Ends a stream whose peer breaks a rule.
    pub(super) fn reset_stream(&mut self, id: StreamId, code: ErrorCode) -> FrameResult<R> {
        let stream = self.streams.get_mut(id);
        if stream.is_some_and(|it| matches!(it.incoming, Direction::Reset(_))) {
            return Ok(None);
        }
        self.spend_reset()?;
        self.push_reset(id, code);
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        stream.incoming = Direction::Reset(code);
        stream.outgoing = Direction::Reset(code);
        Ok(Some(Common::Reset(id, code).into()))
    }
}
