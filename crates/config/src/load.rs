//! From files, variables and arguments to a configuration or a report.

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_net::Address;

use super::Config;
use super::diagnostics::Report;
use super::diff::Written;
use super::input::Kinds;
use super::layers;
use super::print;
use super::resolve::resolve;
use super::setting::{FromText, Setting};
use super::source_files::{self, SourceFiles};
use super::surroundings::{NameLookup, Surroundings};
use super::tree::Node;
use super::unknown;
use super::value::SocketPath;
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
    /// The configuration to run on.
    pub config: Config,
    /// Doubts about the configuration; may be empty.
    pub warnings: Report,
    /// All layers as one TOML document, with every default filled in and without secrets.
    pub effective: String,
    /// Every file that was read, in order: the file, the files that it includes, and
    /// `local.toml` if there is one.
    pub files: Vec<PathBuf>,
    /// Folders in which the patterns of `include` look: a new file there may become a
    /// part of the configuration.
    pub folders: Vec<PathBuf>,
}

/// Loads all layers: the file at `path` with its includes, `local.toml` beside it, `variables`,
/// then `sets`.
///
/// Of `variables`, only those that begin with `EVENKEEL_` count. Each item of `sets` is a
/// `key=value`.
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
    load_files(path, Kinds::Any, sets, variables, lookup)
}

/// The same for a running program. Only regular files are read, since a pipe might block for
/// ever.
///
/// # Errors
///
/// Every mistake in any layer.
pub fn load_again(
    path: &Path,
    sets: &[String],
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, Report> {
    load_files(path, Kinds::Regular, sets, variables, NameLookup::Later)
}

fn load_files(
    path: &Path,
    kinds: Kinds,
    sets: &[String],
    variables: impl IntoIterator<Item = (String, String)>,
    lookup: NameLookup,
) -> Result<Loaded, Report> {
    let (mut files, mut report) = (SourceFiles::default(), Report::default());
    let root = read_layers(path, kinds, sets, variables, &mut files, &mut report);
    report.sought = std::mem::take(&mut files.sought);
    report.folders.clone_from(&files.folders);
    match root {
        Some(root) => finish(root, surroundings(path, lookup), files, report),
        None => Err(report),
    }
}

/// The control socket that a configuration names, whatever else is wrong with it.
pub fn control_socket(
    path: &Path,
    sets: &[String],
    variables: impl IntoIterator<Item = (String, String)>,
) -> Option<PathBuf> {
    let (mut files, mut report) = (SourceFiles::default(), Report::default());
    let root = read_layers(path, Kinds::Any, sets, variables, &mut files, &mut report)?;
    let text = root.entry("server")?.node.text_of("control")?;
    match SocketPath::from_text(text).ok()?.0 {
        Address::Unix(path) => Some(path),
        Address::Tcp(_) => None,
    }
}

/// All layers as one tree; `None` if the file can't be read. Only this file may be a pipe that
/// another process writes to, as `kinds` says.
fn read_layers(
    path: &Path,
    kinds: Kinds,
    sets: &[String],
    variables: impl IntoIterator<Item = (String, String)>,
    files: &mut SourceFiles,
    report: &mut Report,
) -> Option<Node> {
    let local = path.with_file_name(LOCAL_FILE);
    if local != path {
        files.reserve(&local);
    }
    let mut root = match files.read(path, kinds, report) {
        Ok(root) => root,
        Err(error) => {
            report.mistake_without_place(format!("read {}: {error}", path.display()));
            return None;
        }
    };
    if local != path {
        match files.read(&local, Kinds::Regular, report) {
            Ok(over) => layers::merge(&mut root, over),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                report.mistake_without_place(format!("read {}: {error}", local.display()));
            }
        }
    }
    layers::apply_variables(&mut root, variables, report);
    for set in sets {
        layers::apply_set(&mut root, set, report);
    }
    Some(root)
}

/// Loads `bytes` alone, as the content of a file of this name. Includes are ignored.
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
    let root = source_files::read_bytes(path, bytes.as_ref().to_owned(), &mut report);
    let files = SourceFiles::default();
    finish(root, surroundings(path, lookup), files, report)
}

fn surroundings(path: &Path, lookup: NameLookup) -> Surroundings<'_> {
    Surroundings {
        folder: path.parent().unwrap_or(Path::new("")),
        lookup,
    }
}

fn finish(
    mut root: Node,
    surroundings: Surroundings<'_>,
    files: SourceFiles,
    mut report: Report,
) -> Result<Loaded, Report> {
    unknown::check(&root, &File::shape(), &mut report);
    let file = File::read(&root, &mut report);
    if let Some(include) = file.as_ref().map(|it| &it.include) {
        // Files have lost theirs when they were read.
        if include.written && !files.paths.is_empty() {
            report
                .mistake(&include.place, "`include` works only in a file")
                .help("write it in the configuration file");
        }
    }
    let config = file.and_then(|file| resolve(&file, surroundings, &mut report));
    report.settle();
    match config {
        Some(mut config) if !report.has_mistakes() => {
            print::seal_secrets(&mut root, &File::shape());
            config.written = Written::new(&root);
            print::fill_defaults(&mut root, &File::shape());
            config.hash = evenkeel_policy::hash::hash(print::document(&root).as_bytes());
            print::hide_sealed(&mut root);
            let mut effective = print::document(&root);
            if config.default_access_logs.is_some() {
                effective.insert_str(0, DEFAULT_LOG_COMMENT);
            }
            Ok(Loaded {
                config,
                warnings: report,
                effective,
                files: files.paths,
                folders: files.folders,
            })
        }
        _ => Err(report),
    }
}
