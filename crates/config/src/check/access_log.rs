//! The checks of access logs.

use super::super::diagnostics::Report;
use super::super::log_value::Only;
use super::super::setting::Field;
use super::super::written::{AccessLog, File, OwnAccessLog};

/// Reports contradictions and doubts in the access logs of `file`.
pub(super) fn check(file: &File, report: &mut Report) {
    if let Some(AccessLog::On(table)) = &file.access_log.value {
        check_one_of(("path", &table.path), ("syslog", &table.syslog), report);
        check_one_of(
            ("format", &table.format),
            ("template", &table.template),
            report,
        );
        let has_condition =
            table.only.value == Some(Only::Errors) || table.slower_than.value.is_some();
        let is_nothing = table.sample.value.is_some_and(|it| it.0 == 0.0);
        if is_nothing && table.sample.written && !has_condition {
            report
                .warning(&table.sample.place, "no request is logged")
                .help(
                    "write `access_log = false` for no log, or choose with `only` or \
                    `slower_than` what to log",
                );
        }
    }
    let listeners = file.listener.value.iter().flatten();
    let routes = file.route.value.iter().flatten();
    let own = listeners
        .map(|it| &it.access_log)
        .chain(routes.map(|it| &it.access_log));
    for log in own {
        if let Some(OwnAccessLog::On(table)) = &log.value {
            check_one_of(("path", &table.path), ("syslog", &table.syslog), report);
            check_one_of(
                ("format", &table.format),
                ("template", &table.template),
                report,
            );
        }
    }
}

/// Two keys that say the same differently.
fn check_one_of<A, B>(first: (&str, &Field<A>), second: (&str, &Field<B>), report: &mut Report) {
    if first.1.written && second.1.written {
        report
            .mistake(
                &second.1.place,
                format!("an access log with both `{}` and `{}`", first.0, second.0),
            )
            .related(&first.1.place, "the other one")
            .help("a log has one of them; another listener or route may have another log");
    }
}
