//! Dependencies between modules: the layers of `docs/architecture.md`, read from the source.
//!
//! Three rules, for the code that is not a test:
//!
//! 1. A crate uses only crates before it in [`CRATES`].
//! 2. A module of the program uses only modules before it in [`LAYERS`].
//! 3. Modules that lie side by side have no circle: where one uses another,
//!    directly or through others, that one does not use it back.
//!
//! A module may use what its parent holds, and the parent its children: that is
//! one place, written in several files.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

/// The crates, from the bottom up.
const CRATES: [&str; 14] = [
    "evenkeel_proto",
    "evenkeel_policy",
    "evenkeel_cache",
    "evenkeel_metrics",
    "evenkeel_tls",
    "evenkeel_acme",
    "evenkeel_passwords",
    "evenkeel_net",
    "evenkeel_config",
    "evenkeel_origin",
    "evenkeel_testkit",
    "evenkeel",
    "evenkeel_lab",
    "main",
];

/// The modules of the program, from the bottom up.
const LAYERS: [&str; 20] = [
    "scheduling",
    "lifecycle",
    "watching",
    "files",
    "shared_server",
    "limits",
    "maintenance",
    "passwords",
    "cache",
    "certificates",
    "observe",
    "http2",
    "upstream",
    "discovery",
    "exchange",
    "handler",
    "client",
    "explain",
    "admin",
    "runtime",
];

type Module = Vec<String>;

/// A crate's modules, and the paths that each of them names.
#[derive(Debug, Default)]
struct Crate {
    /// By module: the paths as written.
    paths: BTreeMap<Module, BTreeSet<Vec<String>>>,
    /// By module: the names that it imports, with their targets.
    imported: BTreeMap<Module, BTreeMap<String, Import>>,
}

