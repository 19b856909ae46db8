//! Frames: their nine bytes of head, and the payload of short ones (RFC 9113
//! §4, §6).

/// Bytes of a frame's head.
pub const HEAD_LEN: usize = 9;
/// The first bytes of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The longest payload before the peer has allowed a longer one (RFC 9113 §6.5.2).
pub const PAYLOAD_MAX: u32 = 16_384;
/// The largest window, in bytes (RFC 9113 §6.9.1).
pub const WINDOW_MAX: u32 = (1 << 31) - 1;
/// The window of a stream and of a connection at its beginning, in bytes.
pub const WINDOW_FIRST: u32 = 65_535;

/// The meaning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Content.
    Data,
    /// The head of a message, or its trailers.
    Headers,
    /// A priority by RFC 7540: read and ignored.
    Priority,
    /// A stream ends at once.
    RstStream,
    /// The limits and abilities of the peer.
    Settings,
    /// A response that nobody asked for.
    PushPromise,
    /// Whether the peer is there.
    Ping,
    /// No new streams.
    GoAway,
    /// More bytes may be sent.
    WindowUpdate,
    /// More of a block of fields.
    Continuation,
    /// The priority of a stream (RFC 9218 §7.1).
    PriorityUpdate,
    /// One that nobody here knows: it is ignored (RFC 9113 §5.5).
    Unknown,
}

impl FrameKind {
    fn from_number(number: u8) -> Self {
        match number {
            0 => FrameKind::Data,
            1 => FrameKind::Headers,
            2 => FrameKind::Priority,
            3 => FrameKind::RstStream,
            4 => FrameKind::Settings,
            5 => FrameKind::PushPromise,
            6 => FrameKind::Ping,
            7 => FrameKind::GoAway,
            8 => FrameKind::WindowUpdate,
            9 => FrameKind::Continuation,
            0x10 => FrameKind::PriorityUpdate,
            _ => FrameKind::Unknown,
        }
    }

    fn number(self) -> u8 {
        match self {
            FrameKind::Data => 0,
            FrameKind::Headers => 1,
            FrameKind::Priority => 2,
            FrameKind::RstStream => 3,
            FrameKind::Settings => 4,
            FrameKind::PushPromise => 5,
            FrameKind::Ping => 6,
            FrameKind::GoAway => 7,
            FrameKind::WindowUpdate => 8,
            FrameKind::Continuation => 9,
            FrameKind::PriorityUpdate => 0x10,
            FrameKind::Unknown => 0xff,
        }
    }
}

/// Flags of frames.
pub mod flags {
    /// The last frame of a stream, of DATA and HEADERS.
    pub const END_STREAM: u8 = 0x1;
    /// An answer, of SETTINGS and PING.
    pub const ACK: u8 = 0x1;
    /// The last frame of a block of fields.
    pub const END_HEADERS: u8 = 0x4;
    /// A length of padding stands first, and padding last.
    pub const PADDED: u8 = 0x8;
    /// Five bytes of priority stand first, in HEADERS.
    pub const PRIORITY: u8 = 0x20;
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of payload behind it.
    pub len: u32,
    /// Its meaning.
    pub kind: FrameKind,
    /// See [`flags`].
    pub flags: u8,
    /// Its stream; 0 for the connection.
    pub stream: u32,
}

impl FrameHead {
    /// Reads one.
    pub fn read(bytes: &[u8; HEAD_LEN]) -> Self {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = *bytes;
        FrameHead {
            len: u32::from_be_bytes([0, a, b, c]),
            kind: FrameKind::from_number(kind),
            flags,
            // The first bit means nothing.
            stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
        }
    }

    /// The bytes that stand for it.
    pub fn bytes(self) -> [u8; HEAD_LEN] {
        let [_, a, b, c] = self.len.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [a, b, c, self.kind.number(), self.flags, s0, s1, s2, s3]
    }

    /// Whether it has this flag.
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload of DATA or HEADERS without padding and priority. `None` where these
    /// take more than there is.
    pub fn content(self, payload: &[u8]) -> Option<&[u8]> {
        let (mut rest, mut padding) = (payload, 0);
        if self.has(flags::PADDED) {
            let (len, behind) = rest.split_first()?;
            (rest, padding) = (behind, usize::from(*len));
        }
        if self.kind == FrameKind::Headers && self.has(flags::PRIORITY) {
            rest = rest.get(5..)?;
        }
        rest.get(..rest.len().checked_sub(padding)?)
    }
}

