//! A line under construction.
//!
//! A line is built in a buffer of fixed size, whose bounds the compiler knows, and then appended
//! to the other lines. That costs half as much as twenty appends to a vector. A longer line is
//! appended piece by piece.

/// Room for most lines, in bytes.
const ROOM: usize = 2048;

/// The buffer in which each line is built.
#[derive(Debug)]
pub(super) struct Room(Box<[u8; ROOM]>);

impl Default for Room {
    fn default() -> Self {
        Room(Box::new([0; ROOM]))
    }
}

/// A line under construction. [`end`](Line::end) appends it to the other lines.
#[derive(Debug)]
pub(super) struct Line<'a> {
    room: &'a mut [u8; ROOM],
    len: usize,
    out: &'a mut Vec<u8>,
}

impl<'a> Line<'a> {
    /// A line that will be appended to `out`.
    pub fn new(room: &'a mut Room, out: &'a mut Vec<u8>) -> Self {
        Line {
            room: &mut room.0,
            len: 0,
            out,
        }
    }

    /// Adds bytes of a length that is known at compile time.
    #[inline]
    pub fn literal<const LEN: usize>(&mut self, bytes: &[u8; LEN]) {
        if self.len > ROOM - LEN {
            self.spill();
        }
        self.room[self.len..self.len + LEN].copy_from_slice(bytes);
        self.len += LEN;
    }

    /// Adds one byte.
    #[inline]
    pub fn byte(&mut self, byte: u8) {
        self.literal(&[byte]);
    }

    /// Adds bytes, usually few. Two copies of a known length, one from the start and one from the
    /// end, cost less than the call for a copy of any length.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        let len = bytes.len();
        if self.len + len > ROOM {
            return self.long(bytes);
        }
        let to = &mut self.room[self.len..self.len + len];
        match len {
            16..=32 => copy_ends::<16>(to, bytes),
            8..16 => copy_ends::<8>(to, bytes),
            4..8 => copy_ends::<4>(to, bytes),
            2..4 => copy_ends::<2>(to, bytes),
            _ => to.copy_from_slice(bytes),
        }
        self.len += len;
    }

    #[cold]
    fn long(&mut self, bytes: &[u8]) {
        self.spill();
        self.out.extend_from_slice(bytes);
    }

    /// Appends the present part of the line, to make room.
    #[cold]
    fn spill(&mut self) {
        self.out.extend_from_slice(&self.room[..self.len]);
        self.len = 0;
    }

    /// Adds a number.
    #[inline(always)]
    pub fn number(&mut self, number: u64) {
        match number {
            0..10 => self.byte(b'0' + number as u8),
            10..100 => self.literal(&two_digits(number)),
            100..1_000 => {
                let [tens, ones] = two_digits(number);
                self.literal(&[b'0' + (number / 100) as u8, tens, ones]);
            }
            1_000..10_000 => self.literal(&four_digits(number)),
            _ => self.large_number(number),
        }
    }

    #[inline(never)]
    fn large_number(&mut self, number: u64) {
        match number {
            0..100_000_000 => self.number(number / 10_000),
            _ => self.large_number(number / 10_000),
        }
        self.literal(&four_digits(number));
    }

    /// Appends the line to the others.
    #[inline]
    pub fn end(self) {
        self.out.extend_from_slice(&self.room[..self.len]);
    }
}

/// Copies between `LEN` and twice as many bytes.
#[inline]
fn copy_ends<const LEN: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<LEN>(), from.first_chunk::<LEN>()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (to.last_chunk_mut::<LEN>(), from.last_chunk::<LEN>()) {
        *to = *from;
    }
}

/// The last two digits of a number.
#[inline]
pub(super) fn two_digits(number: u64) -> [u8; 2] {
    const DIGITS: [[u8; 2]; 100] = {
        let mut digits = [[b'0'; 2]; 100];
        let mut number = 0;
        while number < 100 {
            digits[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
            number += 1;
        }
        digits
    };
    DIGITS[number as usize % 100]
}

/// The last four digits of a number.
#[inline]
fn four_digits(number: u64) -> [u8; 4] {
    let ([a, b], [c, d]) = (two_digits(number / 100), two_digits(number));
    [a, b, c, d]
}

/// The output of `write`.
pub(super) fn written(write: impl FnOnce(&mut Line<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    let mut room = Room::default();
    let mut line = Line::new(&mut room, &mut out);
    write(&mut line);
    line.end();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_are_put_behind_each_other() {
        let text: Vec<u8> = (0..3 * ROOM).map(|at| b'a' + (at % 26) as u8).collect();
        for len in (0..70).chain([ROOM - 1, ROOM, ROOM + 1, 3 * ROOM]) {
            let piece = &text[..len];
            let line = written(|line| {
                for _ in 0..100 {
                    line.bytes(piece);
                    line.literal(b"<literal>");
                }
            });
            assert_eq!(line, [piece, b"<literal>"].concat().repeat(100), "{len}");
        }
    }

    #[test]
    fn lines_follow_each_other() {
        let mut room = Room::default();
        let mut out = b"before\n".to_vec();
        for _ in 0..2 {
            let mut line = Line::new(&mut room, &mut out);
            line.bytes(b"line");
            line.byte(b'\n');
            line.end();
        }
        assert_eq!(out, b"before\nline\nline\n");
    }

    #[test]
    fn numbers_are_written_as_elsewhere() {
        let powers = (0..20).map(|power| 10u64.pow(power));
        let around = powers.flat_map(|it| [it - 1, it, it + 1, it.wrapping_mul(7)]);
        for number in around.chain(0..1_100).chain([u64::MAX]) {
            let line = written(|line| line.number(number));
            assert_eq!(line, number.to_string().as_bytes());
        }
    }
}
