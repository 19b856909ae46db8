//! A random share, as a condition of requests.

use evenkeel_policy::hash::mix;
use evenkeel_policy::route::condition::{self, Condition};

use super::diagnostics::Report;
use super::quantity::Part;
use super::setting::Setting;
use super::shape::Shape;
use super::tree::Node;

/// A random share of the requests, above 0.
#[derive(Debug)]
pub struct Chance {
    part: f64,
    /// By its place: two shares are drawn apart from one another.
    salt: u64,
}

impl Chance {
    /// Its condition; none if it is all requests.
    pub fn condition(&self) -> Vec<Condition> {
        let Self { part, salt } = *self;
        let share = (part < 1.0).then(|| condition::Share { part, salt }.into());
        share.into_iter().collect()
    }
}

impl Setting for Chance {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let Part(part) = Part::read(node, report)?;
        if part == 0.0 {
            report
                .mistake(&node.place, "a share of 0 matches no request")
                .help("0.01 is one in a hundred; to match none, remove the route");
            return None;
        }
        let place = &node.place;
        Some(Self {
            part,
            salt: mix(place.source as u64) ^ place.range.start as u64,
        })
    }

    fn shape() -> Shape {
        Part::shape()
    }
}
