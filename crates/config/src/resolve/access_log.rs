//! The access logs: what each route writes over its listener's, and that over
//! the global one.

use std::path::Component;

use crate::access_log::{AccessLogFormat, AccessLogs, LogDestination, Selection, Settings, Syslog};
use crate::log_value::Only;
use crate::setting::Field;
use crate::written::{self, AccessLog, File, OwnAccessLog, OwnAccessLogTable};

/// The settings of one table. `None` leaves a setting to the table above.
#[derive(Debug, Clone, Default)]
struct Layer {
    destination: Option<LogDestination>,
    format: Option<AccessLogFormat>,
    errors: Option<bool>,
    slower_than: Option<Option<std::time::Duration>>,
    sample: Option<f64>,
}

/// The written logs, and the logs that replace them if none is written and standard output is
/// read by somebody. `None` after a mistake.
pub(super) fn resolve(file: &File) -> Option<(AccessLogs, Option<AccessLogs>)> {
    let global = match &file.access_log.value {
        Some(AccessLog::On(table)) => Some(Layer {
            destination: destination(&table.path, &table.syslog)?,
            format: format(&table.format, &table.template),
            errors: table.only.value.map(|it| it == Only::Errors),
            slower_than: table.slower_than.value.map(slower_than),
            // Its default depends on conditions that others may write.
            sample: table
                .sample
                .value
                .filter(|_| table.sample.written)
                .map(|it| it.0),
        }),
        Some(AccessLog::Off) | None => None,
    };
    let logs = below(global.as_ref(), file)?;
    let default = if is_written(file)? {
        None
    } else {
        Some(below(Some(&Layer::default()), file)?)
    };
    Some((logs, default))
}

/// Whether a log is written anywhere, or the global one is switched off. A listener or route
/// that only switches off its own log does not count.
fn is_written(file: &File) -> Option<bool> {
    let listeners = file.listener.value.as_ref()?.iter();
    let routes = file.route.value.as_ref()?.iter();
    let mut own = listeners
        .map(|it| &it.access_log)
        .chain(routes.map(|it| &it.access_log));
    let has_own = own.any(|it| matches!(it.value, Some(OwnAccessLog::On(_))));
    Some(file.access_log.written || has_own)
}

/// The logs of all listeners and routes below this global one.
fn below(global: Option<&Layer>, file: &File) -> Option<AccessLogs> {
    let listeners = file.listener.value.as_ref()?;
    let routes = file.route.value.as_ref()?;
    let listeners: Vec<_> = listeners
        .iter()
        .map(|it| own(it.access_log.value.as_ref(), global))
        .collect();
    Some(AccessLogs::new(
        listeners.len(),
        routes.len(),
        |listener, route| {
            let above = listeners[listener].as_ref();
            let layer = match route {
                Some(route) => own(routes[route].access_log.value.as_ref(), above),
                None => above.cloned(),
            };
            layer.map(Layer::settings)
        },
    ))
}

/// The settings of a log `written` below `above`.
fn own(written: Option<&OwnAccessLog>, above: Option<&Layer>) -> Option<Layer> {
    let table = match written {
        None => return above.cloned(),
        Some(OwnAccessLog::Off) => return None,
        Some(OwnAccessLog::On(table)) => table,
    };
    let mut layer = above.cloned().unwrap_or_default();
    layer.take(table);
    Some(layer)
}

impl Layer {
    fn take(&mut self, table: &OwnAccessLogTable) {
        if let Some(destination) = destination(&table.path, &table.syslog).flatten() {
            self.destination = Some(destination);
        }
        if let Some(format) = format(&table.format, &table.template) {
            self.format = Some(format);
        }
        if let Some(only) = table.only.value {
            self.errors = Some(only == Only::Errors);
        }
        if let Some(time) = table.slower_than.value {
            self.slower_than = Some(slower_than(time));
        }
        // The sample above went with the conditions above. With other conditions it does not
        // apply.
        if table.only.written || table.slower_than.written {
            self.sample = None;
        }
        if let Some(part) = table.sample.value {
            self.sample = Some(part.0);
        }
    }

    fn settings(self) -> Settings {
        let errors = self.errors.unwrap_or(false);
        let slower_than = self.slower_than.flatten();
        let has_condition = errors || slower_than.is_some();
        Settings {
            destination: self.destination.unwrap_or(LogDestination::Stdout),
            format: self.format.unwrap_or(AccessLogFormat::Combined),
            selection: Selection {
                errors,
                slower_than,
                sample: self.sample.unwrap_or(if has_condition { 0.0 } else { 1.0 }),
            },
        }
    }
}

fn slower_than(time: crate::quantity::DurationValue) -> Option<std::time::Duration> {
    // Zero takes the condition of the table above away.
    Some(time.0).filter(|it| !it.is_zero())
}

/// The outer `None` is a mistake, the inner one nothing written.
fn destination(
    path: &Field<crate::log_value::LogPath>,
    syslog: &Field<written::Syslog>,
) -> Option<Option<LogDestination>> {
    if let Some(table) = syslog.value.as_ref().map(|it| &it.0) {
        return Some(Some(LogDestination::Syslog(Syslog {
            target: table.to.value.clone()?,
            facility: table.facility.value?.0,
            severity: table.severity.value?.0,
            app_name: table.app_name.value.as_ref()?.0.clone(),
        })));
    }
    Some(path.value.as_ref().map(|path| {
        if path.0.as_os_str() == "-" {
            LogDestination::Stdout
        } else {
            // `./a.log` is the same file as `a.log`.
            LogDestination::File(
                path.0
                    .components()
                    .filter(|it| *it != Component::CurDir)
                    .collect(),
            )
        }
    }))
}

fn format(
    format: &Field<AccessLogFormat>,
    template: &Field<crate::template::Template>,
) -> Option<AccessLogFormat> {
    let template = template.value.clone().map(AccessLogFormat::Template);
    template.or_else(|| format.value.clone())
}
