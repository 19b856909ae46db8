//! The entrants of a scenario: Evenkeel with some settings, or a peer.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::bench::proxy::{Kind, Proxy, Site, haproxy, nginx};

/// Path of the module in Debian's package.
const FAIR_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_upstream_fair_module.so";

/// A participant of a trial.
#[derive(Debug, Clone)]
pub struct Entrant {
    /// As tables and plots call it; unlike any other in its trial.
    pub label: &'static str,
    /// The proxy between the load and the origins.
    pub setup: Setup,
    /// Arguments for the load in place of the trial's.
    pub load: Option<Vec<String>>,
}

/// The proxy between the load and the origins.
#[derive(Debug, Clone)]
pub enum Setup {
    /// Nothing: the load goes to the first origin.
    Direct,
    /// Evenkeel.
    Evenkeel(Settings),
    /// nginx, and the directive that says how it balances.
    Nginx {
        /// Empty for round-robin.
        directive: &'static str,
    },
    /// HAProxy.
    Haproxy {
        /// The algorithm.
        balance: &'static str,
        /// Options of each server.
        server: &'static str,
    },
}

/// The settings of Evenkeel in a scenario.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The balancer, always named: a default may change.
    pub balance: &'static str,
    /// Of each endpoint.
    pub max_in_flight: Option<u32>,
    /// Two, so that limits and counts must hold over both of them; one where
    /// the cost of a request is measured.
    pub workers: u32,
    /// Further lines of the upstream.
    pub upstream: Vec<String>,
    /// A path whose route holds the lane `slow`.
    pub slow_path: Option<&'static str>,
}

impl Settings {
    /// A balancer, and nothing else.
    #[must_use]
    pub fn balance(balance: &'static str) -> Self {
        Self {
            balance,
            max_in_flight: None,
            workers: 2,
            upstream: Vec::new(),
            slow_path: None,
        }
    }

    /// Limits the exchanges in flight at each endpoint.
    #[must_use]
    pub fn max_in_flight(mut self, count: u32) -> Self {
        self.max_in_flight = Some(count);
        self
    }

    /// With a line more in the upstream.
    #[must_use]
    pub fn with(mut self, line: impl Into<String>) -> Self {
        self.upstream.push(line.into());
        self
    }

    /// With one worker.
    #[must_use]
    pub fn one_worker(mut self) -> Self {
        self.workers = 1;
        self
    }

    /// Adds the lane `slow` with this many slots, for one path.
    #[must_use]
    pub fn slow_lane(mut self, path: &'static str, slots: u32) -> Self {
        self.slow_path = Some(path);
        self.with(format!("lanes = {{ slow = {slots} }}"))
    }

    fn config(&self, address: SocketAddr, origins: &[SocketAddr], folder: &Path) -> String {
        let log = folder.join("access.log");
        let mut text = format!(
            "[server]\nworkers = {}\n\n[[listener]]\nname = \"web\"\nbind = \"{address}\"\n\n\
             [access_log]\npath = {log:?}\nformat = \"combined\"\n\n",
            self.workers
        );
        // Writing to a string cannot fail.
        if let Some(path) = self.slow_path {
            let _ = write!(
                text,
                "[[route]]\nmatch = {{ path = \"{path}\" }}\nupstream = \"app\"\nlane = \"slow\"\n\n"
            );
        }
        let _ = write!(
            text,
            "[[route]]\nupstream = \"app\"\n\n[upstream.app]\nbalance = \"{}\"\n",
            self.balance
        );
        for line in &self.upstream {
            let _ = writeln!(text, "{line}");
        }
        text.push_str("endpoints = [\n");
        for origin in origins {
            let _ = match self.max_in_flight {
                Some(count) => writeln!(
                    text,
                    "  {{ address = \"{origin}\", max_in_flight = {count} }},"
                ),
                None => writeln!(text, "  \"{origin}\","),
            };
        }
        text.push_str("]\n");
        text
    }
}

impl Entrant {
    /// Evenkeel.
    #[must_use]
    pub fn evenkeel(label: &'static str, settings: Settings) -> Self {
        Self::of(label, Setup::Evenkeel(settings))
    }

