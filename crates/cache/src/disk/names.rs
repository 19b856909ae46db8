//! The sets of names in `Vary` of the responses on the disk. There are few, so that the index
//! needs a byte for each.

use std::sync::{Arc, PoisonError, RwLock};

/// Most sets of a store. A response with another one is not written.
pub const MAX_SETS: usize = 255;

/// The number of a set of names: from 1 on.
pub type SetId = std::num::NonZeroU8;

/// Sets of names, each in the form of [`crate::vary::names`]. They are never forgotten.
#[derive(Debug, Default)]
pub struct NameSets {
    sets: RwLock<Vec<Arc<[u8]>>>,
}

impl NameSets {
    /// The number of a set, which it gets if it has none; `None` if there are too many.
    pub fn id_of(&self, names: &[u8]) -> Option<SetId> {
        let find = |sets: &[Arc<[u8]>]| {
            let at = sets.iter().position(|set| **set == *names)?;
            SetId::new(u8::try_from(at + 1).ok()?)
        };
        let known = find(&self.sets.read().unwrap_or_else(PoisonError::into_inner));
        if known.is_some() {
            return known;
        }
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        if sets.len() < MAX_SETS && find(&sets).is_none() {
            sets.push(names.into());
        }
        find(&sets)
    }

    /// The names of a set.
    pub fn names(&self, id: SetId) -> Option<Arc<[u8]>> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.get(usize::from(id.get()) - 1).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_keep_their_numbers_and_are_bounded() {
        let sets = NameSets::default();
        for turn in 0..2 {
            for at in 0..MAX_SETS + 10 {
                let names = format!("name-{at}\n");
                let id = sets.id_of(names.as_bytes());
                assert_eq!(id.is_some(), at < MAX_SETS, "{turn} {at}");
                if let Some(id) = id {
                    assert_eq!(usize::from(id.get()), at + 1);
                    assert_eq!(sets.names(id).as_deref(), Some(names.as_bytes()));
                }
            }
        }
        assert_eq!(NameSets::default().names(SetId::MIN), None);
    }
}
