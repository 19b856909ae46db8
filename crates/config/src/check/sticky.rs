//! The checks of stickiness.

use crate::diagnostics::Report;
use crate::written::File;

/// Reports what is wrong or doubtful about the stickiness of routes.
pub(super) fn check(file: &File, report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    let server = file.server.value.as_ref();
    let has_state_file = server.is_none_or(|it| it.state_file.written);
    for route in file.route.value.iter().flatten() {
        let Some(sticky) = &route.sticky.value else {
            continue;
        };
        let place = &route.sticky.place;
        if route.target().is_none() && route.actions().iter().any(|it| it.is_written) {
            report
                .mistake(place, "`sticky` without `upstream`")
                .help("it keeps a client at an endpoint; this route asks none");
        } else if !sticky.0.keys.written && !has_state_file {
            report
                .warning(place, "the key of this cookie is lost with the process: after a restart, clients are balanced anew")
                .help("write `keys`, or a `state_file` in [server]: the key is kept beside it");
        }
    }
}
