//! Which clients a route serves, by their addresses.

use std::net::IpAddr;

use super::condition::{Ask, Client};

/// The clients that a route serves.
#[derive(Debug, Clone)]
pub struct AccessList {
    allow: Option<Client>,
    deny: Option<Client>,
}

/// The verdict of an access list on a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The route serves it.
    Allowed,
    /// `deny` has it.
    Denied,
    /// The route has an `allow`, which does not list it.
    NotAllowed,
}

impl AccessList {
    /// Serves clients in `allow`, or all clients without it, except clients in `deny`.
    pub fn new(allow: Option<Client>, deny: Option<Client>) -> Self {
        AccessList { allow, deny }
    }

    /// The verdict on the client at this address.
    pub fn of(&self, client: IpAddr) -> Access {
        if self.deny.as_ref().is_some_and(|it| it.contains(client)) {
            Access::Denied
        } else if self.allow.as_ref().is_some_and(|it| !it.contains(client)) {
            Access::NotAllowed
        } else {
            Access::Allowed
        }
    }

    /// The networks and files of `allow`; `None` without it.
    pub fn allowed(&self) -> Option<Vec<String>> {
        self.allow.as_ref().map(Ask::wanted)
    }

    /// The networks and files of `deny`; `None` without it.
    pub fn denied(&self) -> Option<Vec<String>> {
        self.deny.as_ref().map(Ask::wanted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::route::{NetworkFile, NetworkSet};

    fn clients(networks: &[&str]) -> Option<Client> {
        let networks: Vec<_> = networks.iter().map(|it| it.parse().unwrap()).collect();
        (!networks.is_empty()).then(|| Client::new(networks, Vec::new()))
    }

    #[test]
    fn deny_wins_over_allow() {
        use Access::{Allowed, Denied, NotAllowed};
        for (allow, deny, client, expected) in [
            (&[][..], &[][..], "192.0.2.1", Allowed),
            (&["10.0.0.0/8"], &[], "10.1.2.3", Allowed),
            (&["10.0.0.0/8"], &[], "::ffff:10.1.2.3", Allowed),
            (&["10.0.0.0/8"], &[], "192.0.2.1", NotAllowed),
            (&["10.0.0.0/8"], &[], "2001:db8::1", NotAllowed),
            (&[], &["10.0.0.0/8"], "10.1.2.3", Denied),
            (&[], &["10.0.0.0/8"], "192.0.2.1", Allowed),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", Denied),
            (&["10.1.2.3"], &["10.0.0.0/8"], "10.1.2.3", Denied),
            (&["10.0.0.0/8", "::1"], &["10.1.0.0/16"], "::1", Allowed),
        ] {
            let list = AccessList::new(clients(allow), clients(deny));
            let found = list.of(client.parse().unwrap());
            assert_eq!(found, expected, "{allow:?} {deny:?} {client}");
        }
    }

    #[test]
    fn a_file_counts_as_it_is_now() {
        let file = Arc::new(NetworkFile::new("nets".into(), NetworkSet::default()));
        let list = AccessList::new(Some(Client::new(Vec::new(), vec![file.clone()])), None);
        let client = "192.0.2.1".parse().unwrap();
        assert_eq!(list.of(client), Access::NotAllowed);
        file.replace(NetworkSet::parse(b"192.0.2.0/24").unwrap());
        assert_eq!(list.of(client), Access::Allowed);
        assert_eq!(list.allowed(), Some(vec!["file nets (1 networks)".into()]));
        assert_eq!(list.denied(), None);
    }
}
