//! What is kept of things that are shown in an order, and known by their names.
//!
//! Invariant: after [`follow`](ByName::follow) positions are those of the figures that it
//! followed. Between two looks things may have joined, left or moved.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

/// Something of each thing, in the order of the figures that were looked at last.
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
    /// Takes over this order. A thing without a past begins `fresh`, and what is gone is
    /// forgotten. Whether anything is other than before.
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

    /// The name of what stands there.
    pub(super) fn name(&self, at: usize) -> &str {
        &self.names[at]
    }

    /// What is kept of the thing with this name. It stands there, unless it has moved.
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
        // One that left begins anew.
        assert!(counts.follow(names("b"), || 0));
        assert_eq!(counts[..], [0]);
    }
}
