//! Names that are too long for their column.

use std::collections::{HashMap, HashSet};

use super::{Side, padded};

/// Each name with a text at most so wide.
///
/// Invariant: no two names get the same text, where any way to cut them that is tried
/// here keeps them apart.
pub(super) fn shortened<'a>(names: &[&'a str], width: usize) -> HashMap<&'a str, String> {
    let is_long = |name: &str| name.chars().count() > width;
    let (long, short): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_long(name));
    let kept = width.saturating_sub(1);
    // Names of hosts differ at either end: their middle is cut first.
    let middle = |name: &str| without_middle(name, kept / 2, kept);
    let shared = shared_prefix(&long);
    let without_prefix = |name: &str| {
        let rest: String = name.chars().skip(shared).collect();
        let text = padded(&format!("~{rest}"), width, Side::Left);
        text.trim_end().to_owned()
    };
    let mut texts: Vec<String> = long.iter().map(|name| middle(name)).collect();
    if !are_distinct(&texts) {
        let cuts = (0..=kept).map(|first| -> Vec<_> {
            let cut = long.iter().map(|name| without_middle(name, first, kept));
            cut.collect()
        });
        let prefix_cut =
            (shared > 0).then(|| long.iter().map(|name| without_prefix(name)).collect());
        let mut cuts = prefix_cut.into_iter().chain(cuts);
        texts = cuts.find(|it| are_distinct(it)).unwrap_or(texts);
    }
    let short = short.into_iter().map(|name| (name, name.to_owned()));
    long.iter().copied().zip(texts).chain(short).collect()
}

/// A name of `kept` characters and a `~`, which stands behind the `first` of them.
fn without_middle(name: &str, first: usize, kept: usize) -> String {
    let count = name.chars().count();
    let start: String = name.chars().take(first).collect();
    let end: String = name.chars().skip(count - (kept - first)).collect();
    format!("{start}~{end}")
}

/// How many characters all names begin with, in whole words and numbers.
fn shared_prefix(names: &[&str]) -> usize {
    let Some((one, others)) = names.split_first() else {
        return 0;
    };
    let same = |name: &&str| {
        let pairs = one.chars().zip(name.chars());
        pairs.take_while(|(a, b)| a == b).count()
    };
    let shared = others.iter().map(same).min().unwrap_or(0);
    let shared: Vec<_> = one.chars().take(shared).collect();
    let is_end = |letter: &char| !letter.is_alphanumeric();
    shared.iter().rposition(is_end).map_or(0, |at| at + 1)
}

fn are_distinct(texts: &[String]) -> bool {
    let distinct: HashSet<_> = texts.iter().collect();
    distinct.len() == texts.len()
}
