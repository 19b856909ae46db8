//! Maintenance: routes and upstreams whose requests are refused while an operator works.
//!
//! Shared by all workers. A switch outlives the configuration: it belongs to the name of its
//! route or upstream, as long as configurations have that name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::config::Config;

/// The switches of a configuration.
#[derive(Debug, Default)]
pub struct Maintenance {
    /// Whether a switch has ever been on: until then requests look at nothing else.
    is_used: Arc<AtomicBool>,
    /// Of each route, by its index.
    routes: Vec<Switch>,
    /// Of each upstream, by its index.
    upstreams: Vec<Switch>,
}

/// The switch of a route or an upstream.
#[derive(Debug, Clone)]
struct Switch {
    name: String,
    is_on: Arc<AtomicBool>,
}

/// The object of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaintenanceTarget {
    /// A route.
    Route,
    /// An upstream.
    Upstream,
}

impl fmt::Display for MaintenanceTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            MaintenanceTarget::Route => "route",
            MaintenanceTarget::Upstream => "upstream",
        })
    }
}

/// The names of routes and upstreams that are under maintenance.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnderMaintenance {
    /// Of routes.
    pub routes: Vec<String>,
    /// Of upstreams.
    pub upstreams: Vec<String>,
}

impl Maintenance {
    /// The switches of a configuration, as they were `before`.
    pub fn of(config: &Config, before: &Maintenance) -> Arc<Self> {
        let routes = config.routes.iter().map(|it| &*it.name);
        let upstreams = config.upstreams.iter().map(|it| &*it.name);
        Arc::new(Maintenance {
            is_used: before.is_used.clone(),
            routes: switches(routes, &before.routes),
            upstreams: switches(upstreams, &before.upstreams),
        })
    }

    /// Whether the route of this index is under maintenance.
    pub fn has_route(&self, route: usize) -> bool {
        self.is_used.load(Relaxed) && self.routes[route].is_on.load(Relaxed)
    }

    /// Whether the upstream of this index is under maintenance.
    pub fn has_upstream(&self, upstream: usize) -> bool {
        self.is_used.load(Relaxed) && self.upstreams[upstream].is_on.load(Relaxed)
    }

    /// Switches maintenance of a route or an upstream. Says whether that was another state.
    ///
    /// # Errors
    /// The configuration has none of this name.
    pub fn switch(
        &self,
        of: MaintenanceTarget,
        name: &str,
        is_on: bool,
    ) -> Result<bool, UnknownName> {
        let mut switches = self.switches(of).iter();
        let switch = switches.find(|it| it.name == name).ok_or(UnknownName)?;
        self.is_used.fetch_or(is_on, Relaxed);
        Ok(switch.is_on.swap(is_on, Relaxed) != is_on)
    }

    /// Whether there is one of this name.
    pub fn has(&self, of: MaintenanceTarget, name: &str) -> bool {
        self.switches(of).iter().any(|it| it.name == name)
    }

    /// The routes and upstreams under maintenance.
    pub fn under(&self) -> UnderMaintenance {
        let names = |switches: &[Switch]| {
            let on = switches.iter().filter(|it| it.is_on.load(Relaxed));
            on.map(|it| it.name.clone()).collect()
        };
        UnderMaintenance {
            routes: names(&self.routes),
            upstreams: names(&self.upstreams),
        }
    }

    /// Switches on the maintenance that another process had.
    pub fn restore(&self, under: &UnderMaintenance) {
        let routes = under.routes.iter().map(|it| (MaintenanceTarget::Route, it));
        let upstreams = under
            .upstreams
            .iter()
            .map(|it| (MaintenanceTarget::Upstream, it));
        for (of, name) in routes.chain(upstreams) {
            // The configuration may have another name by now.
            let _ = self.switch(of, name, true);
        }
    }

    fn switches(&self, of: MaintenanceTarget) -> &[Switch] {
        match of {
            MaintenanceTarget::Route => &self.routes,
            MaintenanceTarget::Upstream => &self.upstreams,
        }
    }
}

/// The configuration has no route or upstream of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownName;

fn switches<'a>(names: impl Iterator<Item = &'a str>, before: &[Switch]) -> Vec<Switch> {
    let before: HashMap<_, _> = before.iter().map(|it| (&*it.name, it)).collect();
    let switches = names.map(|name| match before.get(name) {
        Some(switch) => (*switch).clone(),
        None => Switch {
            name: name.to_owned(),
            is_on: Arc::default(),
        },
    });
    switches.collect()
}
