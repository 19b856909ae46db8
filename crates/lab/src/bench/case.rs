//! The cases: their loads, and the requirements on Evenkeel.

use super::proxy::Protocol;
use super::report::number;
use crate::socket::Waiting;

/// Ratios of Evenkeel's CPU time per request that must not be exceeded.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// To the relay's.
    pub relay: Option<f64>,
    /// To nginx's.
    pub nginx: Option<f64>,
    /// To HAProxy's.
    pub haproxy: Option<f64>,
}

/// A load by this program's own generator, in rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPlan {
    /// Body size in bytes.
    pub size: u64,
    /// Connections at once.
    pub connections: usize,
    /// Whether connections are kept.
    pub connection_use: ConnectionUse,
    /// Open loop at this many requests per second.
    pub rate: Option<f64>,
}

impl LoadPlan {
    /// How load and origin wait. A closed loop measures the proxy's cost of a request, which
    /// must not include waking them.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        match self.rate {
            None => Waiting::Awake,
            Some(_) => Waiting::Asleep,
        }
    }
}

/// Whether a connection carries more than one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionUse {
    /// It does.
    Kept,
    /// It carries one.
    OneRequest,
}

/// A load by `ab`.
#[derive(Debug, Clone, PartialEq)]
pub struct AbPlan {
    /// `-n`.
    pub count: u64,
    /// `-c`.
    pub connections: usize,
    /// Body size in bytes.
    pub size: u64,
    /// Origins behind the proxy.
    pub origins: usize,
    /// `-k`, or not.
    pub connection_use: ConnectionUse,
}

/// The load of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// CPU time per request, in interleaved rounds.
    Load(LoadPlan),
    /// The same by `ab`, and which is fastest.
    Ab(AbPlan),
    /// Memory of idle connections.
    Idle {
        /// How many.
        connections: usize,
        /// Bytes of Evenkeel's memory for each that must not be exceeded.
        bytes_max: Option<f64>,
    },
    /// Many connections with little to do each.
    Many {
        /// How many.
        connections: usize,
        /// Requests per second over all of them.
        rate: f64,
        /// For so long.
        seconds: f64,
    },
    /// A long mixed load on Evenkeel.
    Soak,
    /// Evenkeel with everything that it can show of itself, and without.
    Observed(LoadPlan),
}

/// One case.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// As `--case` takes it.
    pub name: String,
    /// As the table shows it.
    pub title: String,
    /// The protocol that the proxies are set to.
    pub protocol: Protocol,
    /// The load.
    pub plan: Plan,
    /// The requirements.
    pub limits: Limits,
}

const SMALL: Limits = Limits {
    relay: Some(1.20),
    nginx: Some(0.90),
    haproxy: Some(0.80),
};
const LARGE: Limits = Limits {
    relay: Some(1.10),
    nginx: Some(1.00),
    haproxy: Some(0.70),
};
const UNKEPT: Limits = Limits {
    relay: None,
    nginx: Some(1.00),
    haproxy: None,
};
const TUNNEL: Limits = Limits {
    relay: None,
    nginx: Some(1.00),
    haproxy: Some(1.00),
};
const NONE: Limits = Limits {
    relay: None,
    nginx: None,
    haproxy: None,
};

/// Bytes of user memory per idle connection of HTTP.
const IDLE_BYTES_MAX: f64 = 1_500.0;

/// Requests per second of the case `latency`: well below what any of them can do.
const LATENCY_RATE: f64 = 8_000.0;

/// All cases, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, word) in [(44, "44b"), (1024, "1k"), (10_240, "10k")] {
        for connections in [16, 64, 256] {
            cases.push(load(size, word, connections, SMALL));
        }
    }
    for connections in [10, 64] {
        cases.push(load(307_200, "300k", connections, LARGE));
    }
    cases.push(unkept(UNKEPT));
    cases.push(ab("1k-close-ab", 20_000, 16, 1024, 1, UNKEPT));
    cases.push(Case {
        name: "latency".into(),
        title: format!("1 KB, 64 connections, {LATENCY_RATE} requests/s, open loop"),
        protocol: Protocol::Http,
        plan: Plan::Load(LoadPlan {
            size: 1024,
            connections: 64,
            connection_use: ConnectionUse::Kept,
            rate: Some(LATENCY_RATE),
        }),
        limits: NONE,
    });
    cases.push(Case {
        name: "observed".into(),
        title: "1 KB, 64 connections: JSON log, metrics every second, status page open".into(),
        protocol: Protocol::Http,
        plan: Plan::Observed(LoadPlan {
            size: 1024,
            connections: 64,
            connection_use: ConnectionUse::Kept,
            rate: None,
        }),
        limits: NONE,
    });
    cases.extend(toy());
    cases.extend(tcp());
    cases.push(idle(5_000, Some(IDLE_BYTES_MAX)));
    cases.push(Case {
        name: "many".into(),
        title: "9,000 connections, 2,500 requests/s over them".into(),
        protocol: Protocol::Http,
        plan: Plan::Many {
            connections: 9_000,
            rate: 2_500.0,
            seconds: 20.0,
        },
        limits: NONE,
    });
    cases.push(Case {
        name: "soak".into(),
        title: "mixed sizes, connections that come and go".into(),
        protocol: Protocol::Http,
        plan: Plan::Soak,
        limits: NONE,
    });
    cases
}

