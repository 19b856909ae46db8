//! Protocol buffers as bytes: the fields of a message, one after another.

/// The numbers of fields.
pub(super) mod field {
    pub(in super::super) const FAMILY_NAME: u32 = 1;
    pub(in super::super) const FAMILY_HELP: u32 = 2;
    pub(in super::super) const FAMILY_TYPE: u32 = 3;
    pub(in super::super) const FAMILY_METRIC: u32 = 4;
    pub(in super::super) const METRIC_LABEL: u32 = 1;
    pub(in super::super) const METRIC_GAUGE: u32 = 2;
    pub(in super::super) const METRIC_COUNTER: u32 = 3;
    pub(in super::super) const METRIC_HISTOGRAM: u32 = 7;
    pub(in super::super) const LABEL_NAME: u32 = 1;
    pub(in super::super) const LABEL_VALUE: u32 = 2;
    /// For a counter and for a gauge.
    pub(in super::super) const VALUE: u32 = 1;
    pub(in super::super) const SAMPLE_COUNT: u32 = 1;
    pub(in super::super) const SAMPLE_SUM: u32 = 2;
    pub(in super::super) const BUCKET: u32 = 3;
    pub(in super::super) const SCHEMA: u32 = 5;
    pub(in super::super) const ZERO_THRESHOLD: u32 = 6;
    pub(in super::super) const ZERO_COUNT: u32 = 7;
    pub(in super::super) const POSITIVE_SPAN: u32 = 12;
    pub(in super::super) const POSITIVE_DELTA: u32 = 13;
    pub(in super::super) const BUCKET_CUMULATIVE_COUNT: u32 = 1;
    pub(in super::super) const BUCKET_UPPER_BOUND: u32 = 2;
    pub(in super::super) const SPAN_OFFSET: u32 = 1;
    pub(in super::super) const SPAN_LENGTH: u32 = 2;
}

/// Adds a label as a field of the message `Metric`.
pub(super) fn write_label(out: &mut Vec<u8>, name: &str, value: &str) {
    let mut pair = Vec::with_capacity(name.len() + value.len() + 8);
    bytes(&mut pair, field::LABEL_NAME, name.as_bytes());
    bytes(&mut pair, field::LABEL_VALUE, value.as_bytes());
    bytes(out, field::METRIC_LABEL, &pair);
}

pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, value);
}

pub(super) fn real(out: &mut Vec<u8>, field: u32, value: f64) {
    varint(out, u64::from(field) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}
