//! Durations with their unit, as the command line writes them.

use std::time::Duration;

/// Reads a duration with its unit: `500us`, `20ms`, `1.5s`, `2m`.
///
/// # Errors
/// A text that names the mistake.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("duration {text:?}: expected a number with us, ms, s or m");
    let unit_at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(wrong)?;
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("20ms", Some(Duration::from_millis(20))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("7us", Some(Duration::from_micros(7))),
            ("2m", Some(Duration::from_secs(120))),
            ("20", None),
            ("ms", None),
            ("-1s", None),
            ("1h", None),
        ] {
            assert_eq!(parse_duration(text).ok(), expected, "{text}");
        }
    }
}
