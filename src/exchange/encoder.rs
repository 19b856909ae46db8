//! Encoders of content codings that take a body piece by piece.
//!
//! An encoder is made for one body. Encoders that are slow to make are reused through
//! [`Encoders`]; each worker has one.

mod brotli_state;

use std::cell::{Cell, RefCell};
use std::fmt;

use brotli::enc::encode::BrotliEncoderOperation;
use evenkeel_proto::coding::Coding;
use flate2::{Compress, Compression, FlushCompress, Status};
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective as EndDirective;
use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

use crate::config::ResponseCompression;
use brotli_state::BrotliState;

/// Room for the output of an encoder, in bytes.
const ROOM: usize = 16 * 1024;
/// Window of gzip, as a power of two: the largest possible.
const GZIP_WINDOW: u8 = 15;
/// Windows of the other codings, as a power of two. Larger ones cost each exchange megabytes, and
/// gain little for responses shorter than that.
const BROTLI_WINDOW: u32 = 18;
/// Smallest window that saves anything.
const BROTLI_WINDOW_MIN: u32 = 16;
const ZSTD_WINDOW: u32 = 18;
/// Most idle encoders that a worker keeps for each coding.
const IDLE_MAX: usize = 4;

/// An encoder can't continue, for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EncoderFailed;

/// The encoder of one body.
pub(super) struct Encoder {
    state: State,
    /// Whether it holds bytes of the body.
    is_holding: bool,
}

enum State {
    Gzip(Box<Compress>),
    Brotli(Box<BrotliState>),
    Zstd(Box<CCtx<'static>>),
}

/// The fate of the bytes that an encoder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Keep them.
    GoOn,
    /// Write them, so that a decoder has the whole input.
    Flush,
    /// Write them, and end the body.
    Finish,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("coding", &self.coding())
            .field("is_holding", &self.is_holding)
            .finish()
    }
}

impl Encoder {
    /// An encoder of this coding with the settings' effort, for a body of `len` bytes, where that
    /// is known.
    ///
    /// # Errors
    /// No memory for the encoder.
    pub fn new(
        coding: Coding,
        settings: &ResponseCompression,
        len: Option<u64>,
    ) -> Result<Self, EncoderFailed> {
        let state = match coding {
            Coding::Gzip => {
                let level = Compression::new(settings.gzip_level);
                State::Gzip(Box::new(Compress::new_gzip(level, GZIP_WINDOW)))
            }
            Coding::Brotli => {
                let window = len.map_or(BROTLI_WINDOW, |len| u64::BITS - len.leading_zeros());
                let window = window.clamp(BROTLI_WINDOW_MIN, BROTLI_WINDOW);
                let state = BrotliState::new(settings.br_level, window);
                State::Brotli(Box::new(state))
            }
            Coding::Zstd => {
                let mut context = CCtx::try_create().ok_or(EncoderFailed)?;
                let level = settings.zstd_level as i32;
                for parameter in [
                    CParameter::CompressionLevel(level),
                    CParameter::WindowLog(ZSTD_WINDOW),
                ] {
                    context
                        .set_parameter(parameter)
                        .map_err(|_| EncoderFailed)?;
                }
                State::Zstd(Box::new(context))
            }
        };
        Ok(Encoder {
            state,
            is_holding: false,
        })
    }

    /// Sets the length of the body, where that is known. zstd needs less memory for a short body.
    ///
    /// # Errors
    /// The encoder is within a body.
    fn expect(&mut self, len: Option<u64>) -> Result<(), EncoderFailed> {
        match &mut self.state {
            State::Zstd(context) => {
                let said = context.set_pledged_src_size(len);
                said.map(drop).map_err(|_| EncoderFailed)
            }
            State::Gzip(_) | State::Brotli(_) => Ok(()),
        }
    }

    /// Its coding.
    pub fn coding(&self) -> Coding {
        match self.state {
            State::Gzip(_) => Coding::Gzip,
            State::Brotli(_) => Coding::Brotli,
            State::Zstd(_) => Coding::Zstd,
        }
    }

    /// Whether it holds bytes that a decoder lacks.
    pub fn is_holding(&self) -> bool {
        self.is_holding
    }

    /// Takes all of `input`, and appends the output to `out`.
    ///
    /// # Errors
    /// It can't go on.
    pub fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), EncoderFailed> {
        self.is_holding |= !input.is_empty();
        self.run(input, out, Then::GoOn)
    }

    /// Appends the pending bytes to `out`.
    ///
    /// # Errors
    /// It can't go on.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFailed> {
        self.is_holding = false;
        self.run(&[], out, Then::Flush)
    }

    /// Ends the body, and appends the last bytes to `out`.
    ///
    /// # Errors
    /// It can't go on.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFailed> {
        self.is_holding = false;
        self.run(&[], out, Then::Finish)
    }

    fn run(&mut self, input: &[u8], out: &mut Vec<u8>, then: Then) -> Result<(), EncoderFailed> {
        match &mut self.state {
            State::Gzip(compress) => run_gzip(compress, input, out, then),
            State::Brotli(state) => run_brotli(state, input, out, then),
            State::Zstd(context) => run_zstd(context, input, out, then),
        }
    }

    /// Resets the encoder for another body; `None` if it can't be reused.
    fn renewed(mut self) -> Option<Self> {
        match &mut self.state {
            State::Gzip(compress) => compress.reset(),
            State::Brotli(_) => return None,
            State::Zstd(context) => {
                context.reset(ResetDirective::SessionOnly).ok()?;
            }
        }
        self.is_holding = false;
        Some(self)
    }
}

