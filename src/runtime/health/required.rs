//! Whether new endpoints of a configuration are well, checked before it comes into force.
//!
//! Only upstreams whose TLS or whose endpoints are all new are checked: the others have
//! endpoints whose health is known. One endpoint of each upstream has to pass its probe.

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::MOST_AT_ONCE;
use super::probing::probe_once;
use crate::certificates::{EndpointTls, UpstreamTls};
use crate::config::{Check, Config, Endpoint, Probe, Upstream};
use crate::observe::inquiry::Inquiry;
use crate::runtime::permits::Permits;
use crate::upstream::SharedUpstream;

/// Longest time for all probes together.
const LONGEST: Duration = Duration::from_secs(30);
/// Endpoints of an upstream that are named in a line of the event log.
const MOST_NAMED: usize = 8;

/// An upstream whose endpoints are all new.
#[derive(Debug)]
pub(in crate::runtime) struct NewUpstream {
    name: String,
    endpoints: Vec<Endpoint>,
    probe: Probe,
    tls: Option<Arc<UpstreamTls>>,
}

/// An upstream without an endpoint that is well.
#[derive(Debug, PartialEq, Eq)]
struct Unhealthy {
    upstream: String,
    /// Each endpoint with its failure.
    endpoints: Vec<(String, String)>,
}

/// Upstreams without an endpoint that is well.
#[derive(Debug)]
pub(in crate::runtime) struct NoneHealthy(Vec<Unhealthy>);

impl NewUpstream {
    /// The new upstreams of a configuration that is to come after `before`. May take
    /// milliseconds.
    pub fn all(config: &Config, before: &[Arc<SharedUpstream>]) -> Vec<Self> {
        let before: HashMap<_, _> = before.iter().map(|it| (it.name(), it)).collect();
        let upstreams = config.upstreams.iter();
        let new = upstreams.filter(|upstream| {
            let known = before.get(&*upstream.name);
            known.is_none_or(|known| are_new(upstream, known))
        });
        new.map(NewUpstream::of).collect()
    }

    fn of(upstream: &Upstream) -> Self {
        let connect = || Probe {
            interval: LONGEST,
            timeout: upstream.timeouts.connect,
            port: None,
            check: Check::Connect,
            proxy_protocol: upstream.proxy_protocol,
            takes_tls: true,
            http: upstream.protocol,
        };
        NewUpstream {
            name: upstream.name.clone(),
            endpoints: upstream.endpoints.clone(),
            probe: upstream.probe.clone().unwrap_or_else(connect),
            tls: UpstreamTls::following(upstream, None),
        }
    }
}

/// Whether none of the upstream's endpoints was there before, or their TLS is another.
///
/// An upstream that had no endpoint and has none now is not new.
fn are_new(upstream: &Upstream, known: &SharedUpstream) -> bool {
    let members = known.members();
    if members.is_empty() && upstream.endpoints.is_empty() {
        return false;
    }
    if known.tls().as_deref().map(UpstreamTls::settings) != upstream.tls.as_ref() {
        return true;
    }
    let members = members.iter().map(|it| &it.settings);
    let members: HashMap<_, _> = members.map(|it| (&*it.name, &it.address)).collect();
    let mut endpoints = upstream.endpoints.iter();
    !endpoints.any(|it| members.get(&*it.name) == Some(&&it.address))
}

/// Probes the endpoints of these upstreams once, side by side, until one of each has
/// passed.
///
/// # Errors
/// An upstream has no endpoint that passed.
///
/// # Cancellation
/// Dropping the future ends the probes.
pub(in crate::runtime) async fn require_healthy(
    upstreams: Vec<NewUpstream>,
    inquiries: &[Inquiry],
) -> Result<(), NoneHealthy> {
    let permits = Rc::new(Permits::new(MOST_AT_ONCE));
    let inquiries: Rc<[Inquiry]> = inquiries.into();
    let deadline = Instant::now() + LONGEST;
    let mut looks = JoinSet::new();
    for (at, upstream) in upstreams.into_iter().enumerate() {
        let (permits, inquiries) = (permits.clone(), inquiries.clone());
        looks.spawn_local(async move {
            let looked = upstream.look(&permits, &inquiries, deadline).await;
            (at, looked)
        });
    }
    let mut unhealthy = Vec::new();
    while let Some(looked) = looks.join_next().await {
        if let Ok((at, Err(found))) = looked {
            unhealthy.push((at, found));
        }
    }
    if unhealthy.is_empty() {
        return Ok(());
    }
    unhealthy.sort_by_key(|(at, _)| *at);
    let unhealthy = unhealthy.into_iter().map(|(_, found)| found);
    Err(NoneHealthy(unhealthy.collect()))
}

