//! Asking the running process, over its control socket.
//!
//! The command is `explain`, then the request as JSON in hexadecimal, so that
//! it is one word whatever stands in it; the answer is one object, the
//! explanation or `{"error": …}`.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::asked::Asked;
use super::{Explanation, explain};
use crate::observe::figures::Sources;

/// The command's name.
pub const COMMAND: &str = "explain";

/// Longest wait for the process.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Answers the command in the running process: `asked` is what stands behind
/// its name.
pub fn answer(sources: &Sources, asked: &str) -> String {
    let explained = from_hex(asked)
        .and_then(|json| serde_json::from_slice::<Asked>(&json).ok())
        .ok_or_else(|| "explain takes a request, as `evenkeel explain` sends it".to_owned())
        .and_then(|asked| {
            let running = Some(&*sources.dispatchers);
            explain(&sources.config, running, &asked).map_err(|error| error.to_string())
        });
    let answer = match explained {
        Ok(explanation) => json!(explanation),
        Err(error) => json!({ "error": error }),
    };
    format!("{answer}\n")
}

/// Has the process behind the control socket at `path` explain.
///
/// # Errors
/// It can't be reached, or can't explain: the text says why.
pub fn ask(path: &Path, asked: &Asked) -> Result<Explanation, String> {
    let socket = path.display();
    let asked = to_hex(json!(asked).to_string().as_bytes());
    let answer = exchange(path, &format!("{COMMAND} {asked}\n"))
        .map_err(|error| format!("control socket {socket}: {error}"))?;
    let answer: serde_json::Value = serde_json::from_str(&answer)
        .map_err(|_| format!("control socket {socket}: it answered: {}", answer.trim()))?;
    if let Some(error) = answer.get("error").and_then(|it| it.as_str()) {
        return Err(error.to_owned());
    }
    serde_json::from_value(answer).map_err(|error| {
        format!("control socket {socket}: the process is of another version: {error}")
    })
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

fn exchange(path: &Path, command: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(command.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
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
