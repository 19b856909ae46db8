//! Names and services, asked of name servers as the system would ask.
//!
//! Search domains, `/etc/hosts` and the system's name servers are read again when their files
//! change. `server.resolvers` replaces the name servers.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
    ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{RData, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, Resolver, TokioResolver};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Failure;
use crate::config::{EndpointSource, Family};

/// Most addresses of a name, and most hosts of a service.
const MOST_ADDRESSES: usize = 1024;
/// Questions that are asked at once.
const MOST_AT_ONCE: usize = 64;
/// Longest time for one question, to the system's servers and to the configuration's. All names
/// of the search list and both families of addresses are within it.
const LONGEST_LOOK: Duration = Duration::from_secs(15);
const OWN_LONGEST_LOOK: Duration = Duration::from_secs(5);
/// How long a server of the configuration has for an answer, and how often it is asked.
const OWN_TIMEOUT: Duration = Duration::from_secs(2);
const OWN_ATTEMPTS: usize = 2;
/// Time for the address of this machine to accept.
const LOCAL_TIMEOUT: Duration = Duration::from_millis(250);
/// How long lines of `/etc/hosts` hold: they have no TTL.
const HOSTS_TTL: Duration = Duration::from_secs(30);
/// Hosts of a service that are asked for at once.
const HOSTS_AT_ONCE: usize = 32;

/// A question to name servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// The addresses of a host.
    Host {
        host: String,
        family: Option<Family>,
    },
    /// Which address of this machine accepts at a port.
    Local { port: u16, family: Option<Family> },
    /// The hosts of a service, with their addresses.
    Service {
        service: String,
        family: Option<Family>,
    },
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// At least one, in an order that stays.
    pub targets: Vec<Target>,
    /// How long it holds.
    pub ttl: Duration,
    /// Hosts of a service that no name server knows an address of.
    pub absent: Vec<String>,
}

/// An address that a name or a service stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    /// Of a service: lower ones are used first.
    pub priority: u16,
    pub address: IpAddr,
    /// Of a service.
    pub port: u16,
    /// Of a service.
    pub weight: u16,
    /// Of a service: host and port, as its records have them.
    pub host: Option<String>,
}

impl Target {
    fn of_name(address: IpAddr) -> Self {
        Target {
            priority: 0,
            address,
            port: 0,
            weight: 0,
            host: None,
        }
    }
}

/// Whether a name is this machine's: RFC 6761, 6.3.
pub(super) fn is_local(host: &str) -> bool {
    host.trim_end_matches('.').eq_ignore_ascii_case("localhost")
}

/// The addresses of this machine, in the order in which they are tried.
const LOCAL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

impl Question {
    /// The question of a source; `None` for an address.
    pub fn of(source: &EndpointSource) -> Option<Question> {
        Some(match source {
            EndpointSource::Fixed(_) => return None,
            EndpointSource::Name(name) if is_local(&name.host) => Question::Local {
                port: name.port,
                family: name.family,
            },
            EndpointSource::Name(name) => Question::Host {
                host: name.host.clone(),
                family: name.family,
            },
            EndpointSource::Service(service) => Question::Service {
                service: service.service.clone(),
                family: service.family,
            },
        })
    }

    /// The name or the service that it asks for.
    pub fn text(&self) -> &str {
        match self {
            Question::Host { host, .. } => host,
            Question::Local { .. } => "localhost",
            Question::Service { service, .. } => service,
        }
    }

    /// Whether no name server is asked.
    pub fn is_local(&self) -> bool {
        matches!(self, Question::Local { .. })
    }
}

/// The name servers that questions go to.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// Name servers that replace the system's, if there are any.
    servers: Arc<[SocketAddr]>,
    built: Arc<Mutex<Option<Built>>>,
    permits: Arc<Semaphore>,
}

/// A resolver for each choice of addresses, and the files they were built from.
#[derive(Debug)]
struct Built {
    files: SystemFiles,
    /// The lines of `/etc/hosts`.
    hosts: Arc<Hosts>,
    by_strategy: Vec<(LookupIpStrategy, TokioResolver)>,
}

/// The system's files, as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SystemFiles {
    resolv_conf: Vec<u8>,
    hosts: Vec<u8>,
}

impl SystemFiles {
    /// A missing file counts as an empty one, as for the system.
    fn read() -> Self {
        SystemFiles {
            resolv_conf: std::fs::read("/etc/resolv.conf").unwrap_or_default(),
            hosts: std::fs::read("/etc/hosts").unwrap_or_default(),
        }
    }

