//! The names that other options refer to: of listeners, upstreams, lanes and caches.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_passwords::UserFile;
use evenkeel_policy::route::NetworkFile;

use super::{File, UpstreamTable};

/// The cache of routes that name none.
pub(crate) const DEFAULT_STORE: &str = "default";

/// All objects that other options can refer to by name.
pub(crate) struct Names<'a> {
    pub(crate) listeners: Vec<String>,
    pub(crate) upstreams: Vec<&'a str>,
    /// The lanes of each upstream, in the same order; `None` if they can't be read.
    pub(crate) lanes: Vec<Option<Vec<&'a str>>>,
    /// The caches in order of their names. The default one is among them if a route uses it.
    pub(crate) caches: Vec<&'a str>,
    /// The files of networks that could be read, by their paths as written.
    pub(crate) network_files: HashMap<PathBuf, Arc<NetworkFile>>,
    /// The files of users that could be read, by their paths as written.
    pub(crate) user_files: HashMap<PathBuf, Arc<UserFile>>,
}

impl<'a> Names<'a> {
    pub(crate) fn collect(file: &'a File) -> Self {
        let listeners = file.listener.value.iter().flatten().enumerate();
        let upstreams = file.upstream.value.iter().flat_map(|map| &map.0);
        let mut upstreams: Vec<_> = upstreams
            .map(|it| (it.name.as_str(), lane_names(it.value.as_ref())))
            .collect();
        upstreams.sort_unstable();
        let (upstreams, lanes) = upstreams.into_iter().unzip();
        let listeners = listeners.map(|(index, it)| it.name_at(index));
        Self {
            listeners: listeners.collect(),
            upstreams,
            lanes,
            caches: caches(file),
            network_files: HashMap::new(),
            user_files: HashMap::new(),
        }
    }

    /// The file of networks at this path.
    pub(crate) fn network_file(&self, path: &Path) -> Option<Arc<NetworkFile>> {
        self.network_files.get(path).cloned()
    }

    /// Index of the listener of this name.
    pub(crate) fn listener(&self, name: &str) -> Option<usize> {
        self.listeners.iter().position(|it| it == name)
    }

    /// Index of the lane of this name among those of the upstream.
    pub(crate) fn lane(&self, upstream: usize, name: &str) -> Option<usize> {
        let lanes = self.lanes[upstream].as_ref()?;
        lanes.iter().position(|it| *it == name)
    }

    /// Index of the cache of this name, among all in order of their names.
    pub(crate) fn cache(&self, name: &str) -> Option<usize> {
        self.caches.binary_search(&name).ok()
    }

    /// Index of the upstream of this name, among all in order of their names.
    pub(crate) fn upstream(&self, name: &str) -> Option<usize> {
        self.upstreams.binary_search(&name).ok()
    }
}

fn lane_names(upstream: Option<&UpstreamTable>) -> Option<Vec<&str>> {
    let lanes = &upstream?.lanes.value.as_ref()?.0;
    Some(lanes.iter().map(|it| it.name.as_str()).collect())
}

fn caches(file: &File) -> Vec<&str> {
    let caches = file.cache.value.iter().flat_map(|map| &map.0);
    let caches = caches.filter(|it| it.value.is_some());
    let mut caches: Vec<_> = caches.map(|it| it.name.as_str()).collect();
    let mut routes = file.route.value.iter().flatten();
    if routes.any(|it| it.cache_name() == Some(DEFAULT_STORE)) {
        caches.push(DEFAULT_STORE);
    }
    caches.sort_unstable();
    caches.dedup();
    caches
}
