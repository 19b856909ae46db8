//! A condition on the client's address.

use std::net::IpAddr;
use std::sync::Arc;

use super::Ask;
use crate::route::{Facts, Network, NetworkFile, NetworkSet, RoutedRequest};

/// The client's address lies in one of these networks, or of the networks in these files.
#[derive(Debug, Clone)]
pub struct Client {
    networks: Vec<Network>,
    /// The networks once more, where they are many.
    set: Option<Box<NetworkSet>>,
    files: Vec<Arc<NetworkFile>>,
}

impl Client {
    /// Most networks that are tried one by one: a search costs as much as a few.
    const LINEAR_UP_TO: usize = 4;

    /// One of these.
    pub fn new(networks: Vec<Network>, files: Vec<Arc<NetworkFile>>) -> Self {
        let is_long = networks.len() > Self::LINEAR_UP_TO;
        Self {
            set: is_long.then(|| Box::new(networks.iter().copied().collect())),
            networks,
            files,
        }
    }

    pub(in crate::route) fn networks(&self) -> &[Network] {
        &self.networks
    }

    pub(in crate::route) fn files(&self) -> &[Arc<NetworkFile>] {
        &self.files
    }

    /// Whether it is about the client at this address.
    pub fn contains(&self, client: IpAddr) -> bool {
        let is_written = match &self.set {
            Some(set) => set.contains(client),
            None => self.networks.iter().any(|it| it.contains(client)),
        };
        is_written || self.files.iter().any(|it| it.contains(client))
    }
}

impl Ask for Client {
    fn subject(&self) -> String {
        "client".into()
    }

    fn wanted(&self) -> Vec<String> {
        let networks = self.networks.iter().map(ToString::to_string);
        let files = self.files.iter().map(|it| {
            let (name, len) = (it.name(), it.set().len());
            match it.mistake() {
                None => format!("file {name} ({len} networks)"),
                Some(mistake) => format!("file {name} (the previous {len} networks: {mistake})"),
            }
        });
        networks.chain(files).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.contains(request.facts.client())
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![request.facts.client().to_string().into()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let networks = [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "::1",
            "0.0.0.0/0",
            "192.0.2.0/24",
        ];
        let networks = networks.map(|it| it.parse().unwrap());
        prop::collection::vec(prop::sample::select(networks.to_vec()), 1..7)
            .prop_map(|networks| {
                let (written, in_file) = networks.split_at(networks.len() / 2);
                let file = NetworkFile::new("nets".into(), in_file.iter().copied().collect());
                Self::new(written.to_vec(), vec![Arc::new(file)])
            })
            .boxed()
    }
}
