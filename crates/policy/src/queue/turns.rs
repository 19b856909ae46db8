//! The order of service of a queue that keys share, and who gives way where it is full.
//!
//! Each key has a line, and lines are served in turn: fair queueing, as in J. Nagle, "On
//! packet switches with infinite storage", RFC 970 (1985), with the turns of S. J.
//! Golestani, "A self-clocked fair queueing scheme", INFOCOM 1994. A full queue takes the
//! newest of the longest line out (P. McKenney, "Stochastic fairness queueing", 1990).
//!
//! ```text
//! line of a:  a1 a2 a3 a4     turn 1: a1 b1 c1
//! line of b:  b1              turn 2: a2 c2
//! line of c:  c1 c2           turn 3: a3
//! ```
//!
//! An index beside the waiters, which the queue holds. A line exists as long as a waiter is in
//! it, so that there are no more lines than waiters. A line is of one key, one lane and one
//! priority.
//!
//! Invariant: a new line has its first turn behind the present one. So a client that comes back
//! as soon as it was served gets no more than its turns. Lines that were served need not be
//! remembered.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::iter::Peekable;

use super::QueuePlace;

/// The position of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub lane: usize,
    pub place: QueuePlace,
}

/// The lines of all keys.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lanes: Vec<Lines>,
    /// The latest turn in which a waiter was served.
    turn: u64,
}

/// The lines of one lane.
#[derive(Debug, Default)]
struct Lines {
    by_key: BTreeMap<LineId, Line>,
    /// One for each line.
    next: BTreeSet<Next>,
    /// One for each line.
    lengths: BTreeSet<Length>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LineId {
    rank: u8,
    key: u64,
}

#[derive(Debug)]
struct Line {
    /// The turn in which it is served next.
    turn: u64,
    places: BTreeSet<QueuePlace>,
}

/// The waiter that is served when its line has its turn, in the order of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    rank: u8,
    turn: u64,
    place: QueuePlace,
    lane: usize,
    key: u64,
}

/// How many wait in a line. The last one is the longest of the lowest priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Length {
    rank: u8,
    len: usize,
    key: u64,
}

/// The line that gives way first in a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Longest {
    /// 255 less the priority.
    pub rank: u8,
    /// How many wait in it.
    pub len: usize,
    /// Its newest waiter.
    pub newest: Position,
}

impl Turns {
    /// Adds a waiter to the line of its key.
    pub fn join(&mut self, Position { lane, place }: Position, key: u64) {
        let first_turn = self.turn + 1;
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, Lines::default);
        }
        self.lanes[lane].change(lane, place.rank, key, |line| {
            let line = line.get_or_insert_with(|| Line {
                turn: first_turn,
                places: BTreeSet::new(),
            });
            line.places.insert(place);
        });
    }

    /// Takes a waiter out, served or not.
    pub fn leave(&mut self, Position { lane, place }: Position, key: u64) {
        let Some(lines) = self.lanes.get_mut(lane) else {
            return;
        };
        lines.change(lane, place.rank, key, |line| {
            if let Some(it) = line {
                it.places.remove(&place);
                if it.places.is_empty() {
                    *line = None;
                }
            }
        });
    }

    /// The line of this waiter has had its turn.
    ///
    /// Invariant: a line that could not be served for a while, because its lane was full,
    /// has one turn at once and none to make up for.
    pub fn serve(&mut self, Position { lane, place }: Position, key: u64) {
        let Some(lines) = self.lanes.get_mut(lane) else {
            return;
        };
        let turn = &mut self.turn;
        lines.change(lane, place.rank, key, |line| {
            if let Some(line) = line {
                *turn = line.turn.max(*turn);
                line.turn = *turn + 1;
            }
        });
    }

    /// How many of this key wait in this lane with this rank.
    pub fn line_len(&self, lane: usize, rank: u8, key: u64) -> usize {
        let lines = self.lanes.get(lane);
        let line = lines.and_then(|it| it.by_key.get(&LineId { rank, key }));
        line.map_or(0, |it| it.places.len())
    }

    /// The longest line of the lowest priority in these lanes.
    pub fn longest(&self, lanes: impl Iterator<Item = usize>) -> Option<Longest> {
        lanes.filter_map(|lane| self.longest_in(lane)).max()
    }

    fn longest_in(&self, lane: usize) -> Option<Longest> {
        let lines = self.lanes.get(lane)?;
        let &Length { rank, len, key } = lines.lengths.last()?;
        let &place = lines.by_key.get(&LineId { rank, key })?.places.last()?;
        let newest = Position { lane, place };
        Some(Longest { rank, len, newest })
    }

    /// How many lines there are.
    pub fn line_count(&self) -> usize {
        self.lanes.iter().map(|it| it.by_key.len()).sum()
    }

    /// How many wait in the longest line.
    pub fn longest_len(&self) -> usize {
        let lines = self.lanes.iter().flat_map(|it| &it.lengths);
        lines.map(|it| it.len).max().unwrap_or(0)
    }

    /// All waiters in the open lanes, in the order of service.
    pub fn in_order(&self, open: impl Fn(usize) -> bool) -> InTurn<'_> {
        let lanes = self
            .lanes
            .iter()
            .enumerate()
            .filter(|(lane, _)| open(*lane));
        InTurn {
            turns: self,
            lanes: lanes.map(|(_, it)| it.next.iter().peekable()).collect(),
            behind: BinaryHeap::new(),
        }
    }
}

