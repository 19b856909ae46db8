//! Sets of networks, for many of them: a look-up takes the logarithm of their number.
//!
//! Networks that overlap or touch become one range. The ranges are sorted and disjoint.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use super::network::{Network, NetworkError, Span};

/// A set of addresses, made of networks. An IPv4 address that is mapped into IPv6 is the
/// IPv4 address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkSet {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
    len: usize,
}

/// Disjoint ranges in ascending order, both ends included. A search touches the starts
/// alone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ranges<T> {
    starts: Box<[T]>,
    ends: Box<[T]>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Ranges {
            starts: Box::default(),
            ends: Box::default(),
        }
    }
}

/// How much is shown of a line that is no network, in bytes: more than any network has.
const MAX_SHOWN: usize = 60;

/// A line of a file that is no network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub number: usize,
    /// The mistake in it.
    pub what: String,
}

trait Number: Copy + Ord {
    /// The number behind it; `None` behind the last.
    fn next(self) -> Option<Self>;
}

impl Number for u32 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
}

impl Number for u128 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
}

impl<T: Number> Ranges<T> {
    fn new(mut spans: Vec<(T, T)>) -> Self {
        spans.sort_unstable();
        let mut starts: Vec<T> = Vec::new();
        let mut ends: Vec<T> = Vec::new();
        for (start, end) in spans {
            match ends.last_mut() {
                Some(last) if last.next().is_none_or(|next| start <= next) => {
                    *last = end.max(*last);
                }
                _ => {
                    starts.push(start);
                    ends.push(end);
                }
            }
        }
        Ranges {
            starts: starts.into(),
            ends: ends.into(),
        }
    }

    fn contains(&self, number: T) -> bool {
        let behind = self.starts.partition_point(|&start| start <= number);
        behind > 0 && number <= self.ends[behind - 1]
    }
}

impl NetworkSet {
    /// Reads a network or address a line, with or without a comment behind `#`.
    ///
    /// # Errors
    /// The first line that is neither.
    pub fn parse(text: &[u8]) -> Result<Self, BadLine> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut networks = Vec::new();
        for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.split(|&byte| byte == b'#').next().unwrap_or_default();
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let bad = |what: &str| {
                let shown = &line[..line.len().min(MAX_SHOWN)];
                let more = if shown.len() < line.len() { "…" } else { "" };
                BadLine {
                    number: at + 1,
                    what: format!("`{}{more}` is {what}", shown.escape_ascii()),
                }
            };
            let text =
                std::str::from_utf8(line).map_err(|_| bad("not a valid address or network"))?;
            networks.push(text.parse::<Network>().map_err(|error| match error {
                NetworkError::Address => bad("not a valid address or network"),
                NetworkError::PrefixLen => bad("not a network: too many bits after `/`"),
            })?);
        }
        Ok(networks.into_iter().collect())
    }

    /// How many networks it is made of.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no address is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `address` is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.contains(address.to_bits()),
            IpAddr::V6(address) => self.v6.contains(address.to_bits()),
        }
    }
}

impl FromIterator<Network> for NetworkSet {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match network.span() {
                Span::V4(start, end) => v4.push((start, end)),
                Span::V6(start, end) => v6.push((start, end)),
            }
        }
        NetworkSet {
            len: v4.len() + v6.len(),
            v4: Ranges::new(v4),
            v6: Ranges::new(v6),
        }
    }
}

/// A file of networks: the set that it held when it was last read without a mistake.
///
/// All workers look at it without a lock, while another thread puts a new set there.
#[derive(Debug)]
pub struct NetworkFile {
    name: String,
    set: ArcSwap<NetworkSet>,
    mistake: ArcSwapOption<String>,
}

impl NetworkFile {
    /// The file of this name, as the configuration has it.
    pub fn new(name: String, set: NetworkSet) -> Self {
        NetworkFile {
            name,
            set: ArcSwap::from_pointee(set),
            mistake: ArcSwapOption::empty(),
        }
    }

