//! Records of objects that have an order and are identified by name.
//!
//! Invariant: after [`follow`](ByName::follow) positions are those of the followed figures.
//! Between two looks, objects may have joined, left or moved.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

/// A record of each object, in the order of the last figures.
#[derive(Debug)]
pub(super) struct ByName<T> {
    names: Vec<String>,
    values: Vec<T>,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        ByName {
            names: Vec::new(),
            values: Vec::new(),
        }
    }
}

impl<T> ByName<T> {
    /// Takes over this order. An object without a record starts `fresh`; records of objects that
    /// are gone are dropped. Returns whether anything has changed.
    pub(super) fn follow<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str> + Clone,
        mut fresh: impl FnMut() -> T,
    ) -> bool {
        if names.clone().eq(self.names.iter().map(String::as_str)) {
            return false;
        }
        let before = std::mem::take(&mut self.names).into_iter();
        let mut before: HashMap<_, _> = before.zip(std::mem::take(&mut self.values)).collect();
        for name in names {
            let (name, value) = before
                .remove_entry(name)
                .unwrap_or_else(|| (name.to_owned(), fresh()));
            self.names.push(name);
            self.values.push(value);
        }
        true
    }

    /// The name at this position.
    pub(super) fn name(&self, at: usize) -> &str {
        &self.names[at]
    }

    /// The record of the object with this name. It is at this position, unless it has moved.
    pub(super) fn get_near(&self, at: usize, name: &str) -> Option<&T> {
        let is_it = |it: &String| it == name;
        let at = match self.names.get(at) {
            Some(it) if is_it(it) => Some(at),
            _ => self.names.iter().position(is_it),
        };
        self.values.get(at?)
    }
}

impl<T> Deref for ByName<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for ByName<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_keeps_its_past() {
        let mut counts = ByName::<u32>::default();
        let names = |all: &'static str| all.split(' ');
        assert!(counts.follow(names("a b c"), || 0));
        for (at, count) in counts.iter_mut().enumerate() {
            *count = at as u32 + 1;
        }
        assert!(!counts.follow(names("a b c"), || 0));
        assert!(counts.follow(names("d c a"), || 0));
        assert_eq!(counts[..], [0, 3, 1]);
        assert_eq!((counts.name(0), counts.name(1)), ("d", "c"));
        assert_eq!(counts.get_near(1, "c"), Some(&3));
        assert_eq!(counts.get_near(0, "a"), Some(&1));
        assert_eq!(counts.get_near(2, "b"), None);
        // One that left starts again.
        assert!(counts.follow(names("b"), || 0));
        assert_eq!(counts[..], [0]);
    }
}