/// Why a stream or a connection ends (RFC 9113 §7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// Nothing is wrong.
    NoError,
    /// A rule of the protocol is broken.
    Protocol,
    /// A fault of the sender's own.
    Internal,
    /// More was sent than the window allows.
    FlowControl,
    /// SETTINGS were not confirmed in time.
    SettingsTimeout,
    /// A frame came for a stream whose sender has ended it.
    StreamClosed,
    /// A frame has a length that it can't have.
    FrameSize,
    /// Nothing was done for the stream: it may be tried again.
    RefusedStream,
    /// Nobody wants the stream any more.
    Cancel,
    /// A block of fields can't be decoded.
    Compression,
    /// A connection that CONNECT asked for has failed.
    Connect,
    /// The peer makes too much work.
    EnhanceYourCalm,
    /// TLS is not as RFC 9113 §9.2 wants it.
    InadequateSecurity,
    /// It should be asked for over HTTP/1.1.
    Http11Required,
    /// One that nobody here knows.
    Other,
}

impl ErrorCode {
    const ALL: [ErrorCode; 14] = [
        ErrorCode::NoError,
        ErrorCode::Protocol,
        ErrorCode::Internal,
        ErrorCode::FlowControl,
        ErrorCode::SettingsTimeout,
        ErrorCode::StreamClosed,
        ErrorCode::FrameSize,
        ErrorCode::RefusedStream,
        ErrorCode::Cancel,
        ErrorCode::Compression,
        ErrorCode::Connect,
        ErrorCode::EnhanceYourCalm,
        ErrorCode::InadequateSecurity,
        ErrorCode::Http11Required,
    ];

    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];

    /// Its name, as RFC 9113 §7 has it.
    pub fn name(self) -> &'static str {
        let known = ErrorCode::ALL.iter().position(|it| *it == self);
        known.map_or("an unknown code", |at| ErrorCode::NAMES[at])
    }

    /// The code of this number.
    pub fn from_number(number: u32) -> Self {
        let code = ErrorCode::ALL.get(number as usize);
        code.copied().unwrap_or(ErrorCode::Other)
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match ErrorCode::ALL.iter().position(|it| *it == self) {
            Some(number) => number as u32,
            None => ErrorCode::Internal.number(),
        }
    }
}

/// Settings that a peer sends (RFC 9113 §6.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Bytes of the table that its decoder has.
    HeaderTableSize(u32),
    /// Whether it takes PUSH_PROMISE.
    EnablePush(bool),
    /// Streams that the other side may have open.
    MaxConcurrentStreams(u32),
    /// The window of a new stream, in bytes.
    InitialWindowSize(u32),
    /// The longest payload that it takes, in bytes.
    MaxFrameSize(u32),
    /// The largest head that it takes, with 32 bytes for each field.
    MaxHeaderListSize(u32),
    /// Whether CONNECT may name a protocol (RFC 8441 §3).
    EnableConnectProtocol(bool),
    /// Whether the priorities of RFC 7540 are not used (RFC 9218 §2.1).
    NoRfc7540Priorities(bool),
    /// One that nobody here knows: it is ignored.
    Unknown,
}

