//! `show certificates`: the certificates of listeners, and their expiry.

use std::time::Duration;

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use crate::certificates::{
    AcmeServerFigures, CertificateFigures, CertificateTrouble, OrderedFigures,
};
use crate::metrics::quantity::span;
use crate::observe::calendar::Moment;
use crate::observe::figures::Sources;
use crate::shared_server::SharedServerFigures;

/// Most names in a row; the others are counted.
const NAMES_SHOWN: usize = 3;

#[derive(Debug, Serialize)]
struct CertificatesView {
    certificates: Vec<CertificateFigures>,
    unreadable: Vec<CertificateTrouble>,
    ordered: Vec<OrderedFigures>,
    /// The server through which machines share ordered certificates.
    server: Option<AcmeServerFigures>,
}

pub(in super::super) fn certificates(sources: &Sources, format: Format) -> Answer {
    let served = || sources.tls.iter().flatten();
    let acme = served().find_map(|it| it.acme());
    let mut view = CertificatesView {
        certificates: served().flat_map(|it| it.figures()).collect(),
        unreadable: served().flat_map(|it| it.troubles()).collect(),
        server: acme.and_then(|it| it.server()),
        ordered: (acme.into_iter())
            .flat_map(|acme| acme.status())
            .map(OrderedFigures::from)
            .collect(),
    };
    // The most urgent certificate comes first.
    view.certificates.sort_by_key(|it| it.not_after_unix_s);
    format.show(&view, text)
}

fn text(view: &CertificatesView) -> String {
    if view.certificates.is_empty() && view.ordered.is_empty() && view.unreadable.is_empty() {
        return "no certificate is served or ordered\n".to_owned();
    }
    let mut table = Table::new(&[
        "LISTENER", "NAMES", ">LEFT", "EXPIRES", "KEY", "ISSUER", "FILE",
    ]);
    for it in &view.certificates {
        let left = match it.left_s {
            0 => "expired".to_owned(),
            left => span(Duration::from_secs(left)),
        };
        table.row([
            it.listener.clone(),
            names(&it.names),
            left,
            Moment::from_unix(it.not_after_unix_s).rfc3339() + "Z",
            it.key.clone(),
            it.issuer.clone(),
            it.path.display().to_string(),
        ]);
    }
    let mut text = match view.certificates.len() {
        0 => String::new(),
        _ => table.text(0),
    };
    for trouble in &view.unreadable {
        let CertificateTrouble {
            listener,
            text: why,
            is_kept,
        } = trouble;
        let kept = if *is_kept {
            "; the previous version stays in use"
        } else {
            ""
        };
        text.push_str(&format!("{listener}: {why}{kept}\n"));
    }
    if !view.ordered.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&orders(&view.ordered));
    }
    if let Some(figures) = &view.server {
        let SharedServerFigures {
            server,
            up,
            failure,
        } = &figures.standing;
        let state = if *up { "UP" } else { "DOWN" };
        let why = failure.as_ref().filter(|_| !up);
        let why = why.map(|it| format!(": {it}")).unwrap_or_default();
        text.push_str(&format!("\nserver {server} is {state}{why}\n"));
        if figures.keys_differ && *up {
            text.push_str(
                "machines with another key wait for this one: give all machines the same \
                 `encrypt_with`\n",
            );
        }
    }
    text
}

/// Pending orders, and the errors of the last ones.
fn orders(ordered: &[OrderedFigures]) -> String {
    let mut table = Table::new(&["ORDERED", "STATE", "NEXT ORDER", ">FAILURES", "LAST ERROR"]);
    for it in ordered {
        let next = it.next_order_unix_s;
        table.row([
            it.name.clone(),
            it.state.clone(),
            next.map_or_else(
                || "-".to_owned(),
                |it| Moment::from_unix(it).rfc3339() + "Z",
            ),
            it.failures.to_string(),
            it.error.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table.text(0)
}

fn names(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
