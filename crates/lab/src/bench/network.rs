//! The network that comparisons run in: loopback.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use rustix::net::sockopt::tcp_congestion;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::install::{self, Needed};
use super::process::output_of;

/// The default of Debian's kernel, and of the comparison.
const CONGESTION: &str = "cubic";
const IP: [Needed; 1] = [("ip", &["ip", "-V"], "iproute2")];

/// The congestion control of TCP on loopback, by the kernel's name for it.
///
/// # Errors
/// A connection to ask can't be made.
pub fn congestion() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok(tcp_congestion(&client)?)
}

/// Makes connections of this thread, and of processes that it starts, use cubic. If the machine
/// has another algorithm, they get a network namespace of their own.
///
/// With `bbr` the kernel may set a timer between the packets of a long response, also on
/// loopback. A relay of 300 KB by pipes took four timers and 105 us a response with it, 47 us
/// without.
///
/// # Errors
/// It needs root; the message says so.
pub fn settle() -> io::Result<()> {
    let found = congestion()?;
    if found == CONGESTION {
        return Ok(());
    }
    install::ensure(&IP)?;
    println!("TCP has {found} here: measuring with {CONGESTION}, in a network of its own");
    let told = |error| io::Error::other(format!("a network of its own (as root): {error}"));
    // SAFETY: no descriptor is shared less than before.
    let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    unshared.map_err(|error| told(error.into()))?;
    ip(&["link", "set", "lo", "up"]).map_err(told)?;
    for network in ["127.0.0.0/8", "127.0.0.1"] {
        let route = ["route", "replace", "table", "local", "local", network];
        let by = ["dev", "lo", "proto", "kernel", "scope", "host"];
        let with = ["src", "127.0.0.1", "congctl", CONGESTION];
        ip(&[&route[..], &by, &with].concat()).map_err(told)?;
    }
    match congestion()? {
        is if is == CONGESTION => Ok(()),
        other => Err(told(io::Error::other(format!("TCP still has {other}")))),
    }
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    output_of(Command::new("ip").args(arguments)).map(drop)
}
