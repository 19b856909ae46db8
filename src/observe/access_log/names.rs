//! The names of the configuration, escaped once and ready to be copied into
//! lines.

use super::escape::{push_json, push_word};
use super::line::written;
use crate::config::Config;

/// A name, as the formats write it.
#[derive(Debug, Clone)]
pub struct Name {
    /// `,"key":"name"`, a member of a JSON object.
    pub(super) json: Box<[u8]>,
    /// What stands between spaces.
    pub(super) word: Box<[u8]>,
}

impl Name {
    /// The name of what `key` stands for.
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
#[derive(Debug, Default)]
pub struct Names {
    /// Of listeners.
    pub listeners: Vec<Name>,
    /// Of routes.
    pub routes: Vec<Name>,
    /// Of upstreams, each with those of its endpoints by id.
    pub upstreams: Vec<(Name, Vec<Name>)>,
}

impl Names {
    /// Those of this configuration.
    pub fn new(config: &Config) -> Self {
        let upstreams = config.upstreams.iter().map(|upstream| {
            let endpoints = upstream.endpoints.iter();
            let endpoints = endpoints.map(|it| Name::new("endpoint", &it.name));
            (Name::new("upstream", &upstream.name), endpoints.collect())
        });
        let listeners = config.listeners.iter();
        let routes = config.routes.iter();
        Names {
            listeners: listeners
                .map(|it| Name::new("listener", &it.name))
                .collect(),
            routes: routes.map(|it| Name::new("route", &it.name)).collect(),
            upstreams: upstreams.collect(),
        }
    }
}