/// Reads files: from the disk, or from a test.
type Source<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Crate {
    /// Reads the crate whose root is this file.
    fn read(root: &Path, source: Source<'_>) -> Self {
        let mut found = Crate::default();
        let text = source(root).unwrap_or_else(|| panic!("no {}", root.display()));
        let folder = root.parent().unwrap().to_owned();
        found.read_module(Module::new(), &folder, &text, source);
        found
    }

    /// `folder` is where the files of its children lie.
    fn read_module(&mut self, module: Module, folder: &Path, text: &str, source: Source<'_>) {
        let file = syn::parse_file(text).unwrap_or_else(|it| panic!("{module:?}: {it}"));
        self.read_items(module, folder, &file.items, source);
    }

    fn read_items(
        &mut self,
        module: Module,
        folder: &Path,
        items: &[syn::Item],
        source: Source<'_>,
    ) {
        let mut named = Named::default();
        for item in items {
            if is_for_tests(item) {
                continue;
            }
            match item {
                syn::Item::Mod(child) => {
                    let name = child.ident.to_string();
                    let folder = folder.join(&name);
                    let path = [&module[..], &[name]].concat();
                    if let Some((_, items)) = &child.content {
                        self.read_items(path, &folder, items, source);
                    } else {
                        let text = [folder.with_extension("rs"), folder.join("mod.rs")]
                            .iter()
                            .find_map(|it| source(it));
                        let text = text.unwrap_or_else(|| panic!("no file of {path:?}"));
                        self.read_module(path, &folder, &text, source);
                    }
                }
                item => named.visit_item(item),
            }
        }
        self.imported.insert(module.clone(), named.imported);
        self.paths.insert(module, named.paths);
    }

    /// The module that a path leads to, seen from another one; `Err` with the name of
    /// another crate of ours.
    fn resolve(&self, from: &Module, path: &[String]) -> Option<Result<Module, String>> {
        let mut at: Module;
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at = Module::new();
                rest = &rest[1..];
            }
            "self" | "super" => {
                at = from.clone();
                while let [first, more @ ..] = rest {
                    match first.as_str() {
                        "self" => {}
                        "super" => drop(at.pop()),
                        _ => break,
                    }
                    rest = more;
                }
            }
            name if name.starts_with("evenkeel") => return Some(Err(name.to_owned())),
            name if self
                .paths
                .contains_key(&[&from[..], &[name.to_owned()]].concat()) =>
            {
                at = from.clone();
            }
            _ => return None,
        }
        // Follow modules and their imports as far as possible.
        while let [name, more @ ..] = rest {
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.paths.contains_key(&child) {
                (at, rest) = (child, more);
                continue;
            }
            let imported = self.imported.get(&at).and_then(|it| it.get(name));
            return match imported {
                // A private import is visible only to children.
                Some(import) if import.is_public || from.starts_with(&at) => {
                    self.resolve(&at, &import.path)
                }
                _ => Some(Ok(at)),
            };
        }
        Some(Ok(at))
    }

    /// Whom each module uses, other than itself.
    fn uses(&self) -> Vec<(Module, Result<Module, String>)> {
        let mut uses = BTreeSet::new();
        for (module, paths) in &self.paths {
            for path in paths {
                if let Some(used) = self.resolve(module, path)
                    && used.as_ref() != Ok(module)
                {
                    uses.insert((module.clone(), used));
                }
            }
        }
        uses.into_iter().collect()
    }

    /// The violations of the rules.
    fn complaints(&self, name: &str, crates: &[&str], layers: &[&str]) -> Vec<String> {
        let mut complaints = Vec::new();
        let rank = |order: &[&str], it: &str| order.iter().position(|other| *other == it);
        for (module, used) in self.uses() {
            let at = format!("{name}::{}", module.join("::"));
            match used {
                Err(used) if rank(crates, &used) >= rank(crates, name) => {
                    complaints.push(format!("{at} uses the crate {used}"));
                }
                Ok(used) if !layers.is_empty() => {
                    let (Some(own), Some(other)) = (module.first(), used.first()) else {
                        continue;
                    };
                    if rank(layers, other) > rank(layers, own) {
                        complaints.push(format!("{at} uses {}, above it", used.join("::")));
                    }
                }
                _ => {}
            }
        }
        for module in self.paths.keys() {
            let circles = self.circles_in(module);
            let at = [&[name.to_owned()], &module[..]].concat().join("::");
            if !circles.is_empty() {
                complaints.push(format!("circles in {at}: {circles:#?}"));
            }
        }
        complaints
    }

    /// The circles among the children of a module.
    fn circles_in(&self, parent: &Module) -> Vec<String> {
        let mut uses: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let depth = parent.len();
        for (module, used) in self.uses() {
            let Ok(used) = used else { continue };
            let is_inside = |it: &Module| it.len() > depth && it.starts_with(parent);
            if is_inside(&module) && is_inside(&used) && module[depth] != used[depth] {
                let example = format!("{} uses {}", module.join("::"), used.join("::"));
                let of_child = uses.entry(module[depth].clone()).or_default();
                of_child.insert(used[depth].clone(), example);
            }
        }
        let reachable = |from: &String| {
            let mut seen = BTreeSet::new();
            let mut next = vec![from];
            while let Some(it) = next.pop() {
                for used in uses.get(it).into_iter().flat_map(BTreeMap::keys) {
                    if seen.insert(used) {
                        next.push(used);
                    }
                }
            }
            seen
        };
        let mut circles = Vec::new();
        for (child, used) in &uses {
            for (other, example) in used {
                if reachable(other).contains(child) {
                    circles.push(example.clone());
                }
            }
        }
        circles
    }
}

/// The paths that items name, and the names that they import.
#[derive(Debug, Default)]
struct Named {
    paths: BTreeSet<Vec<String>>,
    imported: BTreeMap<String, Import>,
}

/// The target of an imported name.
#[derive(Debug)]
struct Import {
    path: Vec<String>,
    is_public: bool,
}

impl Named {
    fn add_use(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let joined = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (path, name) = match tree {
            syn::UseTree::Path(it) => {
                self.add_use(&it.tree, &joined(&it.ident), is_public);
                return;
            }
            syn::UseTree::Group(it) => {
                let trees = it.items.iter();
                trees.for_each(|tree| self.add_use(tree, before, is_public));
                return;
            }
            syn::UseTree::Glob(_) => (before.to_vec(), None),
            syn::UseTree::Name(it) if it.ident == "self" => {
                (before.to_vec(), before.last().cloned())
            }
            syn::UseTree::Name(it) => (joined(&it.ident), Some(it.ident.to_string())),
            syn::UseTree::Rename(it) => (joined(&it.ident), Some(it.rename.to_string())),
        };
        if let Some(name) = name {
            let path = path.clone();
            self.imported.insert(name, Import { path, is_public });
        }
        self.paths.insert(path);
    }

    /// Macros are not parsed: whatever looks like a path in them is one.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(it) if colons == 2 && !path.is_empty() => {
                    path.push(it.to_string())
                }
                TokenTree::Punct(it) if it.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                token => {
                    self.add_path(std::mem::take(&mut path));
                    match token {
                        TokenTree::Ident(it) => path.push(it.to_string()),
                        TokenTree::Group(it) => self.add_tokens(it.stream()),
                        _ => {}
                    }
                }
            }
            colons = 0;
        }
        self.add_path(path);
    }

    fn add_path(&mut self, path: Vec<String>) {
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }
}