impl Setting {
    /// Reads one.
    ///
    /// # Errors
    /// Its value is one that it can't have; the connection ends with this code.
    pub fn read(bytes: [u8; 6]) -> Result<Self, ErrorCode> {
        let [n0, n1, v0, v1, v2, v3] = bytes;
        let value = u32::from_be_bytes([v0, v1, v2, v3]);
        let flag = match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ErrorCode::Protocol),
        };
        Ok(match u16::from_be_bytes([n0, n1]) {
            1 => Setting::HeaderTableSize(value),
            2 => Setting::EnablePush(flag?),
            3 => Setting::MaxConcurrentStreams(value),
            4 if value > WINDOW_MAX => return Err(ErrorCode::FlowControl),
            4 => Setting::InitialWindowSize(value),
            5 if !(PAYLOAD_MAX..1 << 24).contains(&value) => return Err(ErrorCode::Protocol),
            5 => Setting::MaxFrameSize(value),
            6 => Setting::MaxHeaderListSize(value),
            8 => Setting::EnableConnectProtocol(flag?),
            9 => Setting::NoRfc7540Priorities(flag?),
            _ => Setting::Unknown,
        })
    }

    /// Appends it to a payload.
    pub fn push(self, out: &mut Vec<u8>) {
        let (number, value) = match self {
            Setting::HeaderTableSize(value) => (1u16, value),
            Setting::EnablePush(it) => (2, u32::from(it)),
            Setting::MaxConcurrentStreams(value) => (3, value),
            Setting::InitialWindowSize(value) => (4, value),
            Setting::MaxFrameSize(value) => (5, value),
            Setting::MaxHeaderListSize(value) => (6, value),
            Setting::EnableConnectProtocol(it) => (8, u32::from(it)),
            Setting::NoRfc7540Priorities(it) => (9, u32::from(it)),
            Setting::Unknown => return,
        };
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        for number in 0..=255u8 {
            let bytes = [1, 2, 3, number, 0x2d, 0x81, 2, 3, 4];
            let head = FrameHead::read(&bytes);
            assert_eq!(head.len, 0x01_02_03);
            assert_eq!(head.stream, 0x01_02_03_04);
            let is_known = head.kind != FrameKind::Unknown;
            let expected = [1, 2, 3, number, 0x2d, 1, 2, 3, 4];
            assert_eq!(head.bytes() == expected, is_known || number == 255);
        }
    }

    #[test]
    fn padding_and_priority_are_no_content() {
        let head = |kind, flags| FrameHead {
            len: 0,
            kind,
            flags,
            stream: 1,
        };
        let data = head(FrameKind::Data, flags::PADDED);
        assert_eq!(data.content(&[1, b'a', 0]), Some(&b"a"[..]));
        assert_eq!(data.content(&[2, 0, 0]), Some(&b""[..]));
        assert_eq!(data.content(&[3, 0, 0]), None);
        assert_eq!(data.content(&[]), None);
        let headers = head(FrameKind::Headers, flags::PADDED | flags::PRIORITY);
        assert_eq!(headers.content(b"\x01pppppab"), Some(&b"a"[..]));
        assert_eq!(headers.content(b"\x00ppppp"), Some(&b""[..]));
        assert_eq!(headers.content(b"\x01ppppp"), None);
        assert_eq!(headers.content(b"\x00pppp"), None);
    }

    #[test]
    fn settings_have_their_ranges() {
        let read = |number: u16, value: u32| {
            let mut bytes = [0; 6];
            bytes[..2].copy_from_slice(&number.to_be_bytes());
            bytes[2..].copy_from_slice(&value.to_be_bytes());
            Setting::read(bytes)
        };
        for (number, value, expected) in [
            (1, 0, Ok(Setting::HeaderTableSize(0))),
            (2, 1, Ok(Setting::EnablePush(true))),
            (2, 2, Err(ErrorCode::Protocol)),
            (3, 7, Ok(Setting::MaxConcurrentStreams(7))),
            (4, WINDOW_MAX, Ok(Setting::InitialWindowSize(WINDOW_MAX))),
            (4, WINDOW_MAX + 1, Err(ErrorCode::FlowControl)),
            (5, 16_383, Err(ErrorCode::Protocol)),
            (5, 16_384, Ok(Setting::MaxFrameSize(16_384))),
            (5, (1 << 24) - 1, Ok(Setting::MaxFrameSize((1 << 24) - 1))),
            (5, 1 << 24, Err(ErrorCode::Protocol)),
            (6, 9, Ok(Setting::MaxHeaderListSize(9))),
            (8, 1, Ok(Setting::EnableConnectProtocol(true))),
            (8, 2, Err(ErrorCode::Protocol)),
            (9, 1, Ok(Setting::NoRfc7540Priorities(true))),
            (7, 1, Ok(Setting::Unknown)),
        ] {
            let found = read(number, value);
            assert_eq!(found, expected, "{number} {value}");
            if let Ok(setting) = found
                && setting != Setting::Unknown
            {
                let mut out = Vec::new();
                setting.push(&mut out);
                assert_eq!(Setting::read(out.try_into().unwrap()), Ok(setting));
            }
        }
    }

    #[test]
    fn codes_have_their_numbers() {
        for number in 0..14 {
            assert_eq!(ErrorCode::from_number(number).number(), number);
        }
        assert_eq!(ErrorCode::from_number(14), ErrorCode::Other);
        assert_eq!(ErrorCode::EnhanceYourCalm.number(), 11);
    }
}
