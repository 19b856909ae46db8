//! The access lists of a route: `allow` and `deny`.

use evenkeel_policy::route::AccessList;
use evenkeel_policy::route::condition::Client;

use crate::setting::{Field, OneOrMore, Placed};
use crate::value::ClientItem;
use crate::written::{Names, Route, clients};

/// The clients that the route serves: `None` is a mistake, `Some(None)` everybody.
pub(super) fn access(route: &Route, names: &Names<'_>) -> Option<Option<Box<AccessList>>> {
    let (allow, deny) = (list(&route.allow, names)?, list(&route.deny, names)?);
    if allow.is_none() && deny.is_none() {
        return Some(None);
    }
    Some(Some(Box::new(AccessList::new(allow, deny))))
}

/// `None` is a mistake, `Some(None)` no list.
fn list(
    written: &Field<OneOrMore<Placed<ClientItem>>>,
    names: &Names<'_>,
) -> Option<Option<Client>> {
    match &written.value {
        Some(items) => clients(items.0.iter().map(|it| &it.value), names).map(Some),
        None if written.written => None,
        None => Some(None),
    }
}