/// The loads of other cases, carried as plain TCP.
fn tcp() -> Vec<Case> {
    let carried = |name: &str, case: Case| Case {
        name: name.into(),
        title: format!("TCP, {}", case.title),
        protocol: Protocol::Tcp,
        ..case
    };
    vec![
        carried("tcp-1k-64", load(1024, "1k", 64, TUNNEL)),
        carried("tcp-4m-4", load(4 * 1024 * 1024, "4m", 4, TUNNEL)),
        carried("tcp-new-16", unkept(TUNNEL)),
        carried("tcp-idle", idle(9_000, None)),
    ]
}

/// One request per connection.
fn unkept(limits: Limits) -> Case {
    Case {
        name: "1k-close".into(),
        title: "1 KB, 16 at once, one request per connection".into(),
        protocol: Protocol::Http,
        plan: Plan::Load(LoadPlan {
            size: 1024,
            connections: 16,
            connection_use: ConnectionUse::OneRequest,
            rate: None,
        }),
        limits,
    }
}

fn idle(connections: usize, bytes_max: Option<f64>) -> Case {
    Case {
        name: "idle".into(),
        title: format!("{} idle connections", number(connections as f64)),
        protocol: Protocol::Http,
        plan: Plan::Idle {
            connections,
            bytes_max,
        },
        limits: NONE,
    }
}

/// The three runs of toy-load-balancer, each also a hundred times as long, and
/// that with kept connections.
fn toy() -> Vec<Case> {
    let mut cases = Vec::new();
    for (word, count, connections, size, origins) in [
        ("1k", 500, 10, 1024, 4),
        ("300k", 500, 10, 307_200, 4),
        ("10k", 900, 20, 10_240, 8),
    ] {
        let name = format!("toy-{word}");
        cases.push(ab(&name, count, connections, size, origins, NONE));
        let name = format!("toy-{word}-long");
        cases.push(ab(&name, count * 100, connections, size, origins, NONE));
        let name = format!("toy-{word}-long-k");
        let mut kept = ab(&name, count * 100, connections, size, origins, NONE);
        if let Plan::Ab(plan) = &mut kept.plan {
            plan.connection_use = ConnectionUse::Kept;
            kept.title = ab_title(plan);
        }
        cases.push(kept);
    }
    cases
}

fn load(size: u64, word: &str, connections: usize, limits: Limits) -> Case {
    Case {
        name: format!("{word}-{connections}"),
        title: format!("{}, {connections} connections", size_title(size)),
        protocol: Protocol::Http,
        plan: Plan::Load(LoadPlan {
            size,
            connections,
            connection_use: ConnectionUse::Kept,
            rate: None,
        }),
        limits,
    }
}

fn ab(
    name: &str,
    count: u64,
    connections: usize,
    size: u64,
    origins: usize,
    limits: Limits,
) -> Case {
    let plan = AbPlan {
        count,
        connections,
        size,
        origins,
        connection_use: ConnectionUse::OneRequest,
    };
    Case {
        name: name.into(),
        title: ab_title(&plan),
        protocol: Protocol::Http,
        plan: Plan::Ab(plan),
        limits,
    }
}

fn ab_title(plan: &AbPlan) -> String {
    let kept = match plan.connection_use {
        ConnectionUse::Kept => " -k",
        ConnectionUse::OneRequest => "",
    };
    format!(
        "ab{kept} -n {} -c {}, {}, {} origins",
        plan.count,
        plan.connections,
        size_title(plan.size),
        plan.origins
    )
}

fn size_title(size: u64) -> String {
    if size < 1024 {
        format!("{size} B")
    } else if size < 1024 * 1024 {
        format!("{} KB", size / 1024)
    } else {
        format!("{} MB", size / 1024 / 1024)
    }
}
