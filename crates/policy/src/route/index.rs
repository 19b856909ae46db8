//! The index of a route table: which rules a host and a path may meet.
//!
//! Hosts are found by hash, in [`hosts`]; each has a bucket of rules. A bucket of
//! many rules finds them by the path, in the trie of [`paths`]. Each gives a list
//! of rule numbers, and [`candidates`] merges the lists, so that rules are tried
//! in the order of the table. Built once, read by all workers.
//!
//! Invariant: a rule that is in none of the lists has a condition on the host or
//! on the path that does not hold.

mod candidates;
mod hosts;
mod paths;

use super::{Condition, Facts, HostPattern, PathPattern, RoutedRequest, Rule, cover};
pub(super) use candidates::{Proof, Search};
use hosts::HostTable;
use paths::PathTrie;

/// A range of [`Index::numbers`]: rule numbers in ascending order.
#[derive(Debug, Clone, Copy, Default)]
struct List {
    start: u32,
    len: u32,
}

impl List {
    /// Appends `numbers` to `all`.
    fn push(all: &mut Vec<u32>, numbers: &[u32]) -> Self {
        let start = all.len() as u32;
        all.extend_from_slice(numbers);
        Self {
            start,
            len: numbers.len() as u32,
        }
    }

    fn of(self, all: &[u32]) -> &[u32] {
        &all[self.start as usize..][..self.len as usize]
    }
}

/// The rules of one host, or of one suffix of hosts.
#[derive(Debug, Clone, Default)]
struct Bucket {
    all: List,
    /// `None` where they are so few that each is tried.
    by_path: Option<ByPath>,
}

/// The rules of a bucket by their conditions on the path.
#[derive(Debug, Clone)]
struct ByPath {
    /// The rules that the trie does not have.
    others: List,
    /// Node of the trie at which paths begin.
    root: u32,
}

/// Which rules a host and a path may meet.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    hosts: HostTable,
    /// The first has the rules for every host.
    buckets: Box<[Bucket]>,
    paths: PathTrie,
    numbers: Box<[u32]>,
}

impl Index {
    /// Builds the index, and notes in each rule which of its conditions the index
    /// decides. A bucket of more than `linear_up_to` rules finds them by path.
    pub fn new(rules: &mut [Rule], linear_up_to: usize) -> Self {
        for rule in rules.iter_mut() {
            rule.decided = Decided::of(rule.conditions());
        }
        let mut hosts = HostTable::default();
        let mut members: Vec<Vec<u32>> = vec![Vec::new()];
        for (number, rule) in rules.iter().enumerate() {
            let number = number as u32;
            let Some(Indexed { patterns, .. }) = indexed_hosts(rule.conditions()) else {
                members[0].push(number);
                continue;
            };
            for pattern in patterns {
                let bucket = hosts.insert(pattern, members.len() as u32) as usize;
                if bucket == members.len() {
                    members.push(Vec::new());
                }
                if members[bucket].last() != Some(&number) {
                    members[bucket].push(number);
                }
            }
        }
        let mut numbers = Vec::with_capacity(rules.len());
        let mut paths = paths::Builder::default();
        let buckets = members.iter().map(|members| Bucket {
            all: List::push(&mut numbers, members),
            by_path: (members.len() > linear_up_to)
                .then(|| ByPath::new(members, rules, &mut paths, &mut numbers)),
        });
        let buckets = buckets.collect();
        let paths = paths.build(&mut numbers);
        hosts.shrink();
        Self {
            hosts,
            buckets,
            paths,
            numbers: numbers.into(),
        }
    }

    /// Has `search` try every rule that the request may meet.
    pub fn offer<'t, F: Facts>(
        &'t self,
        request: &RoutedRequest<'_, F>,
        search: &mut Search<'t, impl FnMut(u32, Proof) -> bool>,
    ) {
        let mut offer = |bucket: usize| {
            let bucket = &self.buckets[bucket];
            let Some(by_path) = &bucket.by_path else {
                search.add(bucket.all.of(&self.numbers), Proof::Host);
                return;
            };
            search.add(by_path.others.of(&self.numbers), Proof::Host);
            self.paths.walk(by_path.root, request.path(), |list| {
                search.add(list.of(&self.numbers), Proof::HostAndPath);
            });
        };
        offer(0);
        self.hosts
            .look_up(request.facts.host(), |bucket| offer(bucket as usize));
    }

    /// The rules before `rule` that may take all requests of these `conditions`. At least the
    /// rules that take one host and one path of them are among these.
    pub fn rivals(&self, conditions: &[Condition], rule: usize) -> Vec<usize> {
        let host = cover::witness_of_host(conditions);
        let path = cover::witness_of_path(conditions);
        let mut rivals = Vec::new();
        let mut add = |list: List| rivals.extend_from_slice(list.of(&self.numbers));
        let mut look = |bucket: usize| {
            let bucket = &self.buckets[bucket];
            let Some(by_path) = &bucket.by_path else {
                add(bucket.all);
                return;
            };
            add(by_path.others);
            self.paths.walk(by_path.root, &path, &mut add);
        };
        look(0);
        self.hosts.look_up(&host, |bucket| look(bucket as usize));
        rivals.retain(|&it| (it as usize) < rule);
        rivals.sort_unstable();
        rivals.dedup();
        rivals.into_iter().map(|it| it as usize).collect()
    }

    /// The rules that do not ask for another host, in no order.
    pub fn any_of_host(&self, host: &[u8], mut is_it: impl FnMut(u32) -> bool) -> bool {
        let mut is_found = false;
        let mut look = |bucket: usize| {
            let mut numbers = self.buckets[bucket].all.of(&self.numbers).iter();
            is_found = is_found || numbers.any(|&number| is_it(number));
        };
        look(0);
        self.hosts.look_up(host, |bucket| look(bucket as usize));
        is_found
    }
}