impl NewUpstream {
    async fn look(
        self,
        permits: &Rc<Permits>,
        inquiries: &Rc<[Inquiry]>,
        deadline: Instant,
    ) -> Result<(), Unhealthy> {
        let not_yet = || format!("no time was left for its probe within {LONGEST:?}");
        let names = self.endpoints.iter();
        let mut outcomes: Vec<_> = names.map(|it| (it.name.clone(), not_yet())).collect();
        let share = permits.share();
        let mut probes = JoinSet::new();
        for (at, endpoint) in self.endpoints.into_iter().enumerate() {
            let (permits, share) = (permits.clone(), share.clone());
            let (inquiries, probe) = (inquiries.clone(), self.probe.clone());
            let tls = self.tls.as_ref();
            let tls = tls.map(|it| EndpointTls::new(it, &endpoint));
            probes.spawn_local(async move {
                let _permit = permits.acquire(&share).await;
                (
                    at,
                    probe_once(&endpoint, &probe, tls.as_ref(), &inquiries).await,
                )
            });
        }
        while let Ok(Some(probed)) = timeout_at(deadline, probes.join_next()).await {
            match probed {
                Ok((_, Ok(_))) => return Ok(()),
                Ok((at, Err(failure))) => outcomes[at].1 = failure.to_string(),
                // The process is ending.
                Err(_) => {}
            }
        }
        Err(Unhealthy {
            upstream: self.name,
            endpoints: outcomes,
        })
    }
}

impl NoneHealthy {
    /// The failures, for a line of the event log.
    pub fn summary(&self) -> String {
        let each: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        each.join("; ")
    }

    /// A line for each endpoint, where the summary does not have all of them.
    pub fn details(&self) -> String {
        if self.0.iter().all(|it| it.endpoints.len() <= MOST_NAMED) {
            return String::new();
        }
        let lines = self.0.iter().flat_map(
            |Unhealthy {
                 upstream,
                 endpoints,
             }| {
                let lines = endpoints.iter();
                lines.map(move |(name, why)| format!("upstream {upstream}: endpoint {name}: {why}"))
            },
        );
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unhealthy {
            upstream,
            endpoints,
        } = self;
        if endpoints.is_empty() {
            return write!(out, "upstream {upstream} would have no endpoint");
        }
        write!(out, "upstream {upstream}: no endpoint passes its probe (")?;
        for (at, (name, why)) in endpoints.iter().take(MOST_NAMED).enumerate() {
            let between = if at > 0 { "; " } else { "" };
            write!(out, "{between}{name}: {why}")?;
        }
        match endpoints.len().saturating_sub(MOST_NAMED) {
            0 => out.write_str(")"),
            more => write!(out, "; and {more} more)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none_healthy(count: usize) -> NoneHealthy {
        let endpoints = (1..=count).map(|at| (format!("10.0.0.{at}:80"), "status 503".to_owned()));
        NoneHealthy(vec![Unhealthy {
            upstream: "app".to_owned(),
            endpoints: endpoints.collect(),
        }])
    }

    #[test]
    fn what_is_wrong_is_a_line() {
        for (count, expected) in [
            (0, "upstream app would have no endpoint"),
            (
                2,
                "upstream app: no endpoint passes its probe (10.0.0.1:80: status 503; \
                 10.0.0.2:80: status 503)",
            ),
        ] {
            let found = none_healthy(count);
            assert_eq!(found.summary(), expected);
            assert_eq!(found.details(), "");
        }
        let many = none_healthy(MOST_NAMED + 3);
        assert!(many.summary().ends_with("; and 3 more)"));
        assert_eq!(many.details().lines().count(), MOST_NAMED + 3);
    }
}
