//! The checks of who may use a route.

use evenkeel_policy::route::Network;

use crate::diagnostics::Report;
use crate::setting::{Field, OneOrMore, Placed};
use crate::tree::SourcePlace;
use crate::value::ClientItem;
use crate::written::{File, Route};

/// Warns of doubtful access lists of routes.
pub(super) fn check(file: &File, report: &mut Report) {
    for route in file.route.value.iter().flatten() {
        check_lists(route, report);
    }
}

/// Warns of networks that make no difference.
fn check_lists(route: &Route, report: &mut Report) {
    let (allow, deny) = (networks(&route.allow), networks(&route.deny));
    for (network, place) in &allow {
        if let Some((by, at)) = deny.iter().find(|(it, _)| it.covers(network)) {
            report
                .warning(
                    place,
                    format!("`{network}` is never allowed: `deny` takes precedence over `allow`"),
                )
                .related(at, format!("`{by}` is denied here"))
                .help("remove it from `allow` or from `deny`");
        }
    }
    // A file may have networks of `deny`.
    if !route.allow.written || route.allow.value.as_ref().is_none_or(has_file) {
        return;
    }
    for (network, place) in &deny {
        let overlaps = |it: &Network| it.covers(network) || network.covers(it);
        if !allow.iter().any(|(it, _)| overlaps(it)) {
            report
                .warning(
                    place,
                    format!("`{network}` is denied anyway: it is not in `allow`"),
                )
                .related(&route.allow.place, "all other addresses get 403")
                .help("leave it out");
        }
    }
}

fn has_file(items: &OneOrMore<Placed<ClientItem>>) -> bool {
    let mut items = items.0.iter();
    items.any(|it| matches!(it.value, ClientItem::File(_)))
}

/// The networks that are written in a list, with their places.
fn networks(list: &Field<OneOrMore<Placed<ClientItem>>>) -> Vec<(Network, &SourcePlace)> {
    let items = list.value.iter().flat_map(|it| &it.0);
    let networks = items.filter_map(|it| match it.value {
        ClientItem::In(network) => Some((network, &it.place)),
        ClientItem::File(_) => None,
    });
    networks.collect()
}
