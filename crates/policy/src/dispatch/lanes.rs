//! Lanes: parts of an upstream's slots that some routes are kept to.
//!
//! Shared between workers. An added lane stays, so that its index names no other one: exchanges
//! of an older configuration have it and wait in it. A lane is found again by its name when the
//! name comes back.

use std::sync::OnceLock;
// No decision depends on when another thread sees a width.
use std::sync::atomic::AtomicU32 as Width;

use crate::sync::{AtomicU32, Ordering};

/// The settings that one lane begins with.
#[derive(Debug, Clone, Copy)]
pub struct LaneSettings<'a> {
    /// Its name.
    pub name: &'a str,
    /// Most exchanges in it, over all endpoints.
    pub max_in_flight: u32,
}

/// A part of the upstream's slots that some routes are kept to.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Lane {
    pub in_flight: AtomicU32,
    max_in_flight: Width,
    name: Box<str>,
}

impl Lane {
    fn new(settings: &LaneSettings<'_>) -> Self {
        Lane {
            in_flight: AtomicU32::new(0),
            max_in_flight: Width::new(settings.max_in_flight),
            name: settings.name.into(),
        }
    }

    /// Most exchanges in it.
    pub fn max_in_flight(&self) -> u32 {
        self.max_in_flight.load(Ordering::Relaxed)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn has_room(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) < self.max_in_flight()
    }

    pub fn try_reserve(&self) -> bool {
        let max = self.max_in_flight();
        self.in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < max).then_some(count + 1)
            })
            .is_ok()
    }

    pub fn release(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lanes by index. Reading takes no lock.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Box<[Lane]>,
    /// Lanes that were added later.
    later: OnceLock<Box<Lanes>>,
}

impl Lanes {
    pub fn new(settings: &[LaneSettings<'_>]) -> Self {
        Lanes {
            lanes: settings.iter().map(Lane::new).collect(),
            later: OnceLock::new(),
        }
    }

    /// All of them, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        let parts = std::iter::successors(Some(self), |it| it.later.get().map(|it| &**it));
        parts.flat_map(|it| it.lanes.iter())
    }

    pub fn get(&self, index: usize) -> &Lane {
        match self.lanes.get(index) {
            Some(lane) => lane,
            None => self.later(index - self.lanes.len()),
        }
    }

    #[cold]
    fn later(&self, index: usize) -> &Lane {
        let later = self.later.get().expect("a lane has an index");
        later.get(index)
    }

    /// The lane of this name.
    pub fn named(&self, name: &str) -> Option<usize> {
        self.iter().position(|it| *it.name == *name)
    }

    /// Sets the width of each lane, and adds new lanes. Gives the number of lanes. To be called
    /// by one thread at a time.
    pub fn configure(&self, settings: &[LaneSettings<'_>]) -> usize {
        let mut new = Vec::new();
        for it in settings {
            match self.named(it.name) {
                Some(index) => {
                    let width = &self.get(index).max_in_flight;
                    width.store(it.max_in_flight, Ordering::Relaxed);
                }
                None => new.push(*it),
            }
        }
        if !new.is_empty() {
            let mut last = self;
            while let Some(later) = last.later.get() {
                last = later;
            }
            last.later.get_or_init(|| Box::new(Lanes::new(&new)));
        }
        self.iter().count()
    }
}