impl Lines {
    /// Changes a line, and its entries in the sets beside it. `None` is a line without waiters.
    fn change(&mut self, lane: usize, rank: u8, key: u64, change: impl FnOnce(&mut Option<Line>)) {
        let id = LineId { rank, key };
        let mut line = self.by_key.remove(&id);
        if let Some((next, length)) = line.as_ref().and_then(|it| it.entries(lane, id)) {
            self.next.remove(&next);
            self.lengths.remove(&length);
        }
        change(&mut line);
        let Some(line) = line else {
            return;
        };
        if let Some((next, length)) = line.entries(lane, id) {
            self.next.insert(next);
            self.lengths.insert(length);
        }
        self.by_key.insert(id, line);
    }
}

impl Line {
    fn entries(&self, lane: usize, LineId { rank, key }: LineId) -> Option<(Next, Length)> {
        let next = Next {
            rank,
            turn: self.turn,
            place: *self.places.first()?,
            lane,
            key,
        };
        let len = self.places.len();
        Some((next, Length { rank, len, key }))
    }
}

/// Waiters in the order of service, found one by one: most often the first is served.
pub(super) struct InTurn<'a> {
    turns: &'a Turns,
    /// Of each lane, the first waiters of its lines.
    lanes: Vec<Peekable<std::collections::btree_set::Iter<'a, Next>>>,
    /// The next waiters in lines whose first one was passed over.
    behind: BinaryHeap<Reverse<Next>>,
}

impl InTurn<'_> {
    fn take_first(&mut self) -> Option<Next> {
        let first = self.lanes.iter_mut().filter_map(|it| it.peek().copied());
        let first = first.min().copied();
        let behind = self.behind.peek().map(|Reverse(it)| *it);
        if behind.is_some_and(|it| first.is_none_or(|first| it < first)) {
            self.behind.pop();
            return behind;
        }
        let first = first?;
        let mut lanes = self.lanes.iter_mut();
        lanes.find_map(|it| it.next_if(|it| **it == first)).copied()
    }
}

