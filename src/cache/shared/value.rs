//! Keys and values at the server: names of keys, and heads of values.
//!
//! | name | value |
//! |---|---|
//! | `PREFIX:1:purges` | the log of purges, a stream |
//! | `PREFIX:1:HASH` | a response; the names in its `Vary`; or nothing, after a removal |
//! | `PREFIX:1:HASH:NONCE:HASH` | a response that was selected by fields of the request |
//!
//! The hashes are SHA-256 of the key and of the selector. The nonce is part of the names
//! in `Vary`: once these are gone, so are the responses. `1` is the version of all this.

use std::time::Duration;

use evenkeel_cache::ledger::Position;
use evenkeel_cache::{Object, record};
use evenkeel_policy::Instant;
use evenkeel_proto::identity::hex;
use sha2::{Digest, Sha256};

use super::outcome::Outcome;

/// The version of names, values and the log.
const VERSION: u32 = 1;
/// The beginning of every value.
const MAGIC: &[u8; 4] = b"EvkS";
/// The kind of value behind it.
const RESPONSE: u8 = b'o';
const NAMES: u8 = b'v';
const REMOVED: u8 = b'r';
/// Hexadecimal digits of a nonce.
pub(super) const NONCE_LEN: usize = 16;
/// Bytes before the record of a response.
const HEAD_LEN: usize = MAGIC.len() + 1 + 4 * size_of::<u64>();

/// SHA-256 of a key or of a selector.
pub(super) type Hash = [u8; 32];

/// SHA-256.
pub(super) fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// The names of keys at the server.
#[derive(Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub fn new(prefix: &str) -> Self {
        Names {
            prefix: format!("{prefix}:{VERSION}:"),
        }
    }

    /// The log of purges.
    pub fn purges(&self) -> Vec<u8> {
        format!("{}purges", self.prefix).into_bytes()
    }

    /// The responses of a key.
    pub fn key(&self, key: &Hash) -> Vec<u8> {
        let mut name = self.prefix.clone().into_bytes();
        name.extend_from_slice(&digits(key));
        name
    }

    /// A response that was selected by fields of the request.
    pub fn selected(&self, key: &Hash, by: &Selected) -> Vec<u8> {
        let mut name = self.key(key);
        name.push(b':');
        name.extend_from_slice(&by.nonce);
        name.push(b':');
        name.extend_from_slice(&digits(&by.selector));
        name
    }
}

/// A hash in hexadecimal.
pub(super) fn digits(hash: &Hash) -> [u8; 64] {
    let (high, low) = hash.split_at(16);
    let mut text = [0; 64];
    for (half, digits) in [high, low].into_iter().zip(text.as_chunks_mut::<32>().0) {
        let number = half
            .iter()
            .fold(0, |all, &byte| all << 8 | u128::from(byte));
        *digits = hex(number);
    }
    text
}

/// The response of a key that is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Selected {
    pub nonce: [u8; NONCE_LEN],
    pub selector: Hash,
}

/// A value.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Response(Response<'a>),
    Names(VaryNames),
    Removed,
}

/// A response as the server has it.
#[derive(Debug)]
pub(super) struct Response<'a> {
    /// The place in the log up to which it is known to be alive.
    pub position: Position,
    /// When it expires, by the server's clock.
    pub expiry: Duration,
    record: &'a [u8],
}

/// The names in `Vary`.
#[derive(Debug)]
pub(super) struct VaryNames {
    pub nonce: [u8; NONCE_LEN],
    /// As [`evenkeel_cache::vary::names`] gives them.
    pub names: Vec<u8>,
}

/// The bytes before the nonce of the names in `Vary`.
pub(super) const NAMES_START: [u8; 5] = start(NAMES);
/// The value that stays where responses were removed.
pub(super) const REMOVED_VALUE: [u8; 5] = start(REMOVED);

const fn start(kind: u8) -> [u8; 5] {
    [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], kind]
}

/// A response as a value. `clocks` has the server's clock as its wall clock.
///
/// `None` if its head is too long.
pub(super) fn encode(
    object: &Object,
    position: Position,
    expiry: Duration,
    clocks: &record::Clocks,
    now: Instant,
) -> Option<Vec<u8>> {
    let body_len = usize::try_from(object.body_len()).ok()?;
    let mut out = Vec::with_capacity(body_len + object.lines().len() + 1024);
    out.extend_from_slice(&start(RESPONSE));
    let expiry_ms = u64::try_from(expiry.as_millis()).ok()?;
    for number in [position.epoch, position.number, expiry_ms] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let sum = record::sum(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    record::push_head(&mut out, object, clocks, now)?;
    for block in record::blocks(object) {
        out.extend_from_slice(block);
    }
    Some(out)
}

/// Reads a value that anybody may have written.
///
/// # Errors
/// The value is foreign, or damaged.
pub(super) fn decode(bytes: &[u8]) -> Result<Value<'_>, Outcome> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Outcome::Foreign)?;
    match rest.split_first() {
        Some((&REMOVED, [])) => Ok(Value::Removed),
        Some((&NAMES, rest)) => {
            let (nonce, names) = rest.split_first_chunk().ok_or(Outcome::Foreign)?;
            Ok(Value::Names(VaryNames {
                nonce: *nonce,
                names: names.to_vec(),
            }))
        }
        Some((&RESPONSE, _)) => {
            let (head, record) = bytes.split_at_checked(HEAD_LEN).ok_or(Outcome::Damaged)?;
            let (numbers, _) = head[MAGIC.len() + 1..].as_chunks();
            let &[epoch, number, expiry_ms, sum] = numbers else {
                return Err(Outcome::Damaged);
            };
            if record::sum(&head[..HEAD_LEN - size_of::<u64>()]) != u64::from_le_bytes(sum) {
                return Err(Outcome::Damaged);
            }
            Ok(Value::Response(Response {
                position: Position {
                    epoch: u64::from_le_bytes(epoch),
                    number: u64::from_le_bytes(number),
                },
                expiry: Duration::from_millis(u64::from_le_bytes(expiry_ms)),
                record,
            }))
        }
        _ => Err(Outcome::Foreign),
    }
}

impl Response<'_> {
    /// The response, read while the server's clock was at `server` and the machine's
    /// clock at `now`.
    ///
    /// # Errors
    /// The response is damaged, or another version wrote it.
    pub fn object(
        &self,
        secret: &evenkeel_cache::Secret,
        server: Duration,
        now: Instant,
    ) -> Result<Object, Outcome> {
        let clocks = record::Clocks { now, unix: server };
        let head = record::Head::read(self.record).map_err(outcome)?;
        let body = &self.record[head.head_len()..];
        if !head.is_body(body) {
            return Err(Outcome::Damaged);
        }
        let body = evenkeel_cache::object::Body::of(body);
        head.object(&body, secret, &clocks, now, 0).map_err(outcome)
    }
}

fn outcome(damage: record::Damage) -> Outcome {
    match damage {
        record::Damage::Version => Outcome::Version,
        record::Damage::Magic => Outcome::Foreign,
        _ => Outcome::Damaged,
    }
}
