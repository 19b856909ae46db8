//! The history of evicted objects: which ones were stored lately.
//!
//! An entry takes four bytes: a part of the hash and a moment, in a table of buckets. A moment
//! is a number of evictions. An object is forgotten after as many further evictions as there
//! are stored objects (Yang et al., SOSP '23, §4.1).

/// Places in a bucket: the oldest makes room.
const WAYS: usize = 4;
/// Number of moments until an object is forgotten.
const MOMENTS: u32 = 1 << 10;

/// The history of one shard.
#[derive(Debug, Default)]
pub(super) struct Ghost {
    /// The upper half is a moment, the lower a fingerprint; 0 for an empty place.
    places: Vec<u32>,
    /// Evictions so far.
    evicted: u64,
}

impl Ghost {
    /// Notes the eviction of an object with this hash; `stored` objects are in the shard.
    pub fn add(&mut self, hash: u32, stored: usize) {
        let wanted = stored.next_power_of_two().max(64);
        if wanted > self.places.len() || wanted * 4 < self.places.len() {
            // All is forgotten: that happens as often as the shard doubles.
            self.places = vec![0; wanted];
        }
        self.evicted += 1;
        let now = self.moment();
        let bucket = self.bucket(hash);
        let age = |place: u32| now.wrapping_sub((place >> 16) as u16);
        let places = &mut self.places[bucket..bucket + WAYS];
        let oldest = places.iter_mut().max_by_key(|place| match **place {
            0 => u32::MAX,
            place => age(place).into(),
        });
        if let Some(oldest) = oldest {
            *oldest = u32::from(now) << 16 | fingerprint(hash);
        }
    }

    /// Whether an object with this hash was evicted lately. Its entry is removed, since the
    /// object comes back.
    pub fn take(&mut self, hash: u32) -> bool {
        if self.places.is_empty() {
            return false;
        }
        let now = self.moment();
        let bucket = self.bucket(hash);
        let is_it = |place: &&mut u32| {
            let age = now.wrapping_sub((**place >> 16) as u16);
            **place & 0xffff == fingerprint(hash) && u32::from(age) <= MOMENTS
        };
        let found = self.places[bucket..bucket + WAYS].iter_mut().find(is_it);
        found.map(|place| *place = 0).is_some()
    }

    /// Whether nothing has gone yet.
    pub fn is_unused(&self) -> bool {
        self.places.is_empty()
    }

    fn moment(&self) -> u16 {
        let evictions_a_moment = (self.places.len() as u64 / u64::from(MOMENTS)).max(1);
        (self.evicted / evictions_a_moment) as u16
    }

    fn bucket(&self, hash: u32) -> usize {
        let buckets = self.places.len() / WAYS;
        let spread = hash.wrapping_mul(0x9E37_79B9) as usize;
        (spread % buckets) * WAYS
    }
}

/// Never 0, which marks an empty place.
fn fingerprint(hash: u32) -> u32 {
    (hash >> 16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(at: u32) -> u32 {
        let mixed = evenkeel_policy::hash::mix(at.into());
        mixed as u32
    }

    #[test]
    fn remembers_about_as_many_as_are_stored() {
        let mut ghost = Ghost::default();
        assert!(!ghost.take(hash(1)));
        for at in 0..100_000 {
            ghost.add(hash(at), 4096);
        }
        let of_late = (98_000..100_000).filter(|at| ghost.take(hash(*at))).count();
        let before = (0..90_000).filter(|at| ghost.take(hash(*at))).count();
        assert!(of_late > 1700, "{of_late} of 2000");
        assert!(before < 60, "{before}");
        assert!(
            !ghost.take(hash(99_999)),
            "it is forgotten when it is taken"
        );
    }
}