    /// Its name, as the configuration has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether `address` is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.set.load().contains(address)
    }

    /// The present set.
    pub fn set(&self) -> Arc<NetworkSet> {
        self.set.load_full()
    }

    /// Why the present content of the file is not taken; `None` where it is.
    pub fn mistake(&self) -> Option<Arc<String>> {
        self.mistake.load_full()
    }

    /// Notes why the present content of the file is not taken.
    pub fn set_mistake(&self, mistake: Option<String>) {
        self.mistake.store(mistake.map(Arc::new));
    }

    /// Replaces the set, for all who look at it.
    pub fn replace(&self, set: NetworkSet) {
        self.set.store(Arc::new(set));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_of_networks() {
        let text = b"\xef\xbb\xbf# who may come\n10.0.0.0/8\r\n\n  192.0.2.7 # one\n::ffff:198.51.100.0/120\n2001:db8::/32";
        let set = NetworkSet::parse(text).unwrap();
        assert_eq!(set.len(), 4);
        for (address, expected) in [
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("::ffff:10.1.2.3", true),
            ("198.51.100.9", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(set.contains(address), expected, "{address}");
        }
    }

    #[test]
    fn a_broken_line_is_named() {
        for (text, number, what) in [
            (
                "10.0.0.1\nnonsense # x\n",
                2,
                "`nonsense` is not a valid address",
            ),
            ("\n\n10.0.0.0/33", 3, "too many bits"),
            ("10.0.0.1, 10.0.0.2", 1, "`10.0.0.1, 10.0.0.2`"),
        ] {
            let bad = NetworkSet::parse(text.as_bytes()).unwrap_err();
            assert_eq!(bad.number, number);
            assert!(bad.what.contains(what), "{}", bad.what);
        }
        let bad = NetworkSet::parse(b"\xff\x1b").unwrap_err();
        assert_eq!(bad.what, r"`\xff\x1b` is not a valid address or network");
        let bad = NetworkSet::parse(&[b'a'; 1000]).unwrap_err();
        let shown = "a".repeat(MAX_SHOWN);
        assert_eq!(
            bad.what,
            format!("`{shown}…` is not a valid address or network")
        );
    }

    fn networks() -> impl Strategy<Value = Network> {
        // Few bits, so that networks touch and lie within one another.
        let v4 = (0..64_u32, 26..=32_u8).prop_map(|(low, len)| {
            let address = std::net::Ipv4Addr::from_bits(u32::MAX - 63 + low);
            Network::new(address.into(), len).unwrap()
        });
        let v6 = (0..64_u128, 122..=128_u8).prop_map(|(low, len)| {
            let address = std::net::Ipv6Addr::from_bits(u128::MAX - 63 + low);
            Network::new(address.into(), len).unwrap()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn holds_what_one_of_its_networks_holds(
            networks in proptest::collection::vec(networks(), 0..12),
        ) {
            let set: NetworkSet = networks.iter().copied().collect();
            for low in 0..65_u32 {
                let v4 = IpAddr::from(std::net::Ipv4Addr::from_bits((u32::MAX - 64) + low));
                let v6 = IpAddr::from(std::net::Ipv6Addr::from_bits((u128::MAX - 64) + u128::from(low)));
                for address in [v4, v6] {
                    let expected = networks.iter().any(|it| it.contains(address));
                    prop_assert_eq!(set.contains(address), expected, "{}", address);
                }
            }
            let mut starts = set.v4.starts.iter().skip(1).zip(&set.v4.ends);
            prop_assert!(starts.all(|(start, end)| *start > end + 1), "{:?}", set);
        }
    }

    /// Prints what a look-up takes: `cargo test -p evenkeel-policy --profile quick
    /// look_up_time -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn look_up_time() {
        let mut random = fastrand::Rng::with_seed(7);
        let networks = (0..100_000).map(|_| {
            let address = std::net::Ipv4Addr::from_bits(random.u32(..));
            Network::new(address.into(), random.u8(20..=32)).unwrap()
        });
        let file = NetworkFile::new("nets.txt".into(), networks.collect());
        let asked: Vec<IpAddr> = (0..1 << 16)
            .map(|_| std::net::Ipv4Addr::from_bits(random.u32(..)).into())
            .collect();
        let begin = std::time::Instant::now();
        let rounds = 20;
        let mut found = 0;
        for _ in 0..rounds {
            found += asked.iter().filter(|&&it| file.contains(it)).count();
        }
        let each = begin.elapsed() / (rounds * asked.len() as u32);
        println!("{each:?} a look-up, {found} found");
    }
}
