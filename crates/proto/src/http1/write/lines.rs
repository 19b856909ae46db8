//! Lines of fields: lines that go on as they came, in runs, and lines that are
//! written again.

use crate::field::{Field, FieldKind};

/// The treatment of a field line.
pub(super) enum Line {
    /// It goes on as it came.
    Copy,
    /// The line is left out.
    Leave,
    /// The line goes on in the one spelling that all readers read alike.
    /// Framing and routing must not depend on how a tab or a zero is read.
    Restate,
}

impl Line {
    pub fn copy_if(wanted: bool) -> Self {
        if wanted { Line::Copy } else { Line::Leave }
    }
}

/// Copies the lines of the fields as `decide` says, run by run.
pub(super) fn copy_fields(
    out: &mut Vec<u8>,
    buf: &[u8],
    fields: &[Field],
    head_end: usize,
    decide: impl Fn(&Field) -> Line,
) {
    let lines_end = head_end.saturating_sub(2);
    let mut run_start = None;
    for field in fields {
        let line_start = field.name.start as usize;
        let line = decide(field);
        if is_copied(buf, field, &line) {
            run_start.get_or_insert(line_start);
            continue;
        }
        if let Some(start) = run_start.take() {
            out.extend_from_slice(&buf[start..line_start]);
        }
        if matches!(line, Line::Restate) {
            restate(out, buf, field);
        }
    }
    if let Some(start) = run_start {
        out.extend_from_slice(&buf[start..lines_end]);
    }
}

/// Whether a line goes on as it came.
pub(super) fn is_copied(buf: &[u8], field: &Field, line: &Line) -> bool {
    match line {
        Line::Copy => true,
        Line::Leave => false,
        Line::Restate => is_plain(buf, field),
    }
}

/// Whether [`restate`] would write the line as it is.
fn is_plain(buf: &[u8], field: &Field) -> bool {
    let (name_end, value_end) = (field.name.end as usize, field.value.end as usize);
    buf[name_end..].starts_with(b": ")
        && field.value.start as usize == name_end + 2
        && buf[value_end..].starts_with(b"\r\n")
        && value_to_restate(buf, field).len() == field.value.len()
}

fn restate(out: &mut Vec<u8>, buf: &[u8], field: &Field) {
    let value = value_to_restate(buf, field);
    for part in [field.name.of(buf), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// A length loses leading zeros: some would read it as octal.
fn value_to_restate<'a>(buf: &'a [u8], field: &Field) -> &'a [u8] {
    let value = field.value.of(buf);
    if field.kind != FieldKind::ContentLength {
        return value;
    }
    let zeros = value.iter().take_while(|&&byte| byte == b'0').count();
    &value[zeros.min(value.len().saturating_sub(1))..]
}

/// Inlined, so that each constant piece is a store or two.
#[inline(always)]
pub(super) fn push_all(out: &mut Vec<u8>, parts: [&[u8]; 3]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}
