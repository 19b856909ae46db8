//! Networks of clients and of proxies.

use super::FilePath;
use crate::diagnostics::Report;
use crate::setting::{Fault, FromText, Placed, Setting, options};
use crate::shape::Shape;
use crate::tree::{Node, Value};
use evenkeel_policy::route::Network;
use evenkeel_policy::route::network::NetworkError;
use std::net::{IpAddr, Ipv4Addr};

/// A network of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client(pub Network);

impl FromText for Client {
    const FORM: &'static str = "an address or network, such as `\"10.0.0.0/8\"` or `\"::1\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        text.parse().map(Self).map_err(|error| {
            let fault = Fault::new(format!("`{text}` is not a valid address or network"));
            match error {
                NetworkError::Address if matches!(text, "all" | "any" | "*") => fault.help(
                    "all addresses are [\"0.0.0.0/0\", \"::/0\"]; with `allow`, all others are \
                     denied anyway",
                ),
                NetworkError::Address => match networks_between(text) {
                    Some(networks) => fault.help(format!("write networks: [{networks}]")),
                    None => fault.help("write it as in \"10.0.0.1\" or \"10.0.0.0/8\""),
                },
                NetworkError::PrefixLen => fault
                    .help("write the number of bits after `/`: at most 32 for IPv4, 128 for IPv6"),
            }
        })
    }

    fn doubt(text: &str) -> Option<Fault> {
        let (address, _) = text.split_once('/')?;
        let address = address.parse::<IpAddr>().ok()?.to_canonical();
        let network = text.parse::<Network>().ok()?.to_string();
        let first = network.split('/').next()?.parse::<IpAddr>().ok()?;
        (first != address).then(|| {
            Fault::new(format!("`{text}` means the whole network `{network}`")).help(format!(
                "write \"{network}\" for the network, or \"{address}\" for the single address"
            ))
        })
    }
}

options! {
    /// Networks in a file.
    pub struct NetworkFileTable as "a file of networks" {
        /// The file, with a network or an address a line; `#` begins a comment. It is read
        /// again when it changes.
        file: Placed<FilePath> = Required,
    }
}

/// Clients: a network, or a file of networks.
#[derive(Debug)]
pub enum ClientItem {
    /// This network.
    In(Network),
    /// The networks in this file.
    File(Placed<FilePath>),
}

impl Setting for ClientItem {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        if let Value::Table(_) = node.value {
            let table = NetworkFileTable::read(node, report)?;
            return table.file.value.map(Self::File);
        }
        Client::read(node, report).map(|it| Self::In(it.0))
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![Client::shape(), NetworkFileTable::shape()])
    }
}

/// The networks that a range of IPv4 addresses is made of, as items of a list.
fn networks_between(text: &str) -> Option<String> {
    /// A longer list was hardly meant.
    const MOST: usize = 8;
    let (first, last) = text.split_once('-')?;
    let number = |it: &str| it.trim().parse::<Ipv4Addr>().ok().map(u32::from);
    let (mut next, last) = (u64::from(number(first)?), u64::from(number(last)?));
    let mut networks = Vec::new();
    while next <= last {
        let aligned = next.trailing_zeros().min(32);
        let bits = aligned.min((last - next + 1).ilog2());
        let address = Ipv4Addr::from(u32::try_from(next).ok()?);
        networks.push(format!("\"{address}/{}\"", 32 - bits));
        next += 1 << bits;
    }
    (1..=MOST)
        .contains(&networks.len())
        .then(|| networks.join(", "))
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// An address in this network.
    In(Network),
    /// Anybody on a Unix socket.
    Unix,
}

impl FromText for Peer {
    const FORM: &'static str =
        "an address or network, such as `\"10.0.0.0/8\"` or `\"::1\"`, or `\"unix\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = || Fault::new(format!("`{text}` is not a valid address or network"));
        match text {
            "unix" => Ok(Self::Unix),
            "*" | "all" | "any" => Err(fault().help(
                "list only the proxies in front, as in \"10.0.0.0/8\": otherwise any client could \
                 claim any address",
            )),
            "private_ranges" | "private" => Err(fault().help(
                "write the networks: [\"10.0.0.0/8\", \"172.16.0.0/12\", \"192.168.0.0/16\", \
                 \"127.0.0.0/8\", \"fd00::/8\", \"::1\"]",
            )),
            "localhost" => Err(fault().help("write [\"127.0.0.1\", \"::1\"]")),
            _ => match text.parse() {
                Ok(network) => Ok(Self::In(network)),
                Err(NetworkError::Address) if networks_between(text).is_some() => {
                    Client::from_text(text).map(|it| Self::In(it.0))
                }
                Err(NetworkError::Address) => Err(fault().help(
                    "write it as in \"10.0.0.0/8\"; \"unix\" is every peer on a Unix socket",
                )),
                Err(NetworkError::PrefixLen) => Client::from_text(text).map(|it| Self::In(it.0)),
            },
        }
    }

    fn doubt(text: &str) -> Option<Fault> {
        Client::doubt(text)
    }
}
