//! Field compression for HTTP/2 (HPACK, RFC 7541).
//!
//! A [`Decoder`] writes each field as a line of HTTP/1 text, behind the text that a buffer has.
//! The head of a message then lies there as if it had come by HTTP/1, and is read by spans. A
//! field is copied once.
//!
//! [`encode`] has the other direction. It adds nothing to the peer's table. So a connection needs
//! no table for it, and no value can be guessed by how short it gets (RFC 7541 §7.1).

mod huffman;
mod table;

pub mod encode;

use crate::span::Span;
use table::{Dynamic, STATIC};

/// Bytes of a decoder's table, until the peer gets another size.
pub const TABLE_SIZE: u16 = 4096;

/// Why a block can't be decoded. The connection's state is lost: it must be closed with
/// `COMPRESSION_ERROR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The block ends within a field.
    Short,
    /// A number is longer than any that is needed.
    Number,
    /// No field of a table has this number.
    Index,
    /// A string is not Huffman coded as it says.
    Huffman,
    /// The table is to be larger than was agreed, or changes where it may not.
    TableSize,
}

/// A field that was decoded: where its name and value lie in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Its name.
    pub name: Span,
    /// Its value.
    pub value: Span,
    /// The number in the static table that gave its name; 0 for none.
    pub static_name: u8,
}

/// Decodes the blocks of fields of one direction of a connection, in their order.
#[derive(Debug)]
pub struct Decoder {
    table: Dynamic,
    /// The largest size that the peer may choose.
    max_size: u16,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new(TABLE_SIZE)
    }
}

impl Decoder {
    /// A decoder whose table has at most so many bytes, as the peer was told.
    pub fn new(max_size: u16) -> Self {
        Decoder {
            table: Dynamic::new(max_size),
            max_size,
        }
    }

    /// Bytes of memory that its table holds.
    pub fn memory(&self) -> usize {
        self.table.memory()
    }

    /// Begins a block.
    pub fn block<'a>(&'a mut self, bytes: &'a [u8]) -> Block<'a> {
        Block {
            decoder: self,
            rest: bytes,
            has_field: false,
        }
    }
}

/// A block of fields that is being decoded. All of it has to be decoded, whatever it holds: later
/// blocks build on its table.
#[derive(Debug)]
pub struct Block<'a> {
    decoder: &'a mut Decoder,
    rest: &'a [u8],
    has_field: bool,
}

/// The kinds of a field's representation (RFC 7541 §6).
enum Representation {
    Indexed,
    /// Whether it is added to the table.
    Literal {
        is_added: bool,
    },
}

impl Block<'_> {
    /// Decodes the next field, as `name: value` and a line end, behind the text of `out`. `None`
    /// at the end of the block.
    ///
    /// A name or a value has at most 1.6 times its bytes in the block, or is from a table. So one
    /// field is bounded by the block's length and the table's size.
    ///
    /// # Errors
    /// The breach of RFC 7541. `out` may then have a part of a field.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<Option<Decoded>, DecodeError> {
        loop {
            let Some(&first) = self.rest.first() else {
                return Ok(None);
            };
            let (representation, prefix) = match first {
                0x80.. => (Representation::Indexed, 7),
                0x40.. => (Representation::Literal { is_added: true }, 6),
                0x20.. => {
                    self.resize()?;
                    continue;
                }
                // Whether it may be indexed by a proxy is no question: none is.
                _ => (Representation::Literal { is_added: false }, 4),
            };
            self.has_field = true;
            let number = number(&mut self.rest, prefix)?;
            return match representation {
                Representation::Indexed => self.indexed(number, out).map(Some),
                Representation::Literal { is_added } => {
                    self.literal(number, is_added, out).map(Some)
                }
            };
        }
    }

    /// The peer changes the size of its table, before the first field (RFC 7541 §4.2).
    fn resize(&mut self) -> Result<(), DecodeError> {
        let size = number(&mut self.rest, 5)?;
        let size = u16::try_from(size).map_err(|_| DecodeError::TableSize)?;
        if self.has_field || size > self.decoder.max_size {
            return Err(DecodeError::TableSize);
        }
        self.decoder.table.resize(size);
        Ok(())
    }

    fn indexed(&mut self, number: u32, out: &mut Vec<u8>) -> Result<Decoded, DecodeError> {
        let (name, value) = self.field(number)?;
        let start = out.len();
        out.reserve(name.len() + value.len() + 4);
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
        Ok(Decoded {
            name: Span::new(start, start + name.len()),
            value: Span::new(start + name.len() + 2, out.len() - 2),
            static_name: static_number(number),
        })
    }

    fn literal(
        &mut self,
        number: u32,
        is_added: bool,
        out: &mut Vec<u8>,
    ) -> Result<Decoded, DecodeError> {
        let start = out.len();
        match number {
            0 => string(&mut self.rest, out)?,
            number => out.extend_from_slice(self.field(number)?.0),
        }
        let name = Span::new(start, out.len());
        out.extend_from_slice(b": ");
        let start = out.len();
        string(&mut self.rest, out)?;
        let value = Span::new(start, out.len());
        if is_added {
            self.decoder.table.insert(name.of(out), value.of(out));
        }
        out.extend_from_slice(b"\r\n");
        Ok(Decoded {
            name,
            value,
            static_name: static_number(number),
        })
    }

    /// The field of this number in both tables (RFC 7541 §2.3.3).
    fn field(&self, number: u32) -> Result<(&[u8], &[u8]), DecodeError> {
        let index = (number as usize).checked_sub(1).ok_or(DecodeError::Index)?;
        match STATIC.get(index) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => {
                let field = self.decoder.table.field(index - STATIC.len());
                field.ok_or(DecodeError::Index)
            }
        }
    }
}

/// The number, if it is one of the static table.
fn static_number(number: u32) -> u8 {
    u8::try_from(number).map_or(0, |it| {
        if usize::from(it) <= STATIC.len() {
            it
        } else {
            0
        }
    })
}

/// Takes a number whose first bits share a byte with others (RFC 7541 §5.1). It has at
/// most 28 bits more than those: no length and no index needs more.
fn number(rest: &mut &[u8], prefix: u32) -> Result<u32, DecodeError> {
    let (first, mut tail) = rest.split_first().ok_or(DecodeError::Short)?;
    let mask = (1u32 << prefix) - 1;
    let mut number = u32::from(*first) & mask;
    if number == mask {
        let mut shift = 0;
        loop {
            let (byte, behind) = tail.split_first().ok_or(DecodeError::Short)?;
            tail = behind;
            number += u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 21 {
                return Err(DecodeError::Number);
            }
        }
    }
    *rest = tail;
    Ok(number)
}

/// Takes a string, and appends its text (RFC 7541 §5.2).
fn string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let is_coded = rest.first().is_some_and(|it| it & 0x80 != 0);
    let len = number(rest, 7)? as usize;
    let (text, behind) = rest.split_at_checked(len).ok_or(DecodeError::Short)?;
    *rest = behind;
    if is_coded {
        return huffman::decode(text, out).map_err(|_| DecodeError::Huffman);
    }
    out.extend_from_slice(text);
    Ok(())
}

#[cfg(test)]
mod tests;
