//! Frames of the peer, and what they change.

use super::*;

/// Frames that came.
impl Connection {
    pub(super) fn begin_content(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Fatal> {
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
        self.idle_frames.earn(head.len / CONTENT_PER_FRAME);
        if self.is_idle(head.stream) {
            return Err(protocol("content of a stream that was not opened"));
        }
        let mut event = None;
        let is_wanted = match self.streams.get_mut(head.stream) {
            None => {
                self.is_late(head.stream)?;
                false
            }
            Some(stream) => match stream.incoming {
                Direction::Reset(_) => false,
                Direction::Ended => {
                    event = self.reset_stream(head.stream, ErrorCode::StreamClosed)?;
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

    /// Takes what is here of content that is on its way.
    pub(super) fn take_content(
        &mut self,
        coming: Coming,
        input: &mut &[u8],
    ) -> Result<Option<Event>, Fatal> {
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
        Ok(is_news.then_some(Event::Readable(coming.stream)))
    }

    pub(super) fn take_headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
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
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
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
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Option<Event>, Fatal> {
        if let Some(stream) = self.streams.get_mut(id) {
            return match stream.incoming {
                Direction::Open => self.take_trailers(id, ends, block),
                Direction::Ended => {
                    self.skip_block(block)?;
                    self.reset_stream(id, ErrorCode::StreamClosed)
                }
                Direction::Reset(_) => self.skip_block(block).map(|()| None),
            };
        }
        if id <= self.last_stream {
            self.skip_block(block)?;
            if self.were_reset.contains(&id) {
                return Ok(None);
            }
            let why = "HEADERS of a stream that was closed";
            return Err(fatal(ErrorCode::StreamClosed, why));
        }
        self.last_stream = id;
        let is_beyond = self.goes_away.is_some_and(|last| id > last);
        if is_beyond || self.streams.len() >= self.settings.max_streams as usize {
            self.skip_block(block)?;
            if !is_beyond {
                self.spend_reset()?;
            }
            self.push_reset(id, ErrorCode::RefusedStream);
            return Ok(None);
        }
        self.take_request(id, ends, block, room).map(Some)
    }

    pub(super) fn take_request(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> (Vec<u8>, Box<RequestHead>),
    ) -> Result<Event, Fatal> {
        let (mut bytes, mut head) = room();
        let block = self.decoder.block(block);
        let max = self.settings.max_head as usize;
        let read = self.reader.read(block, &mut bytes, &mut head, max, ends);
        let refused = match read {
            Ok(_) => None,
            Err(HeadFault::Refused(error)) => Some(error),
            Err(HeadFault::Decoding(_)) => return Err(undecodable()),
            Err(HeadFault::Malformed) => {
                self.spend_reset()?;
                self.push_reset(id, ErrorCode::Protocol);
                return Ok(Event::Reset(id, ErrorCode::Protocol));
            }
        };
        self.idle_frames.earn(1);
        self.turns += 1;
        let framing = refused.is_none().then_some(head.wire.framing);
        self.streams.insert(
            id,
            Stream {
                incoming: if ends {
                    Direction::Ended
                } else {
                    Direction::Open
                },
                outgoing: Direction::Open,
                content: Vec::new(),
                read: 0,
                trailers: Vec::new(),
                receive_window: i64::from(self.settings.stream_window),
                uncredited: 0,
                send_window: i64::from(self.peer.initial_window),
                expected: match framing {
                    Some(BodyFraming::Length { bytes }) => Some(bytes),
                    Some(BodyFraming::None) => Some(0),
                    _ => None,
                },
                waits: false,
                turn: self.turns,
                priority: Priority::of(&head, &bytes),
            },
        );
        Ok(match (read, refused) {
            (Ok(asked), None) => Event::Request(id, Request { bytes, head, asked }),
            (_, error) => Event::Refused(id, error.unwrap_or(RequestError::FieldName)),
        })
    }

    pub(super) fn take_trailers(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
    ) -> Result<Option<Event>, Fatal> {
        let mut lines = Vec::new();
        let max = self.settings.max_head as usize;
        let read = read_trailers(self.decoder.block(block), &mut lines, max);
        if let Err(HeadFault::Decoding(_)) = read {
            return Err(undecodable());
        }
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        let is_short = stream.expected.is_some_and(|it| it > 0);
        if !ends || is_short || read.is_err() {
            return self.reset_stream(id, ErrorCode::Protocol);
        }
        stream.trailers = lines;
        stream.incoming = Direction::Ended;
        Ok(Some(Event::Readable(id)))
    }

    /// Decodes a block for the table alone.
    pub(super) fn skip_block(&mut self, block: &[u8]) -> Result<(), Fatal> {
        self.spend_frame()?;
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

    pub(super) fn take_priority(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Fatal> {
        self.spend_frame()?;
        if payload.len() != 5 {
            return self.reset_stream(head.stream, ErrorCode::FrameSize);
        }
        Ok(None)
    }

    pub(super) fn take_reset(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Fatal> {
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
        let was_answered = stream.outgoing == Direction::Ended;
        stream.incoming = Direction::Reset(code);
        stream.outgoing = Direction::Reset(code);
        if !was_answered {
            self.spend_reset()?;
        }
        Ok(Some(Event::Reset(head.stream, code)))
    }

    pub(super) fn take_settings(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Fatal> {
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
            let why = "SETTINGS with a value that can't be";
            match Setting::read(*setting).map_err(|code| fatal(code, why))? {
                Setting::InitialWindowSize(window) => {
                    self.change_windows(window)?;
                    event = Some(Event::Writable);
                }
                Setting::MaxFrameSize(max) => self.peer.max_frame = max,
                _ => {}
            }
        }
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

    pub(super) fn take_ping(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Fatal> {
        if payload.len() != 8 {
            return Err(frame_size("PING"));
        }
        self.spend_frame()?;
        if !head.has(flags::ACK) {
            self.reply(FrameKind::Ping, payload)?;
        } else if self.is_leaving && payload == SHUTDOWN_PING {
            self.shut_down();
        }
        Ok(None)
    }

    pub(super) fn take_window(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Fatal> {
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
            _ => return Ok(Some(Event::Writable)),
        };
        if head.stream == 0 {
            return Err(fatal(code, "WINDOW_UPDATE of nothing, or of too much"));
        }
        self.reset_stream(head.stream, code)
    }

    pub(super) fn take_priority_update(&mut self, payload: &[u8]) -> Result<Option<Event>, Fatal> {
        self.spend_frame()?;
        let (stream, value) = payload
            .split_first_chunk()
            .ok_or(frame_size("PRIORITY_UPDATE"))?;
        let id = u32::from_be_bytes(*stream) & WINDOW_MAX;
        if id == 0 {
            return Err(protocol("PRIORITY_UPDATE of the connection"));
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.priority = Priority::read(value);
        }
        Ok(None)
    }

    /// Whether the peer has not opened this stream yet. What it can't open counts so.
    pub(super) fn is_idle(&self, id: StreamId) -> bool {
        id > self.last_stream || (id != 0 && id.is_multiple_of(2))
    }

    /// Content came for a stream that is gone.
    pub(super) fn is_late(&mut self, id: StreamId) -> Result<(), Fatal> {
        if !self.were_reset.contains(&id) {
            self.spend_reset()?;
            self.push_reset(id, ErrorCode::StreamClosed);
        }
        Ok(())
    }

    pub(super) fn spend_frame(&mut self) -> Result<(), Fatal> {
        if self.idle_frames.spend(self.now_ms) {
            return Ok(());
        }
        let why = "too many frames that bring nothing";
        Err(fatal(ErrorCode::EnhanceYourCalm, why))
    }

    pub(super) fn spend_reset(&mut self) -> Result<(), Fatal> {
        if self.resets.spend(self.now_ms) {
            return Ok(());
        }
        Err(fatal(ErrorCode::EnhanceYourCalm, "too many resets"))
    }

    /// Ends a stream whose peer breaks a rule.
    pub(super) fn reset_stream(
        &mut self,
        id: StreamId,
        code: ErrorCode,
    ) -> Result<Option<Event>, Fatal> {
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
        Ok(Some(Event::Reset(id, code)))
    }
}
