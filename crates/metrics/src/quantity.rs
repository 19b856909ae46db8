//! Quantities as a person reads them, in few characters.

use std::time::Duration;

/// A time to three digits: `850 us`, `12.3 ms`, `4.05 s`.
pub fn time(micros: f64) -> String {
    match micros {
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 999_500.0 => format!("{} ms", three_digits(us / 1e3)),
        us => format!("{} s", three_digits(us / 1e6)),
    }
}

/// A span between events: `0.4s`, `59s`, `3m07s`, `2h05m`, `8d03h`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A size: `812 B`, `1.24 MB`. A kilobyte has 1000 bytes, as for disks and
/// lines.
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 999.5 {
        return format!("{count:.0} B");
    }
    let mut value = count / 1e3;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while value >= 999.5 {
        let Some(larger) = units.next() else { break };
        value /= 1e3;
        unit = Some(larger);
    }
    format!("{} {}", three_digits(value), unit.unwrap_or(&UNITS[0]))
}

/// A rate: `0`, `0.4`, `12.3`, `1520`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        rate if rate < 99.95 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// `1 request`, `12 requests`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn three_digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        for (us, text) in [
            (0.0, "0 us"),
            (999.4, "999 us"),
            (999.9, "1.00 ms"),
            (12_340.0, "12.3 ms"),
            (999_900.0, "1.00 s"),
            (61_000_000.0, "61.0 s"),
        ] {
            assert_eq!(time(us), text);
        }
        for (count, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.00 kB"),
            (999_600.0, "1.00 MB"),
            (1.5e18, "1500 PB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        for (seconds, text) in [
            (0.44, "0.4s"),
            (59.9, "59s"),
            (187.0, "3m07s"),
            (7_500.0, "2h05m"),
            (702_000.0, "8d03h"),
        ] {
            assert_eq!(span(Duration::from_secs_f64(seconds)), text);
        }
        assert_eq!([rate(0.0), rate(0.44), rate(1520.4)], ["0", "0.4", "1520"]);
    }
}
