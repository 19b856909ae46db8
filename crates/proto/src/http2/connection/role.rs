//! The differences between the two ends of a connection.

use super::{Core, Direction, ErrorCode, Fatal, FrameKind, FrameResult, Setting, StreamId};

/// Buffers for a head: its text, and its parts.
pub type Room<R> = (Vec<u8>, Box<<R as Role>::Head>);

/// Events that both ends have.
#[derive(Debug, Clone, Copy)]
pub enum Common {
    /// Content of a message has come, or its end.
    Readable(StreamId),
    /// A stream was cut off, by either side.
    Reset(StreamId, ErrorCode),
    /// More may be sent.
    Writable,
}

/// An end of a connection: its own state, and its treatment of frames that the two ends read
/// differently.
pub trait Role: Sized {
    /// An event of the connection.
    type Event: From<Common>;
    /// The head of a message that comes.
    type Head;
    /// Whether exchanges may leave messages that still come, which is no fault of the peer.
    const LEAVES_RESPONSES: bool;

    /// An event that was not given yet.
    fn pending(core: &mut Core<Self>, room: &mut impl FnMut() -> Room<Self>) -> FrameResult<Self>;

    /// Whether a block has to wait. A block that waits is kept.
    fn defers(core: &mut Core<Self>, id: StreamId, ends: bool, block: &[u8])
    -> Result<bool, Fatal>;

    /// Streams whose requests were not given as events yet.
    fn deferred(core: &Core<Self>) -> usize;

    /// Takes the block of a head. The stream is not open yet, or awaits it.
    fn take_head(
        core: &mut Core<Self>,
        id: StreamId,
        ends: bool,
        block: &[u8],
        room: &mut impl FnMut() -> Room<Self>,
    ) -> FrameResult<Self>;

    /// Takes RST_STREAM for a stream that was not reset before.
    fn take_reset(core: &mut Core<Self>, id: StreamId, code: ErrorCode) -> FrameResult<Self>;

    /// Takes DATA or HEADERS for a stream that is gone, other than by a reset of ours. The block
    /// of HEADERS was decoded.
    fn take_late(core: &mut Core<Self>, id: StreamId, kind: FrameKind) -> Result<(), Fatal>;

    /// Takes a setting that means nothing to the other role.
    fn take_setting(core: &mut Core<Self>, setting: Setting) -> Result<(), Fatal>;

    /// All of a SETTINGS frame was taken.
    fn end_settings(core: &mut Core<Self>);

    /// Takes the answer to a PING.
    fn take_pong(core: &mut Core<Self>, payload: [u8; 8]) -> Option<Self::Event>;

    /// Takes GOAWAY.
    fn take_go_away(core: &mut Core<Self>, last: StreamId, code: ErrorCode) -> Self::Event;

    /// Takes PRIORITY_UPDATE.
    fn take_priority_update(core: &mut Core<Self>, payload: &[u8]) -> Result<(), Fatal>;

    /// The last stream of the peer that was served.
    fn last_served(core: &Core<Self>) -> StreamId;

    /// The code of the reset for a released stream with a direction that is still open. `code` is
    /// that of a failed exchange.
    fn release_code(incoming: Direction, outgoing: Direction, code: ErrorCode) -> ErrorCode;

    /// Gives back memory that it does not need while idle.
    fn shrink(&mut self);
}