impl ByPath {
    fn new(
        members: &[u32],
        rules: &[Rule],
        paths: &mut paths::Builder,
        numbers: &mut Vec<u32>,
    ) -> Self {
        let root = paths.root();
        let mut others = Vec::new();
        for &number in members {
            let conditions = rules[number as usize].conditions();
            let Some(Indexed { patterns, .. }) = indexed_paths(conditions) else {
                others.push(number);
                continue;
            };
            for pattern in patterns {
                paths.insert(root, pattern, number);
            }
        }
        Self {
            others: List::push(numbers, &others),
            root,
        }
    }
}

/// The conditions of a rule that the index decides, as bits.
///
/// A condition behind the 32nd has no bit, and is checked for every candidate.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Decided {
    host: u32,
    path: u32,
}

impl Decided {
    fn of(conditions: &[Condition]) -> Self {
        let bit = |at: usize| 1_u32.checked_shl(at as u32).unwrap_or(0);
        Self {
            host: indexed_hosts(conditions).map_or(0, |it| it.decided_at.map_or(0, bit)),
            path: indexed_paths(conditions).map_or(0, |it| it.decided_at.map_or(0, bit)),
        }
    }

    /// Whether the index has shown that the condition at `at` holds.
    #[inline]
    pub fn holds(self, at: usize, proof: Proof) -> bool {
        let bits = match proof {
            Proof::Host => self.host,
            Proof::HostAndPath => self.host | self.path,
        };
        at < 32 && bits >> at & 1 == 1
    }
}

/// Patterns: a request must match one of them to meet a rule.
struct Indexed<'r, T> {
    patterns: Vec<&'r T>,
    /// Place of the condition that holds where one does; `None` where more is asked.
    decided_at: Option<usize>,
}

/// The first condition on the host, if the table of hosts can hold all of its patterns. Else the
/// condition whose every alternative has one.
///
/// Invariant: the path of a rule that is left out is not compared. So the search ends at a
/// condition on the path.
fn indexed_hosts(conditions: &[Condition]) -> Option<Indexed<'_, HostPattern>> {
    for (at, condition) in conditions.iter().enumerate() {
        match condition {
            Condition::Host(host) if host.0.iter().all(hosts::has_key) => {
                return Some(Indexed {
                    patterns: host.0.iter().collect(),
                    decided_at: Some(at),
                });
            }
            Condition::Any(_) => {
                let found = of_every_alternative(condition, indexed_hosts);
                if found.is_some() || condition.has_path() {
                    return found;
                }
            }
            it if it.has_path() => return None,
            _ => {}
        }
    }
    None
}

/// The first condition on the path, if the trie can hold all of its patterns. Else the condition
/// whose every alternative has one.
fn indexed_paths(conditions: &[Condition]) -> Option<Indexed<'_, PathPattern>> {
    let direct = conditions.iter().enumerate().find_map(|(at, it)| match it {
        Condition::Path(path) if path.0.iter().all(paths::has_node) => Some(Indexed {
            patterns: path.0.iter().collect(),
            decided_at: Some(at),
        }),
        _ => None,
    });
    let of_any = |it| of_every_alternative(it, indexed_paths);
    direct.or_else(|| conditions.iter().find_map(of_any))
}

/// The patterns that `indexed` finds in each alternative of a condition made of others. `None` if
/// an alternative has none, and for other conditions.
fn of_every_alternative<'r, T>(
    condition: &'r Condition,
    indexed: impl Fn(&'r [Condition]) -> Option<Indexed<'r, T>>,
) -> Option<Indexed<'r, T>> {
    let Condition::Any(any) = condition else {
        return None;
    };
    let mut patterns = Vec::new();
    for alternative in &any.0 {
        patterns.extend(indexed(alternative.conditions())?.patterns);
    }
    Some(Indexed {
        patterns,
        decided_at: None,
    })
}
