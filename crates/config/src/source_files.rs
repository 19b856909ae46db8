//! The files of a configuration, read with their includes.
//!
//! A layer that is a file may name further ones: `include = ["conf.d/*.toml"]`. Their tables
//! come before its own, in the order of the patterns, then of the file names. Each file keeps
//! its own places.
//!
//! Invariant: no file is read twice, so there is no circle.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::diagnostics::{Origin, Report};
use super::document;
use super::input::{Kinds, read_up_to};
use super::not_toml::{self, NoText};
use super::secret;
use super::setting::{Placed, Setting, read_field};
use super::shape::{Presence, Shape};
use super::tree::{Node, SourcePlace, TableEntry, Value};
use super::value::IncludePattern;
use super::written::File;

/// Longest file of a configuration, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;
/// How many files may include one another in a row.
const MAX_DEPTH: usize = 8;
/// The key that names further files.
const INCLUDE: &str = "include";

/// How patterns find files.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    // An editor may leave hidden files beside its own.
    require_literal_leading_dot: true,
};

/// The files that were read, in order.
#[derive(Debug, Default)]
pub(super) struct SourceFiles {
    /// Every file of the configuration.
    pub paths: Vec<PathBuf>,
    /// The files read, and files that are missing or unreadable.
    pub sought: Vec<PathBuf>,
    /// Folders in which a new file would belong to the configuration.
    pub folders: Vec<PathBuf>,
    /// Files that no pattern finds, and where they were included.
    known: HashMap<PathBuf, Option<SourcePlace>>,
    /// The chain of files that include the current one, the outermost first.
    including: Vec<PathBuf>,
}

/// How an including file names another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    ByName,
    ByPattern,
}

impl SourceFiles {
    /// Keeps a file for a layer of its own: patterns then skip it.
    pub fn reserve(&mut self, path: &Path) {
        self.known.insert(canonical(path), None);
    }

    /// Reads a file of one of these kinds, and all that it includes: regular files.
    ///
    /// # Errors
    /// It can't be read. Mistakes in it go to the report.
    pub fn read(&mut self, path: &Path, kinds: Kinds, report: &mut Report) -> io::Result<Node> {
        self.sought.push(path.to_owned());
        let bytes = read_up_to(path, kinds, MAX_FILE_BYTES)?;
        self.paths.push(path.to_owned());
        let canonical = canonical(path);
        self.known.entry(canonical.clone()).or_insert(None);
        let mut layer = read_bytes(path, bytes, report);
        self.including.push(canonical);
        self.read_included(&mut layer, path, report);
        self.including.pop();
        Ok(layer)
    }