    /// Debian's nginx with `fair`.
    #[must_use]
    pub fn nginx_fair() -> Self {
        Self::of("nginx fair", Setup::Nginx { directive: "fair;" })
    }

    /// Debian's nginx with `least_conn`.
    #[must_use]
    pub fn nginx_least_conn() -> Self {
        let directive = "least_conn;";
        Self::of("nginx least_conn", Setup::Nginx { directive })
    }

    /// Debian's nginx with round-robin.
    #[must_use]
    pub fn nginx_round_robin() -> Self {
        Self::of("nginx round-robin", Setup::Nginx { directive: "" })
    }

    /// Debian's HAProxy with `leastconn` and one request at a time per server.
    #[must_use]
    pub fn haproxy_maxconn_1() -> Self {
        let setup = Setup::Haproxy {
            balance: "leastconn",
            server: "maxconn 1",
        };
        Self::of("HAProxy maxconn 1", setup)
    }

    /// No proxy and one connection.
    #[must_use]
    pub fn one_origin(load: Vec<String>) -> Self {
        Self {
            label: "one origin",
            setup: Setup::Direct,
            load: Some(load),
        }
    }

    fn of(label: &'static str, setup: Setup) -> Self {
        Self {
            label,
            setup,
            load: None,
        }
    }

    /// Whether it is a peer, which may run shorter where time is dear.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        matches!(self.setup, Setup::Nginx { .. } | Setup::Haproxy { .. })
    }

    /// Starts it before `origins` and waits until it accepts.
    ///
    /// # Errors
    /// It can't be started, or does not know a key of its configuration; the message says
    /// which.
    pub fn start(&self, site: &Site, origins: &[SocketAddr]) -> io::Result<Proxy> {
        let name = slug(self.label);
        match &self.setup {
            Setup::Direct => site.start(Kind::Direct, origins),
            Setup::Evenkeel(settings) => {
                site.start_configured(Kind::Evenkeel, &name, |address, folder| {
                    settings.config(address, origins, folder)
                })
            }
            Setup::Nginx { directive } => {
                let module = module(directive)?;
                site.start_configured(Kind::Nginx, &name, |address, folder| {
                    let text = nginx(address, origins, folder, site.descriptors, directive);
                    module + &text
                })
            }
            Setup::Haproxy { balance, server } => {
                site.start_configured(Kind::Haproxy, &name, |address, _| {
                    haproxy(address, origins, site.descriptors, balance, server)
                })
            }
        }
    }
}

/// The line that loads the module of a directive, if it has one.
fn module(directive: &str) -> io::Result<String> {
    if directive != "fair;" {
        return Ok(String::new());
    }
    if !Path::new(FAIR_MODULE).exists() {
        let message = format!("no {FAIR_MODULE}: install libnginx-mod-http-upstream-fair");
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    Ok(format!("load_module {FAIR_MODULE};\n"))
}

/// A label as the name of a folder or file.
#[must_use]
pub fn slug(label: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let words = label
        .to_ascii_lowercase()
        .chars()
        .map(kept)
        .collect::<String>();
    let words: Vec<&str> = words.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_only_the_keys_that_are_set() {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let plain = Settings::balance("random");
        let text = plain.config(address, &[address], Path::new("/tmp"));
        let upstream = text.split("[upstream.app]\n").nth(1);
        assert_eq!(
            upstream,
            Some("balance = \"random\"\nendpoints = [\n  \"127.0.0.1:80\",\n]\n")
        );
        assert!(!text.contains("lane"), "{text}");
    }

    #[test]
    fn the_slow_lane_has_slots_and_a_route_before_the_other() {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let settings = Settings::balance("adaptive")
            .max_in_flight(1)
            .slow_lane("/slow/500", 8);
        let text = settings.config(address, &[address], Path::new("/tmp"));
        let lane = text.find("lane = \"slow\"");
        let rest = text.rfind("[[route]]");
        assert!(lane.is_some() && lane < rest, "{text}");
        assert!(text.contains("lanes = { slow = 8 }\n"), "{text}");
        assert!(text.contains("{ address = \"127.0.0.1:80\", max_in_flight = 1 },"));
    }

    #[test]
    fn slugs() {
        assert_eq!(slug("c=10, 20 ms (fixed)"), "c-10-20-ms-fixed");
    }
}