fn run_gzip(
    compress: &mut Compress,
    mut input: &[u8],
    out: &mut Vec<u8>,
    then: Then,
) -> Result<(), EncoderFailed> {
    let flush = match then {
        Then::GoOn => FlushCompress::None,
        Then::Flush => FlushCompress::Sync,
        Then::Finish => FlushCompress::Finish,
    };
    loop {
        if out.capacity() - out.len() < ROOM / 4 {
            out.reserve(ROOM);
        }
        let (taken, room) = (compress.total_in(), out.capacity() - out.len());
        let before = out.len();
        let status = compress.compress_vec(input, out, flush);
        let status = status.map_err(|_| EncoderFailed)?;
        input = &input[(compress.total_in() - taken) as usize..];
        let has_room = out.len() - before < room;
        let is_through = match then {
            Then::Finish => status == Status::StreamEnd,
            Then::GoOn | Then::Flush => input.is_empty() && has_room,
        };
        if is_through {
            return Ok(());
        }
    }
}

fn run_brotli(
    state: &mut BrotliState,
    input: &[u8],
    out: &mut Vec<u8>,
    then: Then,
) -> Result<(), EncoderFailed> {
    let operation = match then {
        Then::GoOn => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
        Then::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
        Then::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
    };
    state.run(operation, input, out)
}

fn run_zstd(
    context: &mut CCtx<'_>,
    input: &[u8],
    out: &mut Vec<u8>,
    then: Then,
) -> Result<(), EncoderFailed> {
    let directive = match then {
        Then::GoOn => EndDirective::ZSTD_e_continue,
        Then::Flush => EndDirective::ZSTD_e_flush,
        Then::Finish => EndDirective::ZSTD_e_end,
    };
    let mut input = InBuffer::around(input);
    loop {
        if out.capacity() - out.len() < ROOM / 4 {
            out.reserve(ROOM);
        }
        let len = out.len();
        let mut to = OutBuffer::around_pos(out, len);
        let left = context.compress_stream2(&mut to, &mut input, directive);
        let left = left.map_err(|_| EncoderFailed)?;
        let is_through = match then {
            Then::GoOn => input.pos == input.src.len(),
            Then::Flush | Then::Finish => left == 0,
        };
        if is_through {
            return Ok(());
        }
    }
}

/// A worker's encoders: the idle ones, and the number in use.
#[derive(Debug, Default)]
pub struct Encoders {
    /// Idle encoders, after [`Encoder::renewed`].
    idle: RefCell<Vec<Idle>>,
    in_use: Cell<usize>,
}

#[derive(Debug)]
struct Idle {
    encoder: Encoder,
    /// The effort that it was made with.
    level: u32,
}

impl Encoders {
    /// Number of bodies that are being encoded.
    pub(super) fn in_use(&self) -> usize {
        self.in_use.get()
    }

    /// An idle encoder or a new one, for a body of `len` bytes, where that is known.
    ///
    /// # Errors
    /// No memory for an encoder.
    pub(super) fn take(
        &self,
        coding: Coding,
        settings: &ResponseCompression,
        len: Option<u64>,
    ) -> Result<Encoder, EncoderFailed> {
        let level = level(coding, settings);
        let mut idle = self.idle.borrow_mut();
        let is_same = |it: &Idle| it.encoder.coding() == coding && it.level == level;
        let mut encoder = match idle.iter().rposition(is_same) {
            Some(at) => idle.swap_remove(at).encoder,
            None => Encoder::new(coding, settings, len)?,
        };
        encoder.expect(len)?;
        self.in_use.update(|it| it + 1);
        Ok(encoder)
    }

    /// Keeps an encoder whose body has ended or was given up.
    pub(super) fn put(&self, encoder: Encoder, level: u32) {
        self.in_use.update(|it| it - 1);
        let coding = encoder.coding();
        let Some(encoder) = encoder.renewed() else {
            return;
        };
        let mut idle = self.idle.borrow_mut();
        let alike = idle.iter().filter(|it| it.encoder.coding() == coding);
        if alike.count() == IDLE_MAX
            && let Some(at) = idle.iter().position(|it| it.encoder.coding() == coding)
        {
            idle.swap_remove(at);
        }
        idle.push(Idle { encoder, level });
    }
}