    /// Puts the tables of included files before the tables of the file at `path`.
    fn read_included(&mut self, layer: &mut Node, path: &Path, report: &mut Report) {
        let title = "the configuration";
        let field = read_field::<Vec<Placed<IncludePattern>>>(
            layer,
            title,
            INCLUDE,
            Presence::Optional(""),
            report,
        );
        let Value::Table(entries) = &mut layer.value else {
            return;
        };
        entries.retain(|it| it.key != INCLUDE);
        let patterns = field.value.unwrap_or_default();
        if patterns.is_empty() {
            return;
        }
        let mut all = Node {
            place: layer.place.clone(),
            value: Value::Table(Vec::new()),
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        for Placed { value, place } in patterns {
            if value.is_pattern() {
                for found in self.found(folder, &value.0, &place, report) {
                    self.include(&found, &place, Naming::ByPattern, &mut all, report);
                }
            } else {
                let path = folder.join(&value.0);
                self.include(&path, &place, Naming::ByName, &mut all, report);
            }
        }
        let own = std::mem::replace(layer, all);
        combine(layer, own, &File::shape(), report);
    }

    /// The files that a pattern finds, by their names.
    fn found(
        &mut self,
        folder: &Path,
        pattern: &str,
        place: &SourcePlace,
        report: &mut Report,
    ) -> Vec<PathBuf> {
        self.watch(folder, pattern);
        // It was a pattern when it was read.
        let Ok(found) = glob::glob_with(&globbed(folder, pattern), MATCHING) else {
            return Vec::new();
        };
        let mut paths = Vec::new();
        for path in found {
            match path {
                // A link that leads nowhere is a mistake when it is read.
                Ok(path) if fs::metadata(&path).map_or(true, |it| it.is_file()) => paths.push(path),
                Ok(_) => {}
                Err(error) => {
                    let path = error.path().display();
                    report.mistake(place, format!("read {path}: {}", error.error()));
                }
            }
        }
        paths
    }

    /// Notes the folders in which the parts of a pattern look.
    fn watch(&mut self, folder: &Path, pattern: &str) {
        let is_plain = |it: &&str| !it.contains(['*', '?', '[']);
        let parts = pattern.split_inclusive('/').take_while(is_plain);
        self.note_folder(folder.join(parts.collect::<String>()));
        let parents = Path::new(pattern).ancestors().skip(1);
        for parent in parents.map(Path::to_string_lossy) {
            if is_plain(&&*parent) {
                break;
            }
            let found = glob::glob_with(&globbed(folder, &parent), MATCHING);
            let found = found.into_iter().flatten().flatten();
            found
                .filter(|it| it.is_dir())
                .for_each(|it| self.note_folder(it));
        }
    }

    fn note_folder(&mut self, folder: PathBuf) {
        if !self.folders.contains(&folder) {
            self.folders.push(folder);
        }
    }

    /// Reads an included file, after those included before.
    fn include(
        &mut self,
        path: &Path,
        place: &SourcePlace,
        naming: Naming,
        all: &mut Node,
        report: &mut Report,
    ) {
        let canonical = canonical(path);
        let shown = path.display();
        if let Some(first) = self.known.get(&canonical) {
            if naming == Naming::ByPattern {
                return;
            }
            if self.including.contains(&canonical) {
                let what = format!("{shown} includes itself");
                report.mistake(place, what).help("leave it out");
                return;
            }
            let first = first.clone();
            let what = format!("{shown} is already part of the configuration");
            let found = report
                .mistake(place, what)
                .help("remove it: each file is read once");
            if let Some(first) = first {
                found.related(&first, "included here");
            }
            return;
        }
        if self.including.len() >= MAX_DEPTH {
            let what = format!("files include one another more than {MAX_DEPTH} levels deep");
            report.mistake(place, what);
            return;
        }
        self.known.insert(canonical, Some(place.clone()));
        match self.read(path, Kinds::Regular, report) {
            Ok(included) => combine(all, included, &File::shape(), report),
            Err(error) => {
                report.mistake(place, format!("read {shown}: {error}"));
            }
        }
    }
}

/// The path that identifies a file.
fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Adds the tables of another file; its items follow the existing ones. A name or a key in both
/// files is a mistake.
fn combine(base: &mut Node, other: Node, file: &Shape, report: &mut Report) {
    let Value::Table(entries) = other.value else {
        return;
    };
    for entry in entries {
        let shape = match file {
            Shape::Table(table) => table.keys.iter().find(|it| it.key == entry.key),
            _ => None,
        };
        add(base, entry, shape.map(|it| &it.shape), report);
    }
}

/// Adds a key of the whole configuration.
fn add(base: &mut Node, entry: TableEntry, shape: Option<&Shape>, report: &mut Report) {
    let Value::Table(entries) = &mut base.value else {
        return;
    };
    let Some(first) = entries.iter_mut().find(|it| it.key == entry.key) else {
        entries.push(entry);
        return;
    };
    match (&mut first.node.value, entry.node.value, shape) {
        (Value::List(items), Value::List(more), Some(Shape::List(_))) => items.extend(more),
        (Value::Table(keys), Value::Table(more), Some(Shape::Map(_) | Shape::Table(_))) => {
            for entry_of in more {
                match keys.iter().find(|it| it.key == entry_of.key) {
                    None => keys.push(entry_of),
                    Some(first) => twice(&entry.key, first, &entry_of, shape, report),
                }
            }
        }
        (_, value, _) => {
            let again = TableEntry {
                node: Node {
                    place: entry.node.place,
                    value,
                },
                key_place: entry.key_place,
                key: entry.key,
            };
            let title = format!("two files set the key `{}`", again.key);
            report
                .mistake(&again.key_place, title)
                .help("leave one of them out")
                .related(&first.key_place, "the first one");
        }
    }
}

/// Two files have this key of the table `table`.
fn twice(
    table: &str,
    first: &TableEntry,
    again: &TableEntry,
    shape: Option<&Shape>,
    report: &mut Report,
) {
    let name = &again.key;
    let title = match shape {
        Some(Shape::Map(_)) => format!("two files have an {table} named `{name}`"),
        _ => format!("two files set the key `{name}` of `[{table}]`"),
    };
    report
        .mistake(&again.key_place, title)
        .help("leave one of them out")
        .related(&first.key_place, "the first one");
}

/// Reads a layer from a file's bytes, as far as they are valid text.
pub(super) fn read_bytes(path: &Path, bytes: Vec<u8>, report: &mut Report) -> Node {
    let nothing = |report: &mut Report, what: &str, help: &str| {
        let shown = path.display();
        report
            .syntax_mistake_without_place(&format!("{shown} is {what}"))
            .help(help);
        Node {
            place: SourcePlace {
                source: report.add_source(Origin::File(shown.to_string()), ""),
                range: 0..0,
            },
            value: Value::Table(Vec::new()),
        }
    };
    match not_toml::encoding(&bytes) {
        None => read_layer(path, String::from_utf8_lossy(&bytes).into_owned(), report),
        Some(NoText::Binary { line }) => nothing(
            report,
            &format!("a binary file: line {line} has the byte 0x00"),
            "name the file with the configuration",
        ),
        Some(NoText::Utf16) => nothing(report, "UTF-16 text", "save it as UTF-8"),
        Some(NoText::Byte { byte, at }) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let place = SourcePlace {
                source: report.next_source(),
                range: at..at + char::REPLACEMENT_CHARACTER.len_utf8(),
            };
            report
                .syntax_mistake(place, &format!("the byte 0x{byte:02X} is not valid UTF-8"))
                .help(not_toml::byte_help(byte));
            read_layer(path, text, report)
        }
    }
}

fn read_layer(path: &Path, text: String, report: &mut Report) -> Node {
    let source = report.add_source(Origin::File(path.display().to_string()), text);
    let mut layer = document::read_document(source, report);
    let file = File::shape();
    report.hide(&secret::places(&mut layer, &file));
    report.hide_in_broken_lines(source, &file);
    layer
}

/// A pattern for files in this folder, with special characters of the folder's name escaped.
fn globbed(folder: &Path, pattern: &str) -> String {
    let path = folder.join(pattern);
    let text = if path.starts_with(folder) && !Path::new(pattern).is_absolute() {
        let folder = Pattern::escape(&folder.to_string_lossy());
        PathBuf::from(folder).join(pattern)
    } else {
        path
    };
    text.to_string_lossy().into_owned()
}
