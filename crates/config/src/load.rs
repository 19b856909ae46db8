//! From files, variables and arguments to a configuration or a report.

use std::io;
use std::path::Path;

use super::Config;
use super::diagnostics::{Origin, Report};
use super::document;
use super::input::read_up_to;
use super::layers;
use super::not_toml::{self, NoText};
use super::print;
use super::resolve::resolve;
use super::secret;
use super::setting::Setting;
use super::surroundings::{NameLookup, Surroundings};
use super::tree::{Node, SourcePlace, Value};
use super::unknown;
use super::written::File;

/// The file beside the configuration file that overrides it.
pub const LOCAL_FILE: &str = "local.toml";

/// Says in the effective configuration what its options do not: it depends on the
/// process that runs on it.
const DEFAULT_LOG_COMMENT: &str = "\
    # Access log: combined lines on standard output where that is a terminal, where the\n\
    # process is PID 1, and where its environment has `container`; else none.\n\n";

/// A configuration without mistakes.
#[derive(Debug)]
pub struct Loaded {
    /// What to run on.
    pub config: Config,
    /// What is doubtful about it; may be empty.
    pub warnings: Report,
    /// All layers as one TOML document, with every default filled in and
    /// without secrets.
    pub effective: String,
}

/// Longest file of a configuration, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Loads the file at `path`, then `local.toml` beside it, then those of
/// `variables` that begin with `EVENKEEL_`, then `sets`, each a `key=value`.
///
/// # Errors
///
/// Every mistake in any layer.
pub fn load(
    path: &Path,
    sets: &[String],
    variables: impl IntoIterator<Item = (String, String)>,
    lookup: NameLookup,
) -> Result<Loaded, Report> {
    let mut report = Report::default();
    let mut root = match read_up_to(path, MAX_FILE_BYTES) {
        Ok(bytes) => read_bytes(path, bytes, &mut report),
        Err(error) => {
            report.mistake_without_place(format!("read {}: {error}", path.display()));
            return Err(report);
        }
    };
    let local = path.with_file_name(LOCAL_FILE);
    if local != path {
        match read_up_to(&local, MAX_FILE_BYTES) {
            Ok(bytes) => {
                let over = read_bytes(&local, bytes, &mut report);
                layers::merge(&mut root, over);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                report.mistake_without_place(format!("read {}: {error}", local.display()));
            }
        }
    }
    layers::apply_variables(&mut root, variables, &mut report);
    for set in sets {
        layers::apply_set(&mut root, set, &mut report);
    }
    finish(root, surroundings(path, lookup), report)
}

/// Loads `bytes` alone, as if they stood in a file of this name.
///
/// # Errors
///
/// Every mistake in it.
pub fn load_text(
    name: &str,
    bytes: impl AsRef<[u8]>,
    lookup: NameLookup,
) -> Result<Loaded, Report> {
    let mut report = Report::default();
    let path = Path::new(name);
    let root = read_bytes(path, bytes.as_ref().to_owned(), &mut report);
    finish(root, surroundings(path, lookup), report)
}

/// Reads a layer from a file's bytes, as far as they are text.
fn read_bytes(path: &Path, bytes: Vec<u8>, report: &mut Report) -> Node {
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
                .syntax_mistake(place, &format!("the byte 0x{byte:02X} is no UTF-8"))
                .help(not_toml::byte_help(byte));
            read_layer(path, text, report)
        }
    }
}

fn surroundings(path: &Path, lookup: NameLookup) -> Surroundings<'_> {
    Surroundings {
        folder: path.parent().unwrap_or(Path::new("")),
        lookup,
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

fn finish(
    mut root: Node,
    surroundings: Surroundings<'_>,
    mut report: Report,
) -> Result<Loaded, Report> {
    unknown::check(&root, &File::shape(), &mut report);
    let file = File::read(&root, &mut report);
    let config = file.and_then(|file| resolve(&file, surroundings, &mut report));
    report.settle();
    match config {
        Some(mut config) if !report.has_mistakes() => {
            print::fill_defaults(&mut root, &File::shape());
            config.hash = evenkeel_policy::hash::hash(print::document(&root).as_bytes());
            print::hide_secrets(&mut root, &File::shape());
            let mut effective = print::document(&root);
            if config.default_access_logs.is_some() {
                effective.insert_str(0, DEFAULT_LOG_COMMENT);
            }
            Ok(Loaded {
                config,
                warnings: report,
                effective,
            })
        }
        _ => Err(report),
    }
}