impl<'a> Visit<'a> for Named {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_for_tests(item) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.add_use(&item.tree, &[], is_public);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments = path.segments.iter();
        self.add_path(segments.map(|it| it.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, it: &'a syn::Macro) {
        self.add_tokens(it.tokens.clone());
    }
}

/// Whether an item is compiled for tests alone.
fn is_for_tests(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Struct(it) => &it.attrs,
        _ => return false,
    };
    attributes.iter().any(|it| {
        let is_test = |tokens: &str| tokens.contains("test") && !tokens.contains("not (test");
        it.path().is_ident("cfg")
            && matches!(&it.meta, syn::Meta::List(list) if is_test(&list.tokens.to_string()))
    })
}

/// The crates of this repository: their names in code, and their roots.
fn crates() -> Vec<(String, PathBuf)> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut crates = vec![
        ("evenkeel".to_owned(), repository.join("src/lib.rs")),
        ("main".to_owned(), repository.join("src/main.rs")),
    ];
    for entry in fs::read_dir(repository.join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        let root = folder.join("src/lib.rs");
        if root.exists() {
            crates.push((format!("evenkeel_{name}"), root));
        }
    }
    crates
}

#[test]
fn no_arrow_points_up() {
    let mut complaints = Vec::new();
    for (name, root) in crates() {
        assert!(CRATES.contains(&&*name), "{name} has no place in CRATES");
        let found = Crate::read(&root, &|path| fs::read_to_string(path).ok());
        let layers: &[&str] = if name == "evenkeel" { &LAYERS } else { &[] };
        if !layers.is_empty() {
            let top: BTreeSet<_> = found.paths.keys().filter_map(|it| it.first()).collect();
            let known: BTreeSet<_> = layers.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(top, known.iter().collect(), "LAYERS and the modules");
        }
        complaints.extend(found.complaints(&name, &CRATES, layers));
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// The violations in a crate with these files.
fn complaints_of(files: &[(&str, &str)]) -> Vec<String> {
    let source = |path: &Path| {
        let mut found = files.iter().filter(|(name, _)| Path::new(name) == path);
        found.next().map(|(_, text)| (*text).to_owned())
    };
    Crate::read(Path::new("lib.rs"), &source).complaints(
        "b",
        &["a", "b", "evenkeel_c"],
        &["low", "high"],
    )
}

#[test]
fn one_arrow_up_is_found() {
    let root = "mod low; mod high; pub use high::it as passed;";
    let with = |low: &str, high: &str| {
        complaints_of(&[("lib.rs", root), ("low.rs", low), ("high.rs", high)])
    };
    assert!(
        with(
            "pub fn it() {}",
            "use crate::low; pub fn it() { super::low::it() }"
        )
        .is_empty()
    );
    let found = ["b::low uses high, above it"];
    assert_eq!(with("use crate::high;", "pub fn it() {}"), found);
    assert_eq!(with("fn f() { crate::high::it() }", ""), found);
    assert_eq!(with("fn f() { assert!(super::high::it()) }", ""), found);
    assert_eq!(with("use super::{high::it};", ""), found);
    assert_eq!(with("fn f() { crate::passed() }", ""), found);
    assert_eq!(
        with("", "use evenkeel_c::it;"),
        ["b::high uses the crate evenkeel_c"]
    );
    // Tests may use anything.
    assert!(with("#[cfg(test)] mod tests { use crate::high; }", "").is_empty());
}

#[test]
fn circles_are_found() {
    let inside = "pub mod one { use super::two::It; } pub mod two { use super::three::It; }";
    let with = |three: &str| {
        complaints_of(&[(
            "lib.rs",
            &format!("mod low {{ {inside} {three} }} mod high {{}}"),
        )])
    };
    assert!(with("pub mod three { pub struct It; }").is_empty());
    for three in [
        "pub mod three { use super::one; pub struct It; }",
        // By a name that their parent imports.
        "use one::It; pub mod three { use super::It; }",
    ] {
        let found = with(three);
        assert_eq!(found.len(), 1, "{found:?}");
        for arrow in [
            "one uses low::two",
            "two uses low::three",
            "three uses low::one",
        ] {
            assert!(found[0].contains(arrow), "{found:?}");
        }
    }
}
