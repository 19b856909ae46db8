//! Merges lists of rule numbers, and tries each rule once, in ascending order.

/// Most lists that are merged at once. More are taken in turns: then a rule may be
/// tried although an earlier one matches, which changes no result.
const MAX_LISTS: usize = 8;

/// The index's proof on the rules of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::route) enum Proof {
    /// They take the request's host.
    Host,
    /// They take the request's host and its path.
    HostAndPath,
}

/// A list and its rest.
#[derive(Clone, Copy)]
struct Cursor<'t> {
    rest: &'t [u32],
    proof: Proof,
}

/// A search for the first rule that `matches`, among the rules of some lists.
pub(in crate::route) struct Search<'t, M> {
    matches: M,
    cursors: [Cursor<'t>; MAX_LISTS],
    len: usize,
    /// The first rule that is known to match, or above all rules.
    found: u32,
}

impl<'t, M: FnMut(u32, Proof) -> bool> Search<'t, M> {
    pub fn new(matches: M) -> Self {
        let none = Cursor {
            rest: &[],
            proof: Proof::Host,
        };
        Self {
            matches,
            cursors: [none; MAX_LISTS],
            len: 0,
            found: u32::MAX,
        }
    }

    /// Adds the rules of `list`, which is in ascending order.
    #[inline]
    pub fn add(&mut self, list: &'t [u32], proof: Proof) {
        if list.first().is_none_or(|&first| first >= self.found) {
            return;
        }
        if self.len == MAX_LISTS {
            self.merge();
        }
        self.cursors[self.len] = Cursor { rest: list, proof };
        self.len += 1;
    }

    /// Number of the first rule that matches.
    pub fn finish(mut self) -> Option<usize> {
        self.merge();
        (self.found != u32::MAX).then_some(self.found as usize)
    }

    /// Tries the rules of the lists, up to the first that matches.
    fn merge(&mut self) {
        let cursors = &mut self.cursors[..self.len];
        self.len = 0;
        loop {
            let heads = cursors.iter().filter_map(|it| it.rest.first());
            let Some(&next) = heads.min().filter(|&&next| next < self.found) else {
                return;
            };
            let mut proof = Proof::Host;
            for cursor in &mut *cursors {
                if let [first, rest @ ..] = cursor.rest
                    && *first == next
                {
                    cursor.rest = rest;
                    if cursor.proof == Proof::HostAndPath {
                        proof = cursor.proof;
                    }
                }
            }
            if (self.matches)(next, proof) {
                self.found = next;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_tried_in_order_and_once() {
        for (lists, first, tried) in [
            (&[][..], 0, &[][..]),
            (&[&[0, 4, 7][..], &[1, 4], &[9]], 7, &[0, 1, 4, 7]),
            (&[&[2, 3], &[2]], 2, &[2]),
            (&[&[2, 3], &[]], 9, &[2, 3]),
            // More than are merged at once: what lies behind a match is left out.
            (
                &[
                    &[8],
                    &[7],
                    &[6],
                    &[5],
                    &[4],
                    &[3],
                    &[9],
                    &[10],
                    &[1, 2, 11],
                    &[12],
                ],
                5,
                &[3, 4, 5, 1, 2],
            ),
        ] {
            let mut seen = Vec::new();
            let mut search = Search::new(|number, _| {
                seen.push(number);
                number >= first
            });
            for list in lists {
                search.add(list, Proof::Host);
            }
            let found = search.finish();
            let all = lists.iter().copied().flatten().copied();
            let expected = all.filter(|&it| it >= first).min();
            assert_eq!(found, expected.map(|it| it as usize), "{lists:?}");
            assert_eq!(seen, tried, "{lists:?}");
        }
    }
}
