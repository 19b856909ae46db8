//! `show files`: routes that serve files, and their disks.

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use super::{of_limit, quantile};
use crate::files::DiskFigures;
use crate::observe::figures::{Figures, FileFigures};

/// Routes that serve files, and their disks.
#[derive(Debug, Serialize)]
struct FilesView<'a> {
    routes: Vec<FilesOfRoute<'a>>,
    disks: &'a [DiskFigures],
}

#[derive(Debug, Serialize)]
struct FilesOfRoute<'a> {
    route: &'a str,
    #[serde(flatten)]
    files: &'a FileFigures,
}

pub(in super::super) fn files(figures: &Figures, format: Format) -> Answer {
    let routes = figures.routes.iter().filter_map(|it| {
        Some(FilesOfRoute {
            route: &it.name,
            files: it.files.as_ref()?,
        })
    });
    let view = FilesView {
        routes: routes.collect(),
        disks: &figures.disks,
    };
    format.show(&view, files_text)
}

fn files_text(view: &FilesView<'_>) -> String {
    if view.routes.is_empty() {
        return "no route serves files\n".to_owned();
    }
    let mut routes = Table::new(&["ROUTE", "ROOT", ">HOT", ">COLD", ">REFUSED"]);
    for it in &view.routes {
        routes.row([
            it.route.to_owned(),
            it.files.root.clone(),
            it.files.hot.to_string(),
            it.files.cold.to_string(),
            it.files.refused.to_string(),
        ]);
    }
    let mut disks = Table::new(&[
        "DISK",
        ">IN-FLIGHT",
        ">WAITING",
        ">READS",
        ">DIRECT",
        ">SHARED",
        ">REFUSED",
        ">WAIT-P50",
        ">WAIT-P99",
        ">READ-P50",
        ">READ-P99",
    ]);
    for disk in view.disks {
        disks.row([
            disk.name.clone(),
            of_limit(disk.in_flight, Some(disk.max_in_flight)),
            of_limit(disk.waiting, Some(disk.queue_max)),
            disk.reads.to_string(),
            disk.direct.to_string(),
            disk.shared.to_string(),
            disk.refused.to_string(),
            quantile(&disk.wait_us, 0.5),
            quantile(&disk.wait_us, 0.99),
            quantile(&disk.service_us, 0.5),
            quantile(&disk.service_us, 0.99),
        ]);
    }
    format!("{}\n{}", routes.text(0), disks.text(0))
}
