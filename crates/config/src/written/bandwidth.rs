//! How many bytes of responses a route sends in a second.

use super::RequestKeyText;
use super::forms::short_for;
use crate::quantity::{ByteSize, Size};
use crate::setting::{Bounded, Fault, FromText, Resolve, options, resolve_to, sibling};
use crate::tree::Node;

options! {
    /// Most bytes of responses in a second: for each response, or for all responses of one key.
    pub struct BandwidthTable as "a bandwidth"
    for #[derive(Debug, Clone, PartialEq, Eq)] Bandwidth
    with BandwidthParts {
        /// Bytes in a second.
        bytes_per_second: u64,
    } {
        /// How many bytes in a second, such as `2MiB/s`.
        rate: ByteRateText = Required => by_hand,
        /// Bytes that may be sent at once after a pause. The bytes of a quarter of a second
        /// count at least.
        burst as burst_bytes: Size = Depends(burst_default, "the bytes of a quarter of a second"),
        /// The responses that share the rate. `client` stands for all responses to one client's
        /// address (to one IPv6 network of 64 bits); a text with variables, such as
        /// `{header:X-Api-Key}`, makes the key. A response whose text comes out empty is not
        /// limited.
        key: RequestKeyText = Optional("each response has the whole rate"),
        /// Keys to remember, of 16 bytes each. When there are more, the keys that have sent the
        /// least are forgotten.
        entries: Bounded<u32, 8, 10_000_000> = Default("100000"),
    }
}

short_for!(
    /// A bandwidth, or its rate alone.
    ShortBandwidth, BandwidthTable, "rate", ByteRateText
);

impl Resolve for ShortBandwidth {
    type Resolved = Bandwidth;

    fn resolve(&self) -> Option<Bandwidth> {
        let bytes_per_second = self.0.rate.value?.0;
        self.0.resolve_with(BandwidthParts { bytes_per_second })
    }
}

fn burst_default(bandwidth: &Node) -> Option<String> {
    let ByteRateText(rate) = sibling::<ByteRateText>(bandwidth, "rate")?;
    Some((rate / 4).to_string())
}

/// The lowest rate, in bytes a second.
const LEAST: u64 = 1024;

/// Bytes in a second as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRateText(pub u64);

impl FromText for ByteRateText {
    const FORM: &'static str = "bytes in a second, such as `\"2MiB/s\"` or `\"500KB/s\"`";
    const PATTERN: Option<&'static str> =
        Some(r"^[0-9]+(\.[0-9]+)? ?(B|KB|MB|GB|KiB|MiB|GiB)? */ *s$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault =
            |help: String| Fault::new(format!("`{text}` is not a valid rate of bytes")).help(help);
        let form = "write a size, `/` and `s`, as in \"2MiB/s\" or \"500KB/s\"";
        if text.to_ascii_lowercase().contains("bit") || text.ends_with("bps") {
            return Err(fault(
                "a rate is in bytes, not bits: one megabit per second is \"125KB/s\"".to_owned(),
            ));
        }
        let Some((size, unit)) = text.split_once('/') else {
            return Err(match ByteSize::from_text(text) {
                Ok(ByteSize(bytes)) if bytes >= LEAST => {
                    fault(format!("add a unit of time: \"{}/s\"", text.trim()))
                }
                _ => fault(form.to_owned()),
            });
        };
        let Ok(ByteSize(bytes)) = ByteSize::from_text(size) else {
            return Err(fault(form.to_owned()));
        };
        if unit.trim() != "s" {
            return Err(fault(form.to_owned()));
        }
        if bytes < LEAST {
            return Err(
                Fault::new(format!("`{text}` is below the lowest possible bandwidth")).help(
                    "write at least \"1KiB/s\"; to refuse all requests of a route: answer = { \
                        status = 403 }",
                ),
            );
        }
        Ok(Self(bytes))
    }
}

resolve_to!(ByteRateText => u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, expected) in [
            ("2MiB/s", Some(2 << 20)),
            ("500KB/s", Some(500_000)),
            ("1.5 MB / s", Some(1_500_000)),
            ("2048/s", Some(2048)),
            ("1KiB/s", Some(1024)),
            ("1023B/s", None),
            ("0/s", None),
            ("2MiB", None),
            ("2MiB/m", None),
            ("16Mbit/s", None),
            ("10mbps", None),
            ("-1MB/s", None),
            ("/s", None),
            ("", None),
        ] {
            let read = ByteRateText::from_text(text).ok().map(|it| it.0);
            assert_eq!(read, expected, "{text:?}");
        }
    }
}
