//! Stickiness: the endpoint that a cookie stands for.
//!
//! The value of a cookie is a tag that a key makes of the names of the upstream and the endpoint.
//! Without the key, nobody can make a tag, or tell the endpoint from it. Every process with the
//! same key reads the tag alike, without a table of sessions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_policy::endpoint::EndpointId;
use evenkeel_policy::members::Members;
use evenkeel_tls::MacKey;

use crate::config::{self, Sticky};

type Tag = [u8; MacKey::TAG_LEN];

/// The cookies of an upstream's endpoints, as a worker knows them.
#[derive(Debug, Default)]
pub(super) struct StickyCookies(RefCell<Vec<Known>>);

/// The cookies by the keys of one route.
#[derive(Debug)]
struct Known {
    keys: Vec<Arc<MacKey>>,
    members: Arc<Members>,
    by_tag: HashMap<Tag, EndpointId>,
    /// Of each endpoint, in the order of the members.
    values: Vec<Box<str>>,
}

impl StickyCookies {
    /// The endpoint that the value of a cookie stands for, if there is one.
    pub fn endpoint(
        &self,
        sticky: &Sticky,
        upstream: &str,
        members: &Arc<Members>,
        value: &[u8],
    ) -> Option<EndpointId> {
        let tag = tag_of(value)?;
        self.with(sticky, upstream, members, |it| it.by_tag.get(&tag).copied())?
    }

    /// Calls `use_value` with the value of the cookie that stands for an endpoint, if there
    /// is one.
    pub fn with_value<T>(
        &self,
        sticky: &Sticky,
        upstream: &str,
        members: &Arc<Members>,
        endpoint: EndpointId,
        use_value: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        self.with(sticky, upstream, members, |known| {
            let value = known.values.get(members.position(endpoint)?)?;
            Some(use_value(value.as_bytes()))
        })?
    }

    fn with<T>(
        &self,
        sticky: &Sticky,
        upstream: &str,
        members: &Arc<Members>,
        with: impl FnOnce(&Known) -> T,
    ) -> Option<T> {
        let mut all = self.0.borrow_mut();
        let keys = keys_of(sticky);
        let newest = keys.first()?;
        let has_keys = |it: &Known| {
            it.keys.len() == keys.len() && it.keys.iter().zip(keys).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        // Tags of earlier members or keys are useless now.
        all.retain(|it| Arc::ptr_eq(&it.members, members) && Arc::strong_count(&it.keys[0]) > 1);
        let at = all.iter().position(has_keys).unwrap_or_else(|| {
            all.push(Known::new(keys, newest, upstream, members));
            all.len() - 1
        });
        Some(with(&all[at]))
    }
}

impl Known {
    fn new(keys: &[Arc<MacKey>], newest: &MacKey, upstream: &str, members: &Arc<Members>) -> Self {
        let tag = |key: &MacKey, name: &str| {
            key.tag(&[
                b"evenkeel sticky cookie",
                upstream.as_bytes(),
                name.as_bytes(),
            ])
        };
        let mut by_tag = HashMap::new();
        for endpoint in members.endpoints() {
            let tags = keys
                .iter()
                .map(|key| (tag(key, endpoint.name()), endpoint.id()));
            by_tag.extend(tags);
        }
        let endpoints = members.endpoints().iter();
        let values = endpoints.map(|it| URL_SAFE_NO_PAD.encode(tag(newest, it.name())).into());
        Known {
            values: values.collect(),
            by_tag,
            keys: keys.to_vec(),
            members: members.clone(),
        }
    }
}

/// The tag that the value of a cookie has, if it has the length of one.
fn tag_of(value: &[u8]) -> Option<Tag> {
    let mut tag = Tag::default();
    let len = URL_SAFE_NO_PAD.decode_slice(value, &mut tag).ok()?;
    (len == tag.len()).then_some(tag)
}

/// The endpoint that one of these values stands for, if one does. For explanations: this makes
/// the tags of all endpoints.
pub(crate) fn explained_endpoint(
    sticky: &Sticky,
    upstream: &str,
    members: &Arc<Members>,
    values: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> Option<EndpointId> {
    let keys = keys_of(sticky);
    let known = Known::new(keys, keys.first()?, upstream, members);
    let mut values = values.into_iter();
    values.find_map(|it| known.by_tag.get(&tag_of(it.as_ref())?).copied())
}

/// The process's own key, where a route has none.
static OWN_KEY: OnceLock<[Arc<MacKey>; 1]> = OnceLock::new();

/// Prepares the process's own key, if a route needs it. Blocks.
///
/// The key is in a file beside the state file, which is made if it is missing. Without a state
/// file, the key is that of this process alone.
///
/// # Errors
/// The file can be neither read nor made.
pub fn prepare_own_key(config: &config::Config) -> io::Result<()> {
    let routes = &mut config.routes.iter().filter_map(|it| it.sticky.as_ref());
    if OWN_KEY.get().is_some() || routes.all(|it| !it.keys.is_empty()) {
        return Ok(());
    }
    let key = match &config.state_file {
        None => MacKey::generate()?,
        Some(state_file) => {
            let path = &config::own_sticky_key(state_file);
            let failed = |error| {
                let path = path.display();
                io::Error::other(format!(
                    "the key of sticky cookies in {path}: {error}; if you remove the file, a new \
                     key is made, and clients go to new endpoints"
                ))
            };
            MacKey::read_or_make(path).map_err(failed)?
        }
    };
    OWN_KEY.get_or_init(|| [Arc::new(key)]);
    Ok(())
}

/// The keys of a route: its own, or the process's.
fn keys_of(sticky: &Sticky) -> &[Arc<MacKey>] {
    match OWN_KEY.get() {
        Some(own) if sticky.keys.is_empty() => own,
        _ => &sticky.keys,
    }
}
