//! A line under construction.
//!
//! It is put together in room of a fixed size, whose bounds the compiler knows,
//! and copied behind the other lines at the end: that costs half of what twenty
//! pieces do that are each appended to a vector. A line that is longer goes
//! behind the others piece by piece.

/// Room for most lines, in bytes.
const ROOM: usize = 2048;

/// Where lines are put together, one after the other.
#[derive(Debug)]
pub(super) struct Room(Box<[u8; ROOM]>);

impl Default for Room {
    fn default() -> Self {
        Room(Box::new([0; ROOM]))
    }
}

/// A line under construction; it is behind the others when it was
/// [`end`](Line::end)ed.
#[derive(Debug)]
pub(super) struct Line<'a> {
    room: &'a mut [u8; ROOM],
    len: usize,
    out: &'a mut Vec<u8>,
}

impl<'a> Line<'a> {
    /// A line that will be put behind those in `out`.
    pub fn new(room: &'a mut Room, out: &'a mut Vec<u8>) -> Self {
        Line {
            room: &mut room.0,
            len: 0,
            out,
        }
    }

    /// Adds bytes whose number is known when this is compiled.
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

    /// Adds bytes, of which there are few most of the time: two copies of a
    /// known length, one from the beginning and one from the end, cost less
    /// than the call that a copy of any length takes.
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

    /// Puts what there is behind the others, to make room for more.
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

    /// Puts the line behind the others.
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

/// What `write` writes.
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
