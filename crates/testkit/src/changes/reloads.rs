//! Another configuration again and again, each other than the one before.

use std::fmt::Write;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::ledger::{Closes, Kind, Ledger};
use super::load::Load;
use super::origin::{CountingOrigin, Tally};
use super::site::{OPERATED, Site};
use super::{Limit, Report};
use crate::process::free_port;

/// How often, and within which time.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Reloads.
    pub reloads: u64,
    /// The time that they are spread over.
    pub time: Duration,
    /// The load, on a listener.
    pub load: fn(SocketAddr) -> Load,
}

impl Plan {
    /// 200 in a minute.
    pub const WHOLE: Plan = Plan {
        reloads: 200,
        time: Duration::from_secs(60),
        load: Load::full,
    };
    /// A few in seconds.
    pub const PART: Plan = Plan {
        reloads: 25,
        time: Duration::from_secs(5),
        load: Load::short,
    };
}

/// Runs it.
///
/// # Errors
/// Something can't be started.
pub fn run(program: &Path, plan: &Plan) -> io::Result<Report> {
    let origin = CountingOrigin::start()?;
    let guest = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let config = |turn| configuration(turn, &origin, guest);
    let site = Site::start(program, &config(0))?;
    let mut load = (plan.load)(site.address("web"));
    load.paths.push("/new/ping".to_owned());
    load.guest = Some(guest);
    let ledger = Ledger::default();
    let mut refused = 0_u64;
    let began = Instant::now();
    std::thread::scope(|scope| {
        load.start(scope, &ledger);
        for turn in 1..=plan.reloads {
            let due = plan.time.mul_f64(turn as f64 / plan.reloads as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            if let Err(error) = site.write(&config(turn)).and_then(|()| reload(&site, turn)) {
                refused += 1;
                ledger.note(&format!("reload {turn}: {error}"));
            }
        }
        ledger.end();
    });
    let took = began.elapsed();
    let mut report = Report::of(format!("{} reloads under load", plan.reloads));
    report.require("reloads", plan.reloads - refused, at_least(plan.reloads));
    report.tell("seconds", took.as_secs_f64());
    ledger.report(&mut report, load.web_sockets, Closes::None);
    // The kernel resets a handshake that is under way as it closes a socket. It goes with
    // every second reload.
    let resets = ledger.of(Kind::Guest).closed.load(Ordering::Relaxed);
    let few = Limit::AtMost((plan.reloads / 8) as f64);
    report.require("handshakes reset as their listener went", resets, few);
    let Tally {
        uploads_whole,
        uploads_broken,
        ..
    } = origin.total();
    report.tell("uploads that came whole to the origin", uploads_whole);
    report.require_none("uploads that did not", uploads_broken);
    let mut alive = 0;
    site.comes_to(|| {
        alive = generations(&site).unwrap_or(usize::MAX);
        alive == 1
    });
    report.require(
        "configurations in use after the load",
        alive,
        Limit::AtMost(1.0),
    );
    Ok(report)
}

fn at_least(count: u64) -> Limit {
    Limit::AtLeast(count as f64)
}

fn generations(site: &Site) -> io::Result<usize> {
    let shown = site.ask("show generations")?;
    // The first line names the columns.
    Ok(shown.trim_end().lines().count() - 1)
}

/// Reloads it: by the control socket, by the command or by HUP.
fn reload(site: &Site, turn: u64) -> io::Result<()> {
    let said = match turn % 10 {
        5 => two_at_once(site)?,
        3 => {
            let done = site.evenkeel(&["reload"])?;
            String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
        }
        7 => {
            site.signal(Signal::HUP);
            let is_in_force = || {
                let shown = site.json("show generations");
                shown.is_ok_and(|it| it[0]["generation"].as_u64() >= Some(turn))
            };
            return if site.comes_to(is_in_force) {
                Ok(())
            } else {
                Err(io::Error::other("HUP: it is not in force"))
            };
        }
        _ => site.ask("reload")?,
    };
    if said.starts_with("reloaded: ") {
        Ok(())
    } else {
        Err(io::Error::other(said))
    }
}

/// Reloads it by two operators at once. Returns the message to the one that was refused, if
/// any.
fn two_at_once(site: &Site) -> io::Result<String> {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| site.ask("reload"));
        let second = site.ask("reload")?;
        let first = first.join().map_err(|_| io::ErrorKind::Other)??;
        let is_done = first.starts_with("reloaded: ");
        Ok(if is_done { second } else { first })
    })
}

/// One word of these, another each turn.
fn word<'a>(turn: u64, words: &[&'a str]) -> &'a str {
    words[(turn % words.len() as u64) as usize]
}

