//! A probe in another protocol than HTTP: the I/O of a [`Dialogue`].

use std::time::Duration;

use evenkeel_proto::probe::{Dialogue, Fault, Step};

use super::{Awaited, ProbeFailure, Progress, ReceivedExcerpt, read, send};
use crate::net::stream::Stream;

/// Most bytes of an unfinished message.
const MAX_INPUT: usize = 16 * 1024;
/// Longest time that a server has to close after a farewell.
const MOST_LEAVING: Duration = Duration::from_millis(100);
/// Most bytes that are read after a farewell.
const MOST_LEFT: usize = 64 * 1024;

/// A server that is well.
pub(super) struct HealthyServer {
    /// The proof.
    pub seen: String,
    /// The bytes to send before the connection is closed.
    pub farewell: Vec<u8>,
}

/// Talks until the dialogue has found how the server is.
pub(super) async fn talk(
    stream: &mut Stream,
    dialogue: &mut impl Dialogue,
    progress: &Progress,
) -> Result<HealthyServer, ProbeFailure> {
    let mut input = Vec::new();
    let mut to_send = dialogue.opening();
    loop {
        progress.note(dialogue.awaited(), &input);
        if !to_send.is_empty() {
            // An answer may come even if not all was sent.
            let _ = send(stream, &to_send).await;
            to_send.clear();
        }
        match dialogue.handle_input(&input).map_err(ProbeFailure::Fault)? {
            Step::Alive { seen, farewell } => return Ok(HealthyServer { seen, farewell }),
            Step::Go { consumed, send } => {
                input.drain(..consumed);
                to_send = send;
            }
            Step::Wait if input.len() >= MAX_INPUT => {
                let fault = Fault::unexpected(&dialogue.awaited(), &input);
                return Err(ProbeFailure::Fault(fault));
            }
            Step::Wait => match read(stream, &mut input, MAX_INPUT).await {
                Ok(0) => {
                    return Err(ProbeFailure::Closed {
                        awaited: Awaited::Words(dialogue.awaited()),
                        came: ReceivedExcerpt::begin_of(&input),
                    });
                }
                Ok(_) => {}
                Err(error) => return Err(ProbeFailure::Broken(error)),
            },
        }
    }
}

/// Says the farewell, and lets the server close: a broken connection would be
/// an error in its log.
pub(super) async fn leave(stream: &mut Stream, farewell: &[u8]) {
    if farewell.is_empty() {
        return;
    }
    let leaving = async {
        let mut left = 0;
        let mut buffer = Vec::new();
        let mut is_open = send(stream, farewell).await.is_ok();
        while is_open && left < MOST_LEFT {
            buffer.clear();
            let len = read(stream, &mut buffer, MOST_LEFT).await.unwrap_or(0);
            left += len;
            is_open = len > 0;
        }
    };
    let _ = tokio::time::timeout(MOST_LEAVING, leaving).await;
}
