//! Upstreams: names looked up, files read, options of balancers put together.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use evenkeel_policy::balance::{Balance, FairOptions};
use evenkeel_policy::health::HealthSettings;
use evenkeel_policy::queue::{QueueSettings, Sharing};
use evenkeel_proto::http1::write::{Forward, Via};
use evenkeel_proto::proxy_protocol::Version as HeaderVersion;

use super::super::diagnostics::Report;
use super::super::queue_answer;
use super::super::setting::{Bounded, Map, Placed, Resolve};
use super::super::surroundings::{NameLookup, Surroundings};
use super::super::value::{Destination, EndpointAddress, Forwarding, HexBytes, Text};
use super::super::written::{
    self, EndpointParts, ProbeParts, QueueParts, ShortEndpoint, UpstreamParts, listed,
};
use super::super::{
    BalanceKey, Check, Endpoint, EndpointProtocol, EndpointSource, Lane, NameSource, Probe,
    ProbeProtocol, ProbeRequest, Queue, ServiceSource, Upstream,
};
use evenkeel_net::Address;

pub(super) fn resolve(
    name: &str,
    it: &written::UpstreamTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Upstream> {
    let written = it.endpoints.value.as_ref()?.iter();
    let sources: Option<Vec<_>> = written.map(|it| source(&it.value)).collect();
    let sources = sources?;
    let endpoints = sources.iter().filter_map(|it| match surroundings.lookup {
        NameLookup::System | NameLookup::Later => it.fixed().cloned(),
        NameLookup::Skip => Some(placeholder(it)),
    });
    let endpoints = endpoints.collect();
    let file = it.endpoints_file.value.as_ref();
    let endpoints_file = file.map(|it| surroundings.folder.join(&it.0));
    let queue = queue(it, surroundings.folder, report);
    let tls = super::tls::upstream(it, surroundings, report);
    let fair = it.fair.value.as_ref();
    let busy_status = fair.and_then(|fair| fair.status.value).map(Bounded::get);
    let key = it.key.value.as_ref();
    it.resolve_with(UpstreamParts {
        name: name.to_owned(),
        balance: balance(it)?,
        listed: listed(&sources, file.map(|it| &*it.0)),
        endpoints,
        sources,
        endpoints_file,
        via: if it.via.value? { Via::Added } else { Via::Kept },
        forward: forward(it.forward.value.as_ref()?),
        tls: tls?,
        grpc_retry_on: it
            .grpc_retry_on
            .value
            .as_ref()?
            .iter()
            .map(|it| it.value.0)
            .collect(),
        key: key.map_or(BalanceKey::Uri, |key| key.by.clone()),
        busy_status: busy_status.unwrap_or(502),
        queue: queue?,
        lanes: lanes(it)?,
        health: health(it)?,
        probe: match &it.health.value {
            Some(health) => Some(probe(health, it.proxy_protocol.value, it.protocol.value?)?),
            None => None,
        },
    })
}

fn balance(it: &written::UpstreamTable) -> Option<Balance> {
    let balance = it.balance.value?;
    let Some(fair) = &it.fair.value else {
        return Some(balance);
    };
    Some(Balance::Fair(FairOptions {
        no_rr: fair.no_rr.value?,
        weight_mode: fair.weight_mode.value?,
    }))
}

fn queue(it: &written::UpstreamTable, folder: &Path, report: &mut Report) -> Option<Queue> {
    let is_peak = it.is_peak();
    let queue = it.queue.value.as_ref()?;
    let answer = queue_answer::resolve(queue.answer.value.as_ref()?, folder, report);
    let standard = QueueSettings::default();
    let max = queue.max.value?.get();
    queue.resolve_with(QueueParts {
        settings: QueueSettings {
            max: if is_peak { 0 } else { max },
            grows: may_grow(it),
            hold: queue.hold.value? && !is_peak,
            discipline: queue.discipline.value?,
            sharing: match &queue.fair_by.value {
                Some(_) => Sharing::ByKey,
                None => Sharing::Anyone,
            },
            target: queue.target.value.map_or(standard.target, |it| it.0),
            key_wait: match &it.key.value {
                Some(key) => key.wait,
                None => standard.key_wait,
            },
        },
        answer: answer?,
    })
}

fn forward(written: &[Placed<Forwarding>]) -> Forward {
    let has = |wanted| written.iter().any(|it| it.value == wanted);
    Forward {
        x_forwarded: has(Forwarding::XForwarded),
        forwarded: has(Forwarding::Forwarded),
        x_real_ip: has(Forwarding::XRealIp),
    }
}

fn lanes(it: &written::UpstreamTable) -> Option<Vec<Lane>> {
    let Map(lanes) = it.lanes.value.as_ref()?;
    let lanes = lanes.iter().map(|it| {
        Some(Lane {
            name: it.name.clone(),
            max_in_flight: it.value.as_ref()?.value.get(),
        })
    });
    lanes.collect()
}

fn health(it: &written::UpstreamTable) -> Option<HealthSettings> {
    let standard = HealthSettings::default();
    let (rise, fall, initial) = match &it.health.value {
        Some(health) => (
            health.rise.value?.get(),
            health.fall.value?.get(),
            health.initial.value?,
        ),
        None => (standard.rise, standard.fall, standard.initial),
    };
    Some(HealthSettings {
        guard: it.guard.value?,
        rise,
        fall,
        initial,
        slow_start: it
            .slow_start
            .value
            .map(|it| it.0)
            .filter(|it| !it.is_zero()),
    })
}

fn probe(
    it: &written::HealthTable,
    header: Option<HeaderVersion>,
    http: EndpointProtocol,
) -> Option<Probe> {
    let user = || it.user.value.as_ref().map(|it| it.0.clone());
    let protocol = it.protocol.value?;
    let check = match protocol {
        ProbeProtocol::Tcp => bytes_of_check(it),
        ProbeProtocol::Http => Check::Http(ProbeRequest {
            method: it.method.value.as_ref()?.0.clone(),
            path: it.path.value.as_ref()?.0.clone(),
            host: it.host.value.as_ref().map(|host| host.0.clone()),
            headers: it.headers.value.as_ref()?.resolve()?,
            expect: it.expect.value.as_ref()?.resolve()?,
            body: it.body.value.as_ref().map(|text| text.0.clone()),
        }),
        ProbeProtocol::Grpc => Check::Grpc {
            service: it
                .service
                .value
                .as_ref()
                .map_or(String::new(), |it| it.0.clone()),
            host: it.host.value.as_ref().map(|host| host.0.clone()),
        },
        ProbeProtocol::Postgres => Check::Postgres { user: user()? },
        ProbeProtocol::Mysql => Check::Mysql { user: user()? },
        ProbeProtocol::Redis => Check::Redis,
        ProbeProtocol::Smtp => Check::Smtp,
        ProbeProtocol::Tls => Check::Tls {
            server_name: it.host.value.as_ref().map(|host| host.0.clone()),
        },
    };
    it.resolve_with(ProbeParts {
        check,
        // Another port may be another server's.
        proxy_protocol: header.filter(|_| it.port.value.is_none()),
        // A probe of TLS makes its own handshake.
        takes_tls: it.port.value.is_none() && protocol != ProbeProtocol::Tls,
        http: match it.port.value {
            None => http,
            Some(_) => EndpointProtocol::Http1,
        },
    })
}

/// The check by bytes of the operator's; without any a connection is enough.
fn bytes_of_check(it: &written::HealthTable) -> Check {
    let bytes = |text: &Option<Text>, hex: &Option<HexBytes>| {
        let text = text.as_ref().map(|it| it.0.clone().into_bytes());
        text.or_else(|| hex.as_ref().map(|it| it.0.clone()))
    };
    match bytes(&it.receive.value, &it.receive_hex.value) {
        Some(receive) => Check::Bytes {
            send: bytes(&it.send.value, &it.send_hex.value).unwrap_or_default(),
            receive,
        },
        None => Check::Connect,
    }
}

/// Whether endpoints may come that are not written.
fn may_grow(it: &written::UpstreamTable) -> bool {
    let mut endpoints = it.endpoints.value.iter().flatten();
    let is_looked_up = |it: &ShortEndpoint| {
        let address = it.0.address.value.as_ref();
        let is_name =
            |it: &Placed<EndpointAddress>| matches!(it.value.destination, Destination::Host { .. });
        it.0.srv.written || address.is_some_and(is_name)
    };
    it.endpoints_file.written || endpoints.any(|it| is_looked_up(&it.value))
}

fn source(it: &ShortEndpoint) -> Option<EndpointSource> {
    let table = &it.0;
    let pattern = |name: &str, port: u16| {
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        table.resolve_with(EndpointParts {
            name: name.to_owned(),
            address: Address::Tcp(address),
            host: name.to_owned(),
        })
    };
    let resolve = table.resolve.value?;
    let family = table.family.value;
    if let Some(service) = &table.srv.value {
        let service = service.value.0.clone();
        return Some(EndpointSource::Service(ServiceSource {
            pattern: pattern(&service, 0)?,
            service,
            resolve,
            family,
        }));
    }
    let EndpointAddress { text, destination } = &table.address.value.as_ref()?.value;
    Some(match destination {
        Destination::Host { name, port } => EndpointSource::Name(NameSource {
            host: name.clone(),
            port: *port,
            resolve,
            family,
            pattern: pattern(text, *port)?,
        }),
        Destination::Address(address) => {
            let host = if address.is_unix() { "localhost" } else { text };
            EndpointSource::Fixed(table.resolve_with(EndpointParts {
                name: text.clone(),
                address: address.clone(),
                host: host.to_owned(),
            })?)
        }
    })
}

/// An endpoint for a source whose names are not looked up.
fn placeholder(source: &EndpointSource) -> Endpoint {
    match source {
        EndpointSource::Fixed(endpoint) => endpoint.clone(),
        EndpointSource::Name(name) => name.pattern.clone(),
        EndpointSource::Service(service) => service.pattern.clone(),
    }
}
