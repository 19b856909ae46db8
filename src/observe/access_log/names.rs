//! The names of the configuration, escaped once and ready to be copied into
//! lines.

use std::sync::Arc;

use evenkeel_policy::endpoint::{EndpointId, EndpointState};
use evenkeel_policy::members::Members;

use super::escape::{push_json, push_word};
use super::line::written;
use crate::config::Config;

/// A name, as the formats write it.
#[derive(Debug, Clone)]
pub struct Name {
    /// `,"key":"name"`, a member of a JSON object.
    pub(super) json: Box<[u8]>,
    /// The name as a word between spaces.
    pub(super) word: Box<[u8]>,
}

impl Name {
    /// The name for the member `key`.
    pub fn new(key: &str, name: &str) -> Self {
        Name {
            json: written(|line| {
                line.bytes(format!(",\"{key}\":\"").as_bytes());
                push_json(line, name.as_bytes());
                line.byte(b'"');
            })
            .into(),
            word: written(|line| push_word(line, name.as_bytes())).into(),
        }
    }
}

/// The names of everything, by their indexes in the configuration.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Of listeners.
    pub listeners: Arc<[Name]>,
    /// Of routes.
    pub routes: Arc<[Name]>,
    /// Of upstreams and their endpoints.
    pub upstreams: Vec<Arc<UpstreamNames>>,
}

/// The names of an upstream and its endpoints.
#[derive(Debug, Clone)]
pub struct UpstreamNames {
    /// Its own.
    pub name: Arc<Name>,
    /// Of its endpoints, by id.
    endpoints: EndpointNames,
}

/// The names of endpoints, by id.
#[derive(Debug, Clone, Default)]
struct EndpointNames {
    /// Identity of the endpoint under each id, as ids are reused; 0 where there is none.
    identities: Vec<u64>,
    names: Vec<Option<Arc<Name>>>,
}

impl Names {
    /// The names of this configuration, whose upstreams have these members.
    pub fn new(config: &Config, members: &[Arc<Members>]) -> Self {
        let upstreams = config.upstreams.iter().zip(members);
        let listeners = config.listeners.iter();
        let routes = config.routes.iter();
        Names {
            listeners: listeners
                .map(|it| Name::new("listener", &it.name))
                .collect(),
            routes: routes.map(|it| Name::new("route", &it.name)).collect(),
            upstreams: upstreams
                .map(|(upstream, members)| Arc::new(UpstreamNames::new(&upstream.name, members)))
                .collect(),
        }
    }
}

impl UpstreamNames {
    fn new(name: &str, members: &Members) -> Self {
        let mut names = UpstreamNames {
            name: Arc::new(Name::new("upstream", name)),
            endpoints: EndpointNames::default(),
        };
        members.endpoints().iter().for_each(|it| names.learn(it));
        names
    }

    /// An upstream with one endpoint, whose id is 0.
    #[cfg(any(test, feature = "fuzz"))]
    pub fn with_one_endpoint(name: Name, endpoint: Name) -> Self {
        UpstreamNames {
            name: Arc::new(name),
            endpoints: EndpointNames {
                identities: vec![0],
                names: vec![Some(Arc::new(endpoint))],
            },
        }
    }

    /// Whether the name under this id is that of the endpoint with this identity.
    pub fn knows(&self, id: EndpointId, identity: u64) -> bool {
        self.endpoints.identities.get(id.index()) == Some(&identity)
    }

    /// Sets the name under this endpoint's id.
    pub fn learn(&mut self, endpoint: &EndpointState) {
        if self.knows(endpoint.id(), endpoint.identity()) {
            return;
        }
        let EndpointNames { identities, names } = &mut self.endpoints;
        let index = endpoint.id().index();
        if names.len() <= index {
            names.resize(index + 1, None);
            identities.resize(index + 1, 0);
        }
        names[index] = Some(Arc::new(Name::new("endpoint", endpoint.name())));
        identities[index] = endpoint.identity();
    }

    /// The name of the endpoint with this id.
    pub fn endpoint(&self, id: EndpointId) -> Option<&Name> {
        self.endpoints.names.get(id.index())?.as_deref()
    }
}
