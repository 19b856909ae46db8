//! Durations and sizes as text.

use std::time::Duration;

use super::diagnostics::Report;
use super::setting::{Fault, FromText, Resolve, Setting, read_text, resolve_to, wrong_type};
use super::shape::Shape;
use super::tree::{Node, Value};

const DURATION_UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

const SIZE_UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// A duration that may be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationValue(pub Duration);

/// A duration longer than zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout(pub Duration);

/// A count of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl FromText for DurationValue {
    const FORM: &'static str = "a duration, such as `\"10s\"`, `\"500ms\"` or `\"1m30s\"`";
    const PATTERN: Option<&'static str> = Some(r"^([0-9]+(\.[0-9]+)?(us|ms|s|m|h|d))+$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let mut total = Duration::ZERO;
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(Fault::new("a duration cannot be empty"));
        }
        while !rest.is_empty() {
            let (us, tail) = quantity(rest, &DURATION_UNITS).ok_or_else(|| duration_fault(text))?;
            total = total
                .checked_add(Duration::from_micros(us))
                .ok_or_else(|| duration_fault(text))?;
            rest = tail;
        }
        // Beyond this, adding it to an instant could overflow.
        if total > Duration::from_secs(366 * 86_400) {
            return Err(Fault::new(format!("`{text}` is longer than a year")));
        }
        Ok(Self(total))
    }
}

/// Reads a duration as written in the file, such as `1m30s`.
///
/// # Errors
/// The fault in the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let value = DurationValue::from_text(text);
    value
        .map(|it| it.0)
        .map_err(|Fault { what, help }| help.map_or(what.clone(), |help| format!("{what}: {help}")))
}

fn duration_fault(text: &str) -> Fault {
    let fault = Fault::new(format!("`{text}` is not a valid duration"));
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return fault.help(format!(
            "a duration needs a unit: \"{text}s\" or \"{text}ms\""
        ));
    }
    fault.help("write a number and a unit (us, ms, s, m, h or d), as in \"10s\" or \"1m30s\"")
}

impl FromText for Timeout {
    const FORM: &'static str = DurationValue::FORM;
    const PATTERN: Option<&'static str> = DurationValue::PATTERN;

    fn from_text(text: &str) -> Result<Self, Fault> {
        match DurationValue::from_text(text)? {
            DurationValue(Duration::ZERO) => {
                Err(Fault::new("a timeout of 0 would refuse everything")
                    .help("write the longest time that is acceptable, such as \"1h\""))
            }
            DurationValue(duration) => Ok(Self(duration)),
        }
    }
}

impl FromText for ByteSize {
    const FORM: &'static str = "a size, such as `\"16KiB\"` or `\"1MB\"`";
    const PATTERN: Option<&'static str> = Some(r"^[0-9]+(\.[0-9]+)? ?(B|KB|MB|GB|KiB|MiB|GiB)?$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let text = text.trim();
        if let Ok(len) = text.parse() {
            return Ok(Self(len));
        }
        match quantity(text, &SIZE_UNITS) {
            Some((len, "")) => Ok(Self(len)),
            _ => Err(Fault::new(format!("`{text}` is not a valid size")).help(
                "write a number and a unit (KB = 1000, KiB = 1024, also MB, MiB, GB, GiB), as in \"16KiB\"",
            )),
        }
    }
}

/// A type that the program counts bytes in.
pub trait ByteCount: Copy + Default + PartialEq {
    /// This many, or the most that the type holds.
    fn saturating(bytes: u64) -> Self;
}

impl ByteCount for u64 {
    fn saturating(bytes: u64) -> Self {
        bytes
    }
}

/// Of bytes in memory.
impl ByteCount for usize {
    fn saturating(bytes: u64) -> Self {
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

fn bytes_from(min: i64) -> Shape {
    Shape::AnyOf(vec![
        Shape::Text {
            form: ByteSize::FORM,
            pattern: ByteSize::PATTERN,
        },
        Shape::Integer { min, max: i64::MAX },
    ])
}

/// A length in bytes that may be zero. Bytes are the one quantity that may also
/// be written as a bare number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length<T = u64>(pub T);

impl<T: ByteCount> Setting for Length<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let len = match &node.value {
            Value::Integer(len) => match u64::try_from(*len) {
                Ok(len) => len,
                Err(_) => {
                    report.mistake(&node.place, "a size cannot be negative");
                    return None;
                }
            },
            Value::Text(text) => read_text::<ByteSize>(text, &node.place, report)?.0,
            _ => return wrong_type(node, report),
        };
        Some(Self(T::saturating(len)))
    }