/// The configuration of a turn. Every changeable part changes, each with a period of its own.
fn configuration(turn: u64, origin: &CountingOrigin, guest: SocketAddr) -> String {
    let at = |last| origin.at(Ipv4Addr::new(127, 0, 0, last));
    let mut text = OPERATED.to_owned();
    let mut add = |lines: std::fmt::Arguments<'_>| {
        let _infallible = text.write_fmt(lines);
    };
    add(format_args!(
        "[log]\nlevel = \"{}\"\n[access_log]\npath = \"$DIR/access-{}.log\"\nformat = \"{}\"\nsample = 0.1\n",
        word(turn, &["info", "warn"]),
        turn % 3,
        word(turn, &["json", "combined", "httplog", "json", "combined"]),
    ));
    add(format_args!(
        "[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\nbacklog = {}\n\
         limits = {{ head = \"{}KiB\", connections = {} }}\ntimeouts = {{ idle = \"{}s\" }}\n\
         request_id = \"{}\"\n",
        4096 + turn % 7,
        16 + turn % 4,
        2_000 + turn,
        60 + turn % 5,
        word(turn, &["off", "keep", "new"]),
    ));
    if turn % 2 == 1 {
        // A deferred connection that has sent nothing yet is reset with its socket.
        add(format_args!(
            "[[listener]]\nname = \"guest\"\nbind = \"{guest}\"\ndefer_accept = false\n"
        ));
    }
    // Routes: those before the last ones come and go.
    if turn % 3 == 1 {
        add(format_args!(
            "[[route]]\nmatch = {{ path = \"/turn-{turn}\" }}\nanswer = {{ body = \"{turn}\" }}\n"
        ));
    }
    if !turn.is_multiple_of(3) {
        add(format_args!(
            "[[route]]\nmatch = {{ path = \"/new/*\" }}\nupstream = \"new\"\n\
             [upstream.new]\nendpoints = [\"{}\", \"{}\"]\n",
            at(20 + (turn % 5) as u8),
            at(30),
        ));
    }
    let lane = if turn % 4 < 2 {
        "lane = \"slow\"\n"
    } else {
        ""
    };
    let lanes = if turn % 4 < 3 {
        "lanes = { slow = 2 }\n"
    } else {
        ""
    };
    let long = "[[route]]\nname = \"long\"\nmatch = { path = [\"/ws\", \"/upload\"] }\nupstream = \"long\"\n";
    let waiting = format!(
        "[[route]]\nname = \"waiting\"\nmatch = {{ path = \"/waiting/*\" }}\nupstream = \"waiting\"\n\
         priority = {}\n{lane}",
        turn % 10
    );
    let routes = match turn % 2 {
        0 => format!("{long}{waiting}"),
        _ => format!("{waiting}{long}"),
    };
    add(format_args!("{routes}[[route]]\nupstream = \"app\"\n"));
    let health = word(
        turn / 2,
        &[
            "",
            "health = { path = \"/ping\", interval = \"1s\" }\n",
            "health = { initial = \"up\" }\n",
        ],
    );
    let endpoints: Vec<_> = (1..=4)
        .filter(|it| turn % u64::from(it + 2) < u64::from(it + 1))
        .map(|it| {
            let weight = 1 + (turn + u64::from(it)) % 3;
            format!("{{ address = \"{}\", weight = {weight} }}", at(it))
        })
        .collect();
    let endpoints = if endpoints.is_empty() {
        format!("\"{}\"", at(5))
    } else {
        endpoints.join(", ")
    };
    add(format_args!(
        "[upstream.app]\nbalance = \"{}\"\nretries = {}\nslow_start = \"{}s\"\n\
         pool = {{ max_idle = {} }}\ntimeouts = {{ first_byte = \"{}s\" }}\n{health}\
         endpoints = [{endpoints}]\n",
        word(
            turn,
            &[
                "adaptive",
                "least-connections",
                "round-robin",
                "random",
                "two-choices",
                "peak-ewma",
                "first"
            ]
        ),
        1 + turn % 3,
        turn % 4,
        100 + turn % 50,
        30 + turn % 30,
    ));
    add(format_args!(
        "[upstream.waiting]\nendpoints = [{{ address = \"{}\", max_in_flight = {} }}]\n\
         queue = {{ max = {}, timeout = \"{}s\", discipline = \"{}\" }}\n{lanes}",
        at(10),
        2 + turn % 2,
        100 + turn % 50,
        50 + turn % 9,
        word(turn, &["fifo", "fifo", "adaptive-lifo"]),
    ));
    add(format_args!(
        "[upstream.long]\nendpoints = [\"{}\"]\n",
        at(11 + (turn % 2) as u8)
    ));
    text
}
