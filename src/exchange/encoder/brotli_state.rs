//! The Brotli encoder, without a writer. Dropped within a body, it does no more work.

use brotli::enc::StandardAlloc;
use brotli::enc::encode::{
    BrotliEncoderDestroyInstance, BrotliEncoderOperation, BrotliEncoderParameter,
    BrotliEncoderStateStruct,
};
use brotli::enc::interface::{
    InputPair, InputReferenceMut, PredictionModeContextMap, StaticCommand,
};

use super::EncoderFailed;

/// Bytes of output to take at once.
const PIECE_LEN: usize = 16 * 1024;

/// The state of a Brotli body.
pub(super) struct BrotliState(BrotliEncoderStateStruct<StandardAlloc>);

impl BrotliState {
    /// Starts a body.
    pub fn new(quality: u32, window: u32) -> Self {
        let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, quality);
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, window);
        BrotliState(state)
    }

    /// Takes `input`, executes `operation`, and appends the output to `out`.
    ///
    /// # Errors
    /// The body has already ended.
    pub fn run(
        &mut self,
        operation: BrotliEncoderOperation,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EncoderFailed> {
        let mut ignored = |_: &mut PredictionModeContextMap<InputReferenceMut<'_>>,
                           _: &mut [StaticCommand],
                           _: InputPair<'_>,
                           _: &mut StandardAlloc| ();
        let (mut left, mut taken) = (input.len(), 0);
        loop {
            let start = out.len();
            out.resize(start + PIECE_LEN, 0);
            let (mut room, mut written) = (PIECE_LEN, 0);
            let is_well = self.0.compress_stream(
                operation,
                &mut left,
                input,
                &mut taken,
                &mut room,
                &mut out[start..],
                &mut written,
                &mut None,
                &mut ignored,
            );
            out.truncate(start + written);
            if !is_well {
                return Err(EncoderFailed);
            }
            let is_through = match operation {
                BrotliEncoderOperation::BROTLI_OPERATION_FINISH => self.0.is_finished(),
                _ => left == 0 && !self.0.has_more_output(),
            };
            if is_through {
                return Ok(());
            }
        }
    }
}

impl Drop for BrotliState {
    fn drop(&mut self) {
        BrotliEncoderDestroyInstance(&mut self.0);
    }
}
