//! Asking the running process, over its control socket.
//!
//! The command is `explain`, then the request as JSON in hexadecimal, so that
//! it is one word whatever stands in it; the answer is one object, the
//! explanation or `{"error": …}`.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::asked::Asked;
use super::{Explanation, explain};
use crate::observe::figures::Sources;

/// The command's name.
pub const COMMAND: &str = "explain";

/// Answers the command in the running process: `asked` is what stands behind
/// its name.
pub fn answer(sources: &Sources, asked: &str) -> String {
    let explained = from_hex(asked)
        .and_then(|json| serde_json::from_slice::<Asked>(&json).ok())
        .ok_or_else(|| "explain takes a request, as `evenkeel explain` sends it".to_owned())
        .and_then(|asked| {
            let running = Some(&*sources.dispatchers);
            let explained = explain(&sources.config, running, &asked);
            explained.map_err(|error| error.to_string())
        })
        .map(|explanation| Explanation {
            draining: sources.is_draining.load(Ordering::Relaxed),
            ..explanation
        });
    let answer = match explained {
        Ok(explanation) => json!(explanation),
        Err(error) => json!({ "error": error }),
    };
    format!("{answer}\n")
}

/// The command that asks for what `asked` would get.
pub fn command(asked: &Asked) -> String {
    let asked = to_hex(json!(asked).to_string().as_bytes());
    format!("{COMMAND} {asked}")
}

/// Reads what a process answered to the command.
///
/// # Errors
/// It can't explain: the text says why.
pub fn read(answer: &str) -> Result<Explanation, String> {
    let value: serde_json::Value = serde_json::from_str(answer)
        .map_err(|_| format!("the process answered: {}", answer.trim()))?;
    if let Some(error) = value.get("error").and_then(|it| it.as_str()) {
        return Err(error.to_owned());
    }
    serde_json::from_value(value)
        .map_err(|error| format!("the process is of another version: {error}"))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|it| it as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        for text in ["0", "0g", "{}", "000"] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }
}
