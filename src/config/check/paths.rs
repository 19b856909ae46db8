//! The check of the paths that a route asks for.

use super::super::diagnostics::Report;
use super::super::setting::OneOrMore;
use super::super::value::Path;
use super::super::written;

/// Reports a path that no request can have: another reading of it, which finds
/// another route, makes each such request ambiguous.
pub(super) fn check(route: &written::Route, report: &mut Report) {
    let Some(wanted) = &route.r#match.value else {
        return;
    };
    let Some(OneOrMore(paths)) = &wanted.path.value else {
        return;
    };
    let is_wanted = |reading: &Vec<u8>| paths.iter().any(|Path(it)| it.matches(reading));
    for Path(path) in paths {
        let mut readings = path.other_readings().into_iter();
        let Some(reading) = readings.find(|it| !is_wanted(it)) else {
            continue;
        };
        let reading = String::from_utf8_lossy(&reading).into_owned();
        report
            .warning(
                &wanted.path.place,
                format!(
                    "no request takes this route by `{path}`: some servers read that as \
                     `{reading}`, so it is refused as ambiguous"
                ),
            )
            .help("list both: the route then takes the path in either reading");
    }
}