    fn resolver(
        &self,
        servers: &[SocketAddr],
        hosts: Arc<Hosts>,
        strategy: LookupIpStrategy,
    ) -> Result<TokioResolver, NetError> {
        // Without a server the system asks this machine's.
        let local = || {
            let server = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
            (config, ResolverOpts::default())
        };
        let (config, mut options) =
            parse_resolv_conf(&self.resolv_conf).unwrap_or_else(|_| local());
        let config = match servers {
            [] => config,
            servers => {
                let servers = servers.iter().map(|&it| name_server(it)).collect();
                (options.timeout, options.attempts) = (OWN_TIMEOUT, OWN_ATTEMPTS);
                let (domain, search, _) = config.into_parts();
                ResolverConfig::from_parts(domain, search, servers)
            }
        };
        options.ip_strategy = strategy;
        // The age of an answer matters here.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let provider = TokioRuntimeProvider::default();
        let builder = Resolver::builder_with_config(config, provider).with_options(options);
        let mut resolver = builder.build()?;
        resolver.set_hosts(hosts);
        Ok(resolver)
    }

    fn hosts(&self) -> Hosts {
        let mut hosts = Hosts::default();
        // Malformed lines are skipped.
        let _ = hosts.read_hosts_conf(&self.hosts[..]);
        hosts
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    let connections = connections.map(|mut it| {
        it.port = address.port();
        it
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

impl Names {
    /// Asks these servers, or the system's where there are none.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Names {
            servers: servers.into(),
            built: Arc::default(),
            permits: Arc::new(Semaphore::new(MOST_AT_ONCE)),
        }
    }

    /// Asks.
    pub async fn ask(&self, question: &Question) -> Result<Answer, Failure> {
        if let Question::Local { port, family } = *question {
            return Ok(local(port, family).await);
        }
        let _permit = self.permits.acquire().await;
        let longest = if self.servers.is_empty() {
            LONGEST_LOOK
        } else {
            OWN_LONGEST_LOOK
        };
        let answer = match question {
            Question::Host { host, family } => timeout(longest, self.host(host, *family)).await,
            Question::Service { service, family } => {
                timeout(longest, self.service(service, *family)).await
            }
            Question::Local { .. } => return Err(not_found("it is local")),
        };
        answer.unwrap_or_else(|_| Err(failure(&NetError::Timeout)))
    }

    async fn host(&self, host: &str, family: Option<Family>) -> Result<Answer, Failure> {
        let (addresses, ttl) = self.addresses(host, family).await?;
        let targets = addresses.into_iter().map(Target::of_name).collect();
        answer(targets, ttl)
    }

    /// The addresses of a host, and for how long they hold.
    async fn addresses(
        &self,
        host: &str,
        family: Option<Family>,
    ) -> Result<(Vec<IpAddr>, Duration), Failure> {
        let (resolver, hosts) = self.resolver(family).await?;
        let found = resolver.lookup_ip(host).await.map_err(|it| failure(&it))?;
        let lookup = found.as_lookup();
        let ttl = if hosts.lookup_static_host(lookup.query()).is_some() {
            HOSTS_TTL
        } else {
            ttl_of(lookup)
        };
        Ok((found.iter().collect(), ttl))
    }

    async fn service(&self, service: &str, family: Option<Family>) -> Result<Answer, Failure> {
        let (resolver, _) = self.resolver(family).await?;
        let found = resolver.lookup(service, RecordType::SRV).await;
        let found = found.map_err(|it| failure(&it))?;
        let records = found.answers().iter().filter_map(|it| match &it.data {
            RData::SRV(record) => Some(record),
            _ => None,
        });
        let mut hosts: BTreeMap<String, Vec<&SRV>> = BTreeMap::new();
        for record in records {
            // RFC 2782: the service is decidedly not there.
            if record.target.is_root() {
                return Err(not_found("its record says that the service is not offered"));
            }
            hosts
                .entry(record.target.to_utf8())
                .or_default()
                .push(record);
        }
        if hosts.len() > MOST_ADDRESSES {
            return Err(too_many("hosts", hosts.len()));
        }
        let mut ttl = ttl_of(&found);
        let (mut targets, mut absent) = (Vec::new(), Vec::new());
        let names: Vec<_> = hosts.keys().cloned().collect();
        for names in names.chunks(HOSTS_AT_ONCE) {
            let mut looks = JoinSet::new();
            for host in names {
                let (asked, host) = (self.clone(), host.clone());
                looks.spawn(async move {
                    let addresses = asked.addresses(&host, family).await;
                    (host, addresses)
                });
            }
            while let Some(looked) = looks.join_next().await {
                let (host, addresses) = looked.map_err(|it| Failure {
                    word: "dns-failed",
                    text: it.to_string(),
                })?;
                let shown = host.trim_end_matches('.');
                let (addresses, of_host) = match addresses {
                    Ok(found) => found,
                    // The others serve. One that can't be asked for may be there still.
                    Err(failure) if failure.word == NOT_FOUND => {
                        absent.push(shown.to_owned());
                        continue;
                    }
                    Err(failure) => {
                        return Err(Failure {
                            text: format!("{shown}: {}", failure.text),
                            ..failure
                        });
                    }
                };
                ttl = ttl.min(of_host);
                for record in &hosts[&host] {
                    let shown = format!("{shown}:{}", record.port);
                    targets.extend(addresses.iter().map(|&address| Target {
                        priority: record.priority,
                        address,
                        port: record.port,
                        weight: record.weight,
                        host: Some(shown.clone()),
                    }));
                }
            }
        }
        absent.sort_unstable();
        Ok(Answer {
            absent,
            ..answer(targets, ttl)?
        })
    }

    /// A resolver by the system's files as they are now.
    async fn resolver(
        &self,
        family: Option<Family>,
    ) -> Result<(TokioResolver, Arc<Hosts>), Failure> {
        let read = tokio::task::spawn_blocking(SystemFiles::read).await;
        let files = read.map_err(|_| Failure {
            word: "dns-failed",
            text: "the system's files could not be read".to_owned(),
        })?;
        let strategy = match family {
            None => LookupIpStrategy::Ipv4thenIpv6,
            Some(Family::Ipv4) => LookupIpStrategy::Ipv4Only,
            Some(Family::Ipv6) => LookupIpStrategy::Ipv6Only,
            Some(Family::Both) => LookupIpStrategy::Ipv4AndIpv6,
        };
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let built = match &mut *built {
            Some(built) if built.files == files => built,
            stale => stale.insert(Built {
                hosts: Arc::new(files.hosts()),
                files,
                by_strategy: Vec::new(),
            }),
        };
        let known = built.by_strategy.iter().find(|it| it.0 == strategy);
        if let Some((_, resolver)) = known {
            return Ok((resolver.clone(), built.hosts.clone()));
        }
        let hosts = built.hosts.clone();
        let resolver = built.files.resolver(&self.servers, hosts.clone(), strategy);
        let resolver = resolver.map_err(|it| failure(&it))?;
        built.by_strategy.push((strategy, resolver.clone()));
        Ok((resolver, hosts))
    }
}

/// The shortest TTL of its records.
fn ttl_of(lookup: &Lookup) -> Duration {
    let shortest = lookup.answers().iter().map(|it| it.ttl).min();
    Duration::from_secs(u64::from(shortest.unwrap_or(0)))
}

/// An answer of these targets: servers rotate their records.
fn answer(mut targets: Vec<Target>, ttl: Duration) -> Result<Answer, Failure> {
    targets.sort_unstable();
    targets.dedup();
    match targets.len() {
        0 => Err(not_found("it has no address")),
        1..=MOST_ADDRESSES => Ok(Answer {
            targets,
            ttl,
            absent: Vec::new(),
        }),
        count => Err(too_many("addresses", count)),
    }
}

fn too_many(what: &str, count: usize) -> Failure {
    Failure {
        word: "dns-too-many",
        text: format!("it has {count} {what}, but at most {MOST_ADDRESSES} are allowed"),
    }
}

/// The first address of this machine that accepts, or the first.
async fn local(port: u16, family: Option<Family>) -> Answer {
    let wanted: Vec<_> = LOCAL
        .into_iter()
        .filter(|it| match family {
            Some(Family::Ipv4) => it.is_ipv4(),
            Some(Family::Ipv6) => it.is_ipv6(),
            Some(Family::Both) | None => true,
        })
        .collect();
    let mut first = wanted[0];
    if wanted.len() > 1 {
        for &address in &wanted {
            let connecting = TcpStream::connect((address, port));
            if matches!(timeout(LOCAL_TIMEOUT, connecting).await, Ok(Ok(_))) {
                first = address;
                break;
            }
        }
    }
    Answer {
        targets: vec![Target::of_name(first)],
        ttl: super::MIN_TTL,
        absent: Vec::new(),
    }
}

/// The word where no name server knows the name.
const NOT_FOUND: &str = "dns-not-found";

fn not_found(text: &str) -> Failure {
    Failure {
        word: NOT_FOUND,
        text: text.to_owned(),
    }
}

fn failure(error: &NetError) -> Failure {
    let word = match error {
        NetError::Dns(DnsError::NoRecordsFound(_)) => {
            return not_found("no name server has an address for it");
        }
        NetError::Timeout => "dns-timeout",
        _ => "dns-failed",
    };
    Failure {
        word,
        text: error.to_string(),
    }
}