impl Iterator for InTurn<'_> {
    type Item = Position;

    fn next(&mut self) -> Option<Position> {
        use std::ops::Bound::{Excluded, Unbounded};
        let next = self.take_first()?;
        let Next {
            rank,
            turn,
            place,
            lane,
            key,
        } = next;
        let line = self
            .turns
            .lanes
            .get(lane)?
            .by_key
            .get(&LineId { rank, key });
        let after = line.and_then(|it| it.places.range((Excluded(place), Unbounded)).next());
        if let Some(&place) = after {
            let turn = turn.max(self.turns.turn) + 1;
            self.behind.push(Reverse(Next {
                turn,
                place,
                ..next
            }));
        }
        Some(Position { lane, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lane: usize, rank: u8, number: u64) -> Position {
        Position {
            lane,
            place: QueuePlace {
                rank,
                arrived_ns: number,
                number,
            },
        }
    }

    /// The numbers of all in the order of service, while each that is served leaves.
    fn served(turns: &mut Turns, key_of: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(first) = turns.in_order(|_| true).next() {
            let number = first.place.number;
            turns.serve(first, key_of(number));
            turns.leave(first, key_of(number));
            numbers.push(number);
        }
        assert_eq!((turns.line_count(), turns.longest_len()), (0, 0));
        let is_empty = |it: &Lines| it.next.is_empty() && it.lengths.is_empty();
        assert!(turns.lanes.iter().all(is_empty), "{turns:?}");
        numbers
    }

    #[test]
    fn lines_are_served_in_turn() {
        // Ten of the first key, then two of another, then one of a third.
        let key_of = |number| u64::from(number >= 10) + u64::from(number >= 12);
        let mut turns = Turns::default();
        for number in 0..13 {
            turns.join(at(0, 255, number), key_of(number));
        }
        let in_order: Vec<_> = turns.in_order(|_| true).map(|it| it.place.number).collect();
        let expected = [0, 10, 12, 1, 11, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(in_order, expected);
        assert_eq!((turns.line_count(), turns.longest_len()), (3, 10));
        assert_eq!(served(&mut turns, key_of), expected);
    }

    #[test]
    fn one_key_of_each_waiter_is_first_in_first_out() {
        let mut turns = Turns::default();
        for number in 0..3 {
            turns.join(at(0, 255, number), number);
        }
        let first = turns.in_order(|_| true).next().unwrap();
        turns.serve(first, 0);
        turns.leave(first, 0);
        turns.join(at(0, 255, 3), 3);
        turns.join(at(0, 255, 4), 0);
        assert_eq!(served(&mut turns, |number| number % 4), [1, 2, 3, 4]);
    }

    /// A client that comes back at once takes turns with the waiters.
    #[test]
    fn coming_back_at_once_gains_nothing() {
        let mut turns = Turns::default();
        for number in 0..10 {
            turns.join(at(0, 255, number), 1);
        }
        turns.join(at(0, 255, 10), 2);
        let mut keys = Vec::new();
        let mut number = 11;
        for _ in 0..8 {
            let first = turns.in_order(|_| true).next().unwrap();
            let key = if first.place.number < 10 { 1 } else { 2 };
            turns.serve(first, key);
            turns.leave(first, key);
            keys.push(key);
            if key == 2 {
                turns.join(at(0, 255, number), 2);
                number += 1;
            }
        }
        assert_eq!(keys, [1, 2, 1, 2, 1, 2, 1, 2]);
    }

    #[test]
    fn priorities_come_before_turns_and_lanes_share_them() {
        let mut turns = Turns::default();
        // Key 1 fills lane 0, then one of key 2 waits in lane 1, then one of a higher priority.
        for number in 0..4 {
            turns.join(at(0, 255, number), 1);
        }
        turns.join(at(1, 255, 4), 2);
        turns.join(at(0, 250, 5), 1);
        let numbers = |turns: &Turns, open: fn(usize) -> bool| {
            let order = turns.in_order(open);
            order.map(|it| it.place.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&turns, |_| true), [5, 0, 4, 1, 2, 3]);
        assert_eq!(numbers(&turns, |lane| lane == 1), [4]);
        // While lane 1 is full, the other goes on; then it has one turn, not three.
        turns.join(at(1, 255, 6), 2);
        for number in 0..3 {
            turns.serve(at(0, 255, number), 1);
            turns.leave(at(0, 255, number), 1);
        }
        turns.join(at(0, 255, 7), 3);
        assert_eq!(numbers(&turns, |_| true), [5, 4, 3, 6, 7]);
        turns.serve(at(1, 255, 4), 2);
        turns.leave(at(1, 255, 4), 2);
        assert_eq!(numbers(&turns, |_| true), [5, 3, 6, 7]);
    }

    #[test]
    fn the_longest_line_of_the_lowest_priority_gives_way() {
        let mut turns = Turns::default();
        assert_eq!(turns.longest(0..3), None);
        for number in 0..5 {
            turns.join(at(0, 250, number), 1);
        }
        turns.join(at(0, 255, 5), 2);
        turns.join(at(0, 255, 6), 3);
        turns.join(at(0, 255, 7), 3);
        let longest = turns.longest(0..3).unwrap();
        assert_eq!((longest.len, longest.newest), (2, at(0, 255, 7)));
        assert_eq!(turns.longest(1..2), None);
        assert_eq!(turns.line_len(0, 250, 1), 5);
        assert_eq!(turns.line_len(0, 255, 1), 0);
        assert_eq!(turns.longest_len(), 5);
    }
}
