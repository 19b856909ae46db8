//! A large configuration: two routes for each host, one on a path and one for the
//! rest, and ten endpoints for each upstream.

use std::fmt::Write;
use std::net::Ipv4Addr;

/// Endpoints of an upstream.
const ENDPOINTS: usize = 10;
/// Hosts that share an upstream.
const HOSTS_PER_UPSTREAM: usize = 10;

/// The name of a host.
pub fn host(number: usize) -> String {
    format!("host-{number}.example.com")
}

/// The routes and upstreams of this many hosts. The endpoints are addresses of this machine,
/// each with this port.
pub fn tables(hosts: usize, port: u16) -> String {
    let upstreams = hosts.div_ceil(HOSTS_PER_UPSTREAM);
    let mut text = String::new();
    for number in 0..hosts {
        let (host, upstream) = (host(number), number % upstreams);
        for path in [", path = \"/api/*\"", ""] {
            let _infallible = write!(
                text,
                "[[route]]\nmatch = {{ host = \"{host}\"{path} }}\nupstream = \"app-{upstream}\"\n\n"
            );
        }
    }
    for upstream in 0..upstreams {
        let endpoints = (0..ENDPOINTS).map(|at| {
            let address = loopback(upstream * ENDPOINTS + at);
            format!("\"{address}:{port}\"")
        });
        let endpoints: Vec<_> = endpoints.collect();
        let _infallible = write!(
            text,
            "[upstream.app-{upstream}]\nendpoints = [{}]\n\n",
            endpoints.join(", ")
        );
    }
    text
}

/// An address of this machine's own, another for each number.
fn loopback(number: usize) -> Ipv4Addr {
    let [.., a, b, c] = (number as u32 + 2).to_be_bytes();
    Ipv4Addr::new(127, a, b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_routes_a_host_and_ten_endpoints_an_upstream() {
        let text = tables(10_000, 9000);
        let count = |what: &str| text.matches(what).count();
        assert_eq!(count("[[route]]"), 20_000);
        assert_eq!(count("[upstream."), 1_000);
        let endpoints: std::collections::HashSet<_> =
            text.split('"').filter(|it| it.ends_with(":9000")).collect();
        assert_eq!(endpoints.len(), 10_000);
        assert!(text.contains(&host(9_999)));
    }
}