    fn shape() -> Shape {
        bytes_from(0)
    }
}

/// A length in bytes that is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size<T = u64>(pub T);

impl<T: ByteCount> Setting for Size<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        if !matches!(node.value, Value::Integer(_) | Value::Text(_)) {
            return wrong_type(node, report);
        }
        let Length(len) = Length::read(node, report)?;
        if len == T::default() {
            report.mistake(&node.place, "a limit of 0 bytes would refuse everything");
            return None;
        }
        Some(Self(len))
    }

    fn shape() -> Shape {
        bytes_from(1)
    }
}

resolve_to!(DurationValue => Duration, Timeout => Duration, Part => f64);

impl<T: ByteCount> Resolve for Length<T> {
    type Resolved = T;

    fn resolve(&self) -> Option<T> {
        Some(self.0)
    }
}

impl<T: ByteCount> Resolve for Size<T> {
    type Resolved = T;

    fn resolve(&self) -> Option<T> {
        Some(self.0)
    }
}

/// A part of a whole, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part(pub f64);

impl Setting for Part {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let number = match &node.value {
            Value::Integer(number) => Some(*number as f64),
            Value::Other(text) => text.replace('_', "").parse().ok(),
            _ => None,
        };
        match number {
            Some(part) if (0.0..=1.0).contains(&part) => Some(Self(part)),
            Some(number) => {
                report
                    .mistake(&node.place, format!("{number} is out of range"))
                    .label(format!("expected {}", Self::shape().words()))
                    .help("1 is all of them, 0.01 one in a hundred");
                None
            }
            None => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::Part
    }
}

/// Reads a number and its unit; returns the quantity in the smallest unit,
/// and the rest of the text.
fn quantity<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(u64, &'a str)> {
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(number_len);
    let rest = rest.trim_start();
    let unit_len = rest
        .find(|c: char| !c.is_alphabetic())
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_len);
    let (_, scale) = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let value = match number.split_once('.') {
        None => number.parse::<u64>().ok()?.checked_mul(*scale)?,
        Some((whole, fraction)) => {
            let (whole, decimals): (u64, u64) = (whole.parse().ok()?, fraction.parse().ok()?);
            let divisor = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            whole
                .checked_mul(*scale)?
                .checked_add(decimals.checked_mul(*scale)? / divisor)?
        }
    };
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expected_us) in [
            ("10s", Some(10_000_000)),
            ("500ms", Some(500_000)),
            ("250us", Some(250)),
            ("2m", Some(120_000_000)),
            ("1m30s", Some(90_000_000)),
            ("1.5s", Some(1_500_000)),
            ("10 s", Some(10_000_000)),
            ("1d", Some(86_400_000_000)),
            ("0s", Some(0)),
            ("10", None),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("1..5s", None),
            ("10sec", None),
            ("99999999999999999999s", None),
            ("400d", None),
        ] {
            let read = DurationValue::from_text(text)
                .ok()
                .map(|it| it.0.as_micros());
            assert_eq!(read, expected_us, "{text:?}");
        }
        assert!(Timeout::from_text("0ms").is_err());
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("16KB", Some(16_000)),
            ("16KiB", Some(16_384)),
            ("1MiB", Some(1 << 20)),
            ("1.5KiB", Some(1_536)),
            ("2 gb", Some(2_000_000_000)),
            ("4096", Some(4_096)),
            ("12B", Some(12)),
            ("1KiB2", None),
            ("k", None),
            ("1XB", None),
            ("99999999999GiB", None),
        ] {
            assert_eq!(
                ByteSize::from_text(text).ok().map(|it| it.0),
                expected,
                "{text:?}"
            );
        }
    }
}
