//! Files of a folder.

use std::collections::HashMap;
use std::path::PathBuf;

use evenkeel_policy::route::PathPattern;
use evenkeel_proto::coding::Coding;

use super::super::Files;
use super::super::diagnostics::Report;
use super::super::file_value::FolderPath;
use super::super::queue_answer;
use super::super::setting::{Field, OneOrMore, Placed, Resolve};
use super::super::surroundings::{NameLookup, Surroundings, absolute};
use super::super::tree::SourcePlace;
use super::super::value::{OrRegex, Path};
use super::super::written::{self, CompressTable, FilesParts, FilesTable, Switch};
use super::{ActionContext, WrittenAction};

impl WrittenAction for written::ShortFiles {
    type Action = Box<Files>;

    fn check(&self, route: &written::Route, report: &mut Report) {
        let files = &self.0;
        check_strip(route, files, report);
        check_patterns(files, report);
        check_codings(&files.precompressed, report);
        if let Some(Switch::On(compression)) = &files.compress.value {
            check_compression(compression, report);
        }
        if let Some(answer) = &files.overload.value {
            queue_answer::check(answer, report);
        }
    }

    fn resolve(&self, around: ActionContext<'_>, report: &mut Report) -> Option<Box<Files>> {
        let (it, surroundings) = (&self.0, around.surroundings);
        // First, so that its mistakes are reported whatever else is missing.
        let overload = it.overload.value.as_ref()?;
        let overload = queue_answer::resolve(overload, surroundings.folder, report);
        let root = root(it.root.value.as_ref()?, surroundings, report);
        let files = it.resolve_with(FilesParts {
            root: root?,
            strip: it.strip.value.as_ref().map_or("", |it| &it.0).to_owned(),
            fallback: (it.upstream.value.as_ref()).and_then(|it| around.proxying(it)),
            compression: match &it.compress.value {
                None => None,
                Some(written) => written.resolve()?,
            },
            overload: overload?,
        });
        files.map(Box::new)
    }
}

/// The folder as an absolute path.
fn root(
    it: &Placed<FolderPath>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<PathBuf> {
    let path = absolute(&it.value.0, &it.place, surroundings.folder, report)?;
    // It may be there later, when something is mounted.
    if surroundings.lookup != NameLookup::Skip && !path.is_dir() {
        let what = if path.exists() {
            format!("{} is not a folder", path.display())
        } else {
            format!("the folder {} does not exist", path.display())
        };
        report
            .warning(&it.place, what)
            .help("until it exists, requests for its files are answered 500");
    }
    Some(path)
}

/// Checks that some path of the route begins with the stripped prefix.
fn check_strip(route: &written::Route, files: &FilesTable, report: &mut Report) {
    let wanted = route.r#match.value.as_ref();
    let paths = wanted.and_then(|it| it.path.value.as_ref());
    let (Some(OneOrMore(paths)), Some(front)) = (paths, &files.strip.value) else {
        return;
    };
    let front = format!("{}/", front.0);
    // In normal form, like the patterns.
    let Ok(PathPattern::Exact(front)) = PathPattern::new(&front) else {
        return;
    };
    let may_begin_so = |OrRegex(Path(path)): &OrRegex<Path>| match path {
        PathPattern::Exact(path) => [path, &b"/"[..]].concat().starts_with(&front),
        PathPattern::Prefix(path) => path.starts_with(&front) || front.starts_with(path),
        PathPattern::Glob(_) | PathPattern::Regex(_) => true,
    };
    if !paths.iter().any(may_begin_so) {
        report
            .warning(
                &files.strip.place,
                "no path of this route begins with that prefix",
            )
            .help("write the part of the URL path that comes before the path in the folder");
    }
}

fn check_patterns(files: &FilesTable, report: &mut Report) {
    let mut all: Option<&SourcePlace> = None;
    for pattern in files.cache_control.value.iter().flat_map(|map| &map.0) {
        if pattern.key.is_none() {
            continue;
        }
        if let Some(earlier) = all {
            report
                .warning(&pattern.place, "this pattern is never reached")
                .related(earlier, "this one matches everything")
                .help("the first match decides: move this one before the other");
        } else if matches!(pattern.name.as_str(), "**" | "/**" | "/*") {
            all = Some(&pattern.place);
        }
    }
}

pub(crate) fn check_codings(codings: &Field<Vec<Placed<Coding>>>, report: &mut Report) {
    let mut first_places: HashMap<Coding, &SourcePlace> = HashMap::new();
    for coding in codings.value.iter().flatten() {
        if let Some(first) = first_places.get(&coding.value) {
            let name = coding.value.name();
            report
                .mistake(&coding.place, format!("`{name}` is in the list twice"))
                .related(first, "the first time");
        } else {
            first_places.insert(coding.value, &coding.place);
        }
    }
}

/// Checks that a list for compression is not empty.
pub(crate) fn check_not_empty<T>(list: &Field<Vec<T>>, report: &mut Report) {
    // An item that is itself mistaken has been left out of the list.
    if list.value.as_ref().is_some_and(Vec::is_empty) && !report.has_mistakes() {
        report
            .mistake(
                &list.place,
                "the list is empty, so nothing would be compressed",
            )
            .help("leave it out for the default codings, or write compress = false");
    }
}

fn check_compression(it: &CompressTable, report: &mut Report) {
    check_codings(&it.codings, report);
    check_not_empty(&it.types, report);
    check_not_empty(&it.codings, report);
    if let (Some(min), Some(max)) = (it.min.value, it.max.value)
        && min.0 > max.0
    {
        let found = report.mistake(
            &it.min.place,
            "no file can be of this size: `min` is larger than `max`",
        );
        if it.max.written {
            found.related(&it.max.place, "`max` is here");
        }
        found.help(format!(
            "write a `min` of {} bytes or less, or a larger `max`",
            max.0
        ));
    }
}
