//! Another process in the program's place, again and again.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::counters::{self, Seen};
use super::ledger::{Closes, Ledger};
use super::load::Load;
use super::origin::CountingOrigin;
use super::site::{OPERATED, Site};
use super::{Limit, Report};

/// How often, and within which time.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Upgrades.
    pub upgrades: u64,
    /// Shortest time from one to the next.
    pub interval: Duration,
    /// The load, on a listener.
    pub load: fn(SocketAddr) -> Load,
}

impl Plan {
    /// 50 of them.
    pub const WHOLE: Plan = Plan {
        upgrades: 50,
        interval: Duration::from_millis(1_300),
        load: Load::full,
    };
    /// A few.
    pub const PART: Plan = Plan {
        upgrades: 5,
        interval: Duration::from_millis(900),
        load: Load::short,
    };
}

/// Runs it.
///
/// # Errors
/// Something can't be started.
pub fn run(program: &Path, plan: &Plan) -> io::Result<Report> {
    let origin = CountingOrigin::start()?;
    let site = Site::start(program, &configuration(&origin))?;
    let load = (plan.load)(site.address("web"));
    let status = site.status_address();
    let ledger = Ledger::default();
    let (mut done, mut slowest) = (0_u64, Duration::ZERO);
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        load.start(scope, &ledger);
        let watching = scope.spawn(|| counters::watch(&ledger, status));
        for number in 1..=plan.upgrades {
            let began = Instant::now();
            match upgrade(&site) {
                Ok(()) => done += 1,
                Err(error) => ledger.note(&format!("upgrade {number}: {error}")),
            }
            slowest = slowest.max(began.elapsed());
            std::thread::sleep(plan.interval.saturating_sub(began.elapsed()));
        }
        ledger.end();
        seen = watching.join().unwrap_or_default();
    });
    let mut report = Report::of(format!("{} upgrades under load", plan.upgrades));
    let all = Limit::AtLeast(plan.upgrades as f64);
    report.require("upgrades", done, all);
    report.tell("seconds of the slowest", slowest.as_secs_f64());
    ledger.report(&mut report, load.web_sockets, Closes::Announced);
    report.require_none(
        "uploads that came broken to the origin",
        origin.total().uploads_broken,
    );
    report.tell("scrapes", seen.scrapes);
    report.require_none("scrapes without an answer", seen.failed);
    report.require_none("samples of counters that went backwards", seen.backwards);
    let mut left = usize::MAX;
    site.comes_to(|| {
        left = site.running().len();
        left == 1
    });
    report.require("processes left after the load", left, Limit::AtMost(1.0));
    let requests = "evenkeel_listener_requests_total{listener=\"web\"}";
    let answered = ledger.exchanges(load.web_sockets);
    let counted = counters::scrape(status).unwrap_or_default();
    let counted = counted.get(requests).copied().unwrap_or_default();
    report.tell("requests that clients had answered", answered);
    report.tell("requests that were counted", counted);
    site.signal(Signal::TERM);
    site.comes_to(|| site.running().is_empty());
    Ok(report)
}

/// Has another process take over, and waits until an operator finds it.
fn upgrade(site: &Site) -> io::Result<()> {
    let before = site.processes().len();
    let done = site.evenkeel(&["upgrade"])?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(said.into_owned()));
    }
    let is_there = || {
        let at_work = site.at_work();
        let info = site.ask("show info");
        site.processes().len() > before
            && info.is_ok_and(|it| it.contains(&format!("Pid: {at_work}\n")))
    };
    if site.comes_to(is_there) {
        Ok(())
    } else {
        Err(io::Error::other("its control socket does not answer"))
    }
}

fn configuration(origin: &CountingOrigin) -> String {
    let at = |last| origin.at(Ipv4Addr::new(127, 0, 0, last));
    format!(
        "{OPERATED}[access_log]\npath = \"$DIR/access.log\"\nsample = 0.1\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
         [[route]]\nmatch = {{ path = [\"/ws\", \"/upload\"] }}\nupstream = \"long\"\n\
         [[route]]\nmatch = {{ path = \"/waiting/*\" }}\nupstream = \"waiting\"\n\
         [[route]]\nupstream = \"app\"\n\
         [upstream.app]\nhealth = {{ path = \"/ping\" }}\nendpoints = [\"{}\", \"{}\"]\n\
         [upstream.waiting]\nendpoints = [{{ address = \"{}\", max_in_flight = 2 }}]\n\
         queue = {{ timeout = \"50s\" }}\n\
         [upstream.long]\nendpoints = [\"{}\"]\n",
        at(1),
        at(2),
        at(10),
        at(11),
    )
}
