//! Exact paths and prefixes of paths, in a trie of segments.

use hashbrown::HashTable;

use super::List;
use crate::hash::{hash, mix};
use crate::route::PathPattern;

/// A trie of path segments. Each bucket of the index has a root of its own in it.
///
/// A path leads from node to node by its segments, and ends at the first segment
/// that no pattern has. So a path costs no more than the longest pattern.
#[derive(Debug, Clone, Default)]
pub(super) struct PathTrie {
    nodes: Box<[Node]>,
    children: HashTable<Child>,
    /// The texts of all segments, one behind the other.
    segments: Box<[u8]>,
    max_segment_len: usize,
}

/// The node at which the segments of one pattern end.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    /// Rules for the path that ends here.
    exact: List,
    /// Rules for every path that goes on from here with a slash.
    prefix: List,
}

/// The way from a node to another, by a segment.
#[derive(Debug, Clone)]
struct Child {
    parent: u32,
    start: u32,
    len: u32,
    node: u32,
}

/// Whether the trie can hold a pattern.
pub(super) fn has_node(pattern: &PathPattern) -> bool {
    match pattern {
        PathPattern::Exact(path) => path.first() == Some(&b'/'),
        PathPattern::Prefix(path) => path.first() == Some(&b'/') && path.last() == Some(&b'/'),
        PathPattern::Glob(_) | PathPattern::Regex(_) => false,
    }
}

impl PathTrie {
    /// Calls `found` with the rules of each pattern that `path`, in its normal form,
    /// matches.
    pub fn walk(&self, root: u32, path: &[u8], mut found: impl FnMut(List)) {
        let Some((b'/', mut rest)) = path.split_first() else {
            return;
        };
        let mut node = root;
        loop {
            found(self.nodes[node as usize].prefix);
            let slash = memchr::memchr(b'/', rest);
            let segment = &rest[..slash.unwrap_or(rest.len())];
            if segment.len() > self.max_segment_len {
                return;
            }
            let is_it = |it: &Child| it.parent == node && it.segment(&self.segments) == segment;
            let Some(child) = self.children.find(hash_of(node, segment), is_it) else {
                return;
            };
            node = child.node;
            let Some(slash) = slash else {
                found(self.nodes[node as usize].exact);
                return;
            };
            rest = &rest[slash + 1..];
        }
    }
}

impl Child {
    fn segment<'a>(&self, segments: &'a [u8]) -> &'a [u8] {
        &segments[self.start as usize..][..self.len as usize]
    }
}

fn hash_of(parent: u32, segment: &[u8]) -> u64 {
    mix(hash(segment) ^ u64::from(parent))
}

/// A trie that is being built.
#[derive(Debug, Default)]
pub(super) struct Builder {
    node_count: u32,
    children: HashTable<Child>,
    segments: Vec<u8>,
    max_segment_len: usize,
    postings: Vec<Posting>,
}

/// A rule at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Posting {
    node: u32,
    at: Position,
    rule: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Exact,
    Prefix,
}

impl Builder {
    /// A root for another bucket.
    pub fn root(&mut self) -> u32 {
        self.node_count += 1;
        self.node_count - 1
    }

    /// Adds a rule for a pattern that [`has_node`].
    pub fn insert(&mut self, root: u32, pattern: &PathPattern, rule: u32) {
        let (path, at) = match pattern {
            PathPattern::Exact(path) => (path.as_slice(), Position::Exact),
            PathPattern::Prefix(path) => {
                (path.strip_suffix(b"/").unwrap_or(path), Position::Prefix)
            }
            // The caller asks `has_node` first.
            PathPattern::Glob(_) | PathPattern::Regex(_) => return,
        };
        let mut segments = path.split(|&byte| byte == b'/');
        // A pattern begins with a slash: there is nothing in front of it.
        segments.next();
        let node = segments.fold(root, |node, segment| self.child(node, segment));
        self.postings.push(Posting { node, at, rule });
    }

    fn child(&mut self, parent: u32, segment: &[u8]) -> u32 {
        let hash = hash_of(parent, segment);
        let segments = &self.segments;
        let is_it = |it: &Child| it.parent == parent && it.segment(segments) == segment;
        if let Some(child) = self.children.find(hash, is_it) {
            return child.node;
        }
        let child = Child {
            parent,
            start: self.segments.len() as u32,
            len: segment.len() as u32,
            node: self.node_count,
        };
        self.node_count += 1;
        self.max_segment_len = segment.len().max(self.max_segment_len);
        self.segments.extend_from_slice(segment);
        let segments = &self.segments;
        let rehash = |it: &Child| hash_of(it.parent, it.segment(segments));
        self.children.insert_unique(hash, child, rehash);
        self.node_count - 1
    }

    /// The trie; its lists go to `numbers`.
    pub fn build(mut self, numbers: &mut Vec<u32>) -> PathTrie {
        self.postings.sort_unstable();
        self.postings.dedup();
        let mut nodes = vec![Node::default(); self.node_count as usize];
        let same_list = |a: &Posting, b: &Posting| (a.node, a.at) == (b.node, b.at);
        let mut rules = Vec::new();
        for list in self.postings.chunk_by(same_list) {
            rules.clear();
            rules.extend(list.iter().map(|it| it.rule));
            let node = &mut nodes[list[0].node as usize];
            let place = match list[0].at {
                Position::Exact => &mut node.exact,
                Position::Prefix => &mut node.prefix,
            };
            *place = List::push(numbers, &rules);
        }
        let segments = self.segments;
        let rehash = |it: &Child| hash_of(it.parent, it.segment(&segments));
        self.children.shrink_to_fit(rehash);
        PathTrie {
            nodes: nodes.into(),
            children: self.children,
            segments: segments.into(),
            max_segment_len: self.max_segment_len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_paths_and_every_prefix() {
        let patterns = [
            "/", "/*", "/a", "/a/", "/a/*", "/a/b", "/a/b/*", "/a/b/c", "/b/*", "/aa", "/a\\*/*",
        ];
        let patterns = patterns.map(|it| PathPattern::new(it).unwrap());
        let mut builder = Builder::default();
        let roots = [builder.root(), builder.root()];
        for (rule, pattern) in patterns.iter().enumerate() {
            assert!(has_node(pattern), "{pattern}");
            builder.insert(roots[0], pattern, rule as u32);
        }
        builder.insert(roots[1], &patterns[2], 99);
        let mut numbers = Vec::new();
        let trie = builder.build(&mut numbers);
        let found = |root: u32, path: &str| {
            let mut found = Vec::new();
            let path = path.as_bytes();
            trie.walk(root, path, |list| {
                found.extend_from_slice(list.of(&numbers))
            });
            found.sort_unstable();
            found
        };
        for path in [
            "/",
            "/a",
            "/a/",
            "/a/b",
            "/a/b/",
            "/a/b/c",
            "/a/b/c/d",
            "/b",
            "/b/x/y",
            "/aa",
            "/aaa",
            "/a*",
            "/a*/",
            "*",
            "",
            "/a/much-longer-than-any-pattern",
        ] {
            let matching = patterns.iter().enumerate();
            let matching = matching.filter(|(_, it)| it.matches(path.as_bytes()));
            let expected: Vec<_> = matching.map(|(rule, _)| rule as u32).collect();
            assert_eq!(found(roots[0], path), expected, "{path}");
        }
        assert_eq!(found(roots[1], "/a"), [99]);
        assert_eq!(found(roots[1], "/a/b"), [0_u32; 0]);
    }
}
