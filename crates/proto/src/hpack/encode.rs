//! Fields as HPACK sends them.
//!
//! A field has a number of the static table, if there is one. All else is sent as it is (RFC 7541
//! §6.2.2).

use super::table::STATIC;

/// Appends the pseudo-field `:status`.
pub fn status(out: &mut Vec<u8>, status: u16) {
    let number = match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => {
            let digits = [status / 100, status / 10 % 10, status % 10];
            out.extend_from_slice(&[8, 3]);
            out.extend(digits.map(|it| b'0' + (it % 10) as u8));
            return;
        }
    };
    out.push(0x80 | number);
}

/// Appends `:method`, `:scheme`, `:path` or `:authority`: any field whose name is in the
/// static table at this number.
pub fn with_static_name(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    let own = |it: u8| STATIC.get(usize::from(it).wrapping_sub(1));
    let name = own(number).map(|it| it.0);
    // Fields of one name stand together.
    let same = (number..).map_while(|it| own(it).filter(|it| Some(it.0) == name).map(|it| it.1));
    let whole = same.enumerate().find(|(_, it)| it.as_bytes() == value);
    if let (Some((further, _)), false) = (whole, value.is_empty()) {
        out.push(0x80 | (number + further as u8));
        return;
    }
    integer(out, 0, 4, usize::from(number));
    string(out, value);
}

/// Appends a field. Its name is put into lower case (RFC 9113 §8.2.1).
pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match static_name(name) {
        0 => {
            out.push(0);
            integer(out, 0, 7, name.len());
            out.extend(name.iter().map(u8::to_ascii_lowercase));
        }
        number => integer(out, 0, 4, usize::from(number)),
    }
    string(out, value);
}

/// Appends that the table of this direction holds nothing (RFC 7541 §6.3).
pub fn no_table(out: &mut Vec<u8>) {
    out.push(0x20);
}

/// The number of the static table that has this name first; 0 where none has it. The case
/// does not count.
fn static_name(name: &[u8]) -> u8 {
    let candidates: &[u8] = match name.len() {
        3 => &[21, 60],
        4 => &[33, 34, 37, 38, 45, 59],
        5 => &[22, 50],
        6 => &[19, 32, 35, 54],
        7 => &[36, 51, 52],
        8 => &[39, 42, 46],
        10 => &[55, 58],
        11 => &[53],
        12 => &[31, 47],
        13 => &[18, 23, 24, 30, 41, 44],
        14 => &[15, 28],
        15 => &[16, 17],
        16 => &[26, 27, 29, 61],
        17 => &[40, 57],
        18 => &[48],
        19 => &[25, 43, 49],
        25 => &[56],
        27 => &[20],
        _ => &[],
    };
    let is = |it: &&u8| {
        let own = STATIC[usize::from(**it) - 1].0.as_bytes();
        own.eq_ignore_ascii_case(name)
    };
    candidates.iter().find(is).copied().unwrap_or_default()
}

/// Appends a number whose first bits share a byte with `flags`.
fn integer(out: &mut Vec<u8>, flags: u8, prefix: u32, number: usize) {
    let mask = (1usize << prefix) - 1;
    if number < mask {
        out.push(flags | number as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut rest = number - mask;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Appends a string as it is.
fn string(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, 0, 7, text.len());
    out.extend_from_slice(text);
}