/// The effort for a coding in these settings.
pub(super) fn level(coding: Coding, settings: &ResponseCompression) -> u32 {
    match coding {
        Coding::Gzip => settings.gzip_level,
        Coding::Brotli => settings.br_level,
        Coding::Zstd => settings.zstd_level,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Decodes a body that may be truncated.
    fn decoded(bytes: &[u8], coding: Coding) -> Vec<u8> {
        let mut out = Vec::new();
        // For a truncated body the decoder returns its output first, and then an error.
        let _ = match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
            Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
            Coding::Zstd => zstd::stream::read::Decoder::new(bytes)
                .and_then(|mut decoder| decoder.read_to_end(&mut out)),
        };
        out
    }

    fn settings() -> ResponseCompression {
        ResponseCompression {
            types: vec!["text/".to_owned()],
            min_bytes: 0,
            codings: Coding::ALL.to_vec(),
            gzip_level: 4,
            br_level: 4,
            zstd_level: 3,
            at_once: 10,
            off_above_queue: 0,
        }
    }

    fn text(len: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(3);
        let words = ["small", "words", "of", "a", "text", "\n", "<p>", "</p>"];
        let mut text = Vec::new();
        while text.len() < len {
            text.extend_from_slice(words[random.usize(..words.len())].as_bytes());
            text.push(b' ');
        }
        text.truncate(len);
        text
    }

    #[test]
    fn a_body_in_pieces_is_whole_when_it_is_decoded() {
        let mut random = fastrand::Rng::with_seed(5);
        for coding in Coding::ALL {
            for len in [0, 1, 1000, 300_000] {
                let body = text(len);
                let known = random.bool().then_some(len as u64);
                let encoders = Encoders::default();
                let mut encoder = encoders.take(coding, &settings(), known).expect("memory");
                let (mut out, mut rest) = (Vec::new(), &body[..]);
                while !rest.is_empty() {
                    let piece = random.usize(1..=rest.len().min(40_000));
                    encoder.take(&rest[..piece], &mut out).expect("it goes on");
                    rest = &rest[piece..];
                    if random.u8(..) < 20 {
                        encoder.flush(&mut out).expect("it goes on");
                    }
                }
                encoder.finish(&mut out).expect("it goes on");
                assert!(!out.is_empty(), "{coding:?} {len}");
                assert_eq!(decoded(&out, coding), body, "{coding:?} {len}");
                assert!(
                    len < 300_000 || out.len() < len / 3,
                    "{coding:?} {}",
                    out.len()
                );
            }
        }
    }

    #[test]
    fn a_flush_brings_all_that_was_given() {
        for coding in Coding::ALL {
            let mut encoder = Encoder::new(coding, &settings(), None).expect("memory");
            let mut out = Vec::new();
            for (index, piece) in ["one ", "two ", "three "].iter().enumerate() {
                encoder
                    .take(piece.as_bytes(), &mut out)
                    .expect("it goes on");
                assert!(encoder.is_holding(), "{coding:?}");
                encoder.flush(&mut out).expect("it goes on");
                assert!(!encoder.is_holding(), "{coding:?}");
                let so_far = &"one two three "[..[4, 8, 14][index]];
                assert_eq!(decoded(&out, coding), so_far.as_bytes(), "{coding:?}");
            }
        }
    }

    #[test]
    fn a_used_encoder_is_as_a_new_one() {
        let idle = Encoders::default();
        for coding in Coding::ALL {
            let settings = settings();
            let mut found = Vec::new();
            for _ in 0..3 {
                let mut encoder = idle.take(coding, &settings, None).expect("memory");
                let mut out = Vec::new();
                encoder.take(&text(50_000), &mut out).expect("it goes on");
                encoder.finish(&mut out).expect("it goes on");
                idle.put(encoder, level(coding, &settings));
                found.push(out);
            }
            assert_eq!(found[0], found[1], "{coding:?}");
            assert_eq!(found[0], found[2], "{coding:?}");
            // An encoder that is given up within a body.
            let mut encoder = idle.take(coding, &settings, None).expect("memory");
            encoder
                .take(&text(99_999), &mut Vec::new())
                .expect("it goes on");
            idle.put(encoder, level(coding, &settings));
            let mut encoder = idle.take(coding, &settings, None).expect("memory");
            let mut out = Vec::new();
            encoder.take(&text(50_000), &mut out).expect("it goes on");
            encoder.finish(&mut out).expect("it goes on");
            assert_eq!(found[0], out, "{coding:?}");
        }
    }

    #[test]
    fn few_encoders_stay_idle() {
        let idle = Encoders::default();
        let settings = settings();
        let mut in_use = Vec::new();
        for coding in Coding::ALL {
            for _ in 0..3 * IDLE_MAX {
                in_use.push(idle.take(coding, &settings, None).expect("memory"));
            }
            assert_eq!(idle.in_use(), 3 * IDLE_MAX, "{coding:?}");
            for encoder in in_use.drain(..) {
                idle.put(encoder, level(coding, &settings));
            }
            assert_eq!(idle.in_use(), 0, "{coding:?}");
        }
        assert_eq!(idle.idle.borrow().len(), 2 * IDLE_MAX, "none of Brotli");
    }
}
