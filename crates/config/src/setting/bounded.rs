//! Whole numbers between bounds.

use super::{Resolve, Setting, wrong_type};
use crate::diagnostics::Report;
use crate::shape::Shape;
use crate::tree::{Node, Value};

/// An integer between bounds, both included, in the type that the program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounded<T, const MIN: i64, const MAX: i64>(T);

/// A type that a [`Bounded`] can have.
pub trait Whole: Copy {
    /// The least that it holds.
    const LEAST: i64;
    /// The most that it holds, as far as the file can say it.
    const MOST: i64;

    /// The same number; it lies between the two.
    fn from_i64(number: i64) -> Self;
}

macro_rules! whole {
    ($($type:ty),*) => {
        $(
            impl Whole for $type {
                const LEAST: i64 = 0;
                const MOST: i64 = if size_of::<$type>() < size_of::<i64>() {
                    <$type>::MAX as i64
                } else {
                    i64::MAX
                };

                fn from_i64(number: i64) -> Self {
                    number as $type
                }
            }
        )*
    };
}

whole!(u8, u16, u32, usize);

impl<T: Whole, const MIN: i64, const MAX: i64> Bounded<T, MIN, MAX> {
    /// Bounds that the type does not hold are a build error.
    const FITS: () = assert!(T::LEAST <= MIN && MIN <= MAX && MAX <= T::MOST);

    /// The number, if it is within the bounds.
    fn new(number: i64) -> Option<Self> {
        let () = Self::FITS;
        (MIN..=MAX)
            .contains(&number)
            .then(|| Self(T::from_i64(number)))
    }

    /// The number.
    pub fn get(self) -> T {
        self.0
    }
}

impl<T: Whole, const MIN: i64, const MAX: i64> Setting for Bounded<T, MIN, MAX> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let Value::Integer(number) = node.value else {
            return wrong_type(node, report);
        };
        let value = Self::new(number);
        if value.is_none() {
            let expected = Self::shape().words();
            report
                .mistake(&node.place, format!("{number} is out of range"))
                .label(format!("expected {expected}"));
        }
        value
    }

    fn shape() -> Shape {
        Shape::Integer { min: MIN, max: MAX }
    }
}

impl<T: Whole, const MIN: i64, const MAX: i64> Resolve for Bounded<T, MIN, MAX> {
    type Resolved = T;

    fn resolve(&self) -> Option<T> {
        Some(self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_its_value_in_the_type_of_the_program() {
        type Most = Bounded<u32, 1, { u32::MAX as i64 }>;
        assert_eq!(
            Most::new(i64::from(u32::MAX)).map(Bounded::get),
            Some(u32::MAX)
        );
        assert_eq!(Most::new(1).map(Bounded::get), Some(1));
        for number in [0, -1, i64::MIN, i64::from(u32::MAX) + 1, i64::MAX] {
            assert_eq!(Most::new(number), None, "{number}");
        }
        assert_eq!(Bounded::<u8, 0, 9>::new(9).map(Bounded::get), Some(9));
    }
}
