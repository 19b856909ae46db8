//! A configuration of thousands of hosts and endpoints, loaded again and again: what
//! that costs workers, the control thread, and memory.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::counters;
use super::ledger::{Closes, Kind, Ledger};
use super::site::{OPERATED, Site};
use super::{Limit, Report};
use crate::many_hosts::{host, tables};
use crate::raw::RawClient;
use crate::{Origin, OriginOptions};

/// Longest time for which a reload may keep a worker from its connections.
const BLOCKED_MAX_MS: f64 = 5.0;
/// Most memory after all reloads, over that after one.
const MEMORY_MAX: f64 = 1.1;
/// Clients that look how long an answer takes.
const PINGING: usize = 4;
/// Number of hosts that the clients ask for, spread over the configuration. With more, the
/// workers would begin to use further endpoints, which takes memory of its own.
const PINGED: usize = 40;
/// Time between two reloads under load, before and after each.
const PAUSE: Duration = Duration::from_millis(120);
/// Time in which workers have done all for a reload that was confirmed.
const AFTER: Duration = Duration::from_millis(20);
/// The upstream of the list that changes, and its endpoints.
const BIG_LIST: &str = "big";

/// How much there is of it.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Hosts, and endpoints.
    pub hosts: usize,
    /// Reloads.
    pub reloads: u64,
    /// Changes of one endpoint of the list.
    pub changes: u64,
    /// Whether that is all of it.
    pub extent: Extent,
}

/// Whether the figures can be held to their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// They can.
    Whole,
    /// Times are only reported, since other programs use the cores too. Memory beside the
    /// configuration may take a larger share.
    Part,
}

impl Plan {
    /// 10,000 of them, 100 reloads.
    pub const WHOLE: Plan = Plan {
        hosts: 10_000,
        reloads: 100,
        changes: 100,
        extent: Extent::Whole,
    };
    /// A part of that.
    pub const PART: Plan = Plan {
        hosts: 2_000,
        reloads: 24,
        changes: 6,
        extent: Extent::Part,
    };
}

/// Runs it.
///
/// # Errors
/// Something can't be started, or a reload is refused.
pub fn run(program: &Path, plan: &Plan) -> io::Result<Report> {
    let mut report = Report::of(format!(
        "{} hosts and {} endpoints, {} reloads",
        plan.hosts, plan.hosts, plan.reloads
    ));
    reloads(program, plan, &mut report)?;
    changes(program, plan, &mut report)?;
    Ok(report)
}

impl Plan {
    /// Adds a time of a worker to the report.
    fn time(&self, report: &mut Report, what: &str, time: Duration) {
        let ms = millis(time);
        match self.extent {
            Extent::Whole => report.require(what, ms, Limit::AtMost(BLOCKED_MAX_MS)),
            Extent::Part => report.tell(what, ms),
        }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn reloads(program: &Path, plan: &Plan, report: &mut Report) -> io::Result<()> {
    let everywhere = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let port = everywhere.local_addr()?.port();
    let _origin = Origin::start(OriginOptions::default(), everywhere)?;
    let mut many = Many {
        site: Site::start(program, &configuration(0, &tables(plan.hosts, port), port))?,
        tables: tables(plan.hosts, port),
        port,
        turn: 0,
    };
    many.warm(plan.hosts)?;
    many.reload()?;
    many.settle();
    let first = memory(&many.site)?;
    let quiet = plan.reloads / 2;
    let mut costs = Costs::default();
    for _ in 1..quiet {
        let before = Cpu::of(&many.site);
        many.reload()?;
        std::thread::sleep(AFTER);
        costs.add(&before, &Cpu::of(&many.site));
    }
    many.settle();
    let half = memory(&many.site)?;
    let what = "CPU of a worker for a reload, ms: the most";
    plan.time(report, what, costs.worker);
    let what = "CPU of the control thread for a reload, ms: the most";
    report.tell(what, millis(costs.control));
    let mean = millis(costs.all) / (quiet - 1) as f64;
    report.tell("CPU of the process for a reload, ms: mean", mean);
    many.reload_under_load(plan, plan.reloads - quiet, report)?;
    many.settle();
    let last = memory(&many.site)?;
    for (what, memory) in [
        ("memory after one reload, MB", first),
        ("memory after half of them, MB", half),
        ("memory after all reloads, MB", last),
    ] {
        report.tell(what, memory as f64 / 1e6);
    }
    let ratio = last as f64 / first as f64;
    let what = "memory after all reloads over that after one";
    match plan.extent {
        Extent::Whole => report.require(what, ratio, Limit::AtMost(MEMORY_MAX)),
        // A leak of a small part shows.
        Extent::Part => report.require(what, ratio, Limit::AtMost(1.5)),
    }
    Ok(())
}

/// The program with its large configuration.
struct Many {
    site: Site,
    tables: String,
    port: u16,
    turn: u64,
}

impl Many {
    /// Makes every worker use the endpoints that clients ask for later.
    fn warm(&self, hosts: usize) -> io::Result<()> {
        for _ in 0..8 {
            let mut client = RawClient::connect(self.site.address("web"))?;
            for number in pinged(hosts) {
                for _ in 0..20 {
                    ask(&mut client, number)?;
                }
            }
        }
        Ok(())
    }

    /// Has another configuration loaded; from when to when that took.
    fn reload(&mut self) -> io::Result<(Instant, Instant)> {
        self.turn += 1;
        let config = configuration(self.turn, &self.tables, self.port);
        self.site.write(&config)?;
        let began = Instant::now();
        let said = self.site.ask("reload")?;
        if said.starts_with("reloaded: ") {
            Ok((began, Instant::now()))
        } else {
            Err(io::Error::other(said))
        }
    }

    /// Waits until the configurations of before are gone.
    fn settle(&self) {
        let is_alone = || {
            let shown = self.site.json("show generations");
            shown.is_ok_and(|it| it.as_array().is_some_and(|it| it.len() == 1))
        };
        self.site.comes_to(is_alone);
        // Their memory is given back on a thread aside.
        std::thread::sleep(10 * AFTER);
    }

    fn reload_under_load(
        &mut self,
        plan: &Plan,
        count: u64,
        report: &mut Report,
    ) -> io::Result<()> {
        let lag_before = late_ticks(&self.site)?;
        let ledger = Ledger::default();
        let answers = Mutex::new(Vec::new());
        let (mut during, mut between) = (Vec::new(), Vec::new());
        let web = self.site.address("web");
        std::thread::scope(|scope| {
            for at in 0..PINGING {
                let (ledger, answers) = (&ledger, &answers);
                scope.spawn(move || ping(ledger, web, plan.hosts, at, answers));
            }
            let mut reload = || {
                for _ in 0..count {
                    std::thread::sleep(PAUSE);
                    let reloaded = self.reload()?;
                    during.push(reloaded);
                    std::thread::sleep(PAUSE);
                    let began = Instant::now();
                    std::thread::sleep(reloaded.1 - reloaded.0);
                    between.push((began, Instant::now()));
                }
                Ok(())
            };
            let reloaded: io::Result<()> = reload();
            ledger.end();
            reloaded
        })?;
        let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.tell("requests meanwhile", answers.len());
        for (what, windows) in [("during a reload", during), ("between", between)] {
            let took: Duration = windows.iter().map(|(begin, end)| *end - *begin).sum();
            let slowest = slowest(&answers, &windows);
            let over = slowest.iter().filter(|it| millis(**it) > BLOCKED_MAX_MS);
            let over = over.count();
            let at = |part: f64| {
                let last = slowest.len().saturating_sub(1);
                let index = (last as f64 * part).round() as usize;
                slowest.get(index).copied().unwrap_or_default()
            };
            let mean = millis(took) / windows.len() as f64;
            report.tell(format!("{what}: ms of each, mean"), mean);
            report.tell(format!("{what}: those with a request over 5 ms"), over);
            for (part, of) in [(0.5, "half"), (0.9, "nine in ten"), (1.0, "all")] {
                let what = format!("{what}: slowest request, ms, in {of}");
                report.tell(what, millis(at(part)));
            }
        }
        let late = late_ticks(&self.site)? - lag_before;
        let what = "ticks of workers more than 8 ms late meanwhile";
        match plan.extent {
            Extent::Whole => report.require_none(what, late),
            Extent::Part => report.tell(what, late),
        }
        ledger.report(report, 0, Closes::None);
        Ok(())
    }
}

/// The hosts that are asked for.
fn pinged(hosts: usize) -> impl Iterator<Item = usize> {
    (0..hosts).step_by(hosts.div_ceil(PINGED))
}

/// Changes one of many endpoints of a list, by hand.
fn changes(program: &Path, plan: &Plan, report: &mut Report) -> io::Result<()> {
    let dir = crate::temp::TempDir::new()?;
    let file = dir.join("list.json");
    let addresses: Vec<_> = (0..plan.hosts)
        .map(|it| format!("\"{}:9\"", place(it)))
        .collect();
    fs::write(&file, format!("[{}]", addresses.join(",")))?;
    let site = Site::start(
        program,
        &format!(
            "{OPERATED}[access_log]\npath = \"$DIR/access.log\"\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nupstream = \"{BIG_LIST}\"\n\
             [upstream.{BIG_LIST}]\nendpoints_file = \"{}\"\n",
            file.display()
        ),
    )?;
    let mut costs = Costs::default();
    let mut took = Duration::ZERO;
    for turn in 0..plan.changes {
        let verb = if turn % 2 == 0 { "add" } else { "remove" };
        let before = Cpu::of(&site);
        let began = Instant::now();
        let said = site.ask(&format!(
            "endpoint {verb} {BIG_LIST}/{}:9",
            place(plan.hosts)
        ))?;
        took += began.elapsed();
        costs.add(&before, &Cpu::of(&site));
        if said.starts_with("error") {
            return Err(io::Error::other(said));
        }
    }
    report.tell(
        "a change of the list of all endpoints, ms: mean",
        millis(took) / plan.changes as f64,
    );
    report.tell(
        "CPU of the control thread for it, ms: the most",
        millis(costs.control),
    );
    plan.time(report, "CPU of a worker for it, ms: the most", costs.worker);
    Ok(())
}

/// An address of this machine for each number.
fn place(number: usize) -> Ipv4Addr {
    let [.., a, b, c] = (number as u32 + 2).to_be_bytes();
    Ipv4Addr::new(127, a, b, c)
}

/// Each turn has another route, and another list in one of the upstreams.
fn configuration(turn: u64, tables: &str, port: u16) -> String {
    format!(
        "{OPERATED}[access_log]\npath = \"$DIR/access.log\"\nsample = 0.001\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
         [[route]]\nmatch = {{ path = \"/turn-{turn}\" }}\nupstream = \"turn\"\n\
         [upstream.turn]\nendpoints = [\"127.0.0.1:{port}\", \"127.200.0.{}:{port}\"]\n{tables}",
        1 + turn % 200
    )
}

/// Asks for a host, and says how long that took.
fn ask(client: &mut RawClient, number: usize) -> io::Result<Duration> {
    let request = format!("GET /ping HTTP/1.1\r\nHost: {}\r\n\r\n", host(number));
    let asked = Instant::now();
    let response = client.ask(request)?;
    match response.status {
        200 => Ok(asked.elapsed()),
        status => Err(io::Error::other(format!("status {status}"))),
    }
}

/// When an answer came, and how long that took.
type TimedAnswer = (Instant, Duration);

/// Asks for one host after the other until the load is over.
fn ping(
    ledger: &Ledger,
    web: SocketAddr,
    hosts: usize,
    at: usize,
    answers: &Mutex<Vec<TimedAnswer>>,
) {
    let mut random = fastrand::Rng::with_seed(at as u64);
    let pinged: Vec<_> = pinged(hosts).collect();
    let mut own = Vec::new();
    let mut client = match RawClient::connect(web) {
        Ok(client) => client,
        Err(error) => return ledger.failed(Kind::KeepAlive, &error.to_string()),
    };
    while !ledger.is_over() {
        match ask(&mut client, pinged[random.usize(..pinged.len())]) {
            Ok(took) => {
                ledger.answered(Kind::KeepAlive);
                own.push((Instant::now(), took));
            }
            Err(error) => {
                ledger.closed(Kind::KeepAlive);
                return ledger.failed(Kind::KeepAlive, &error.to_string());
            }
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    answers.append(&mut own);
}

/// For each window the longest answer that overlaps it, in order of the times.
fn slowest(answers: &[TimedAnswer], windows: &[(Instant, Instant)]) -> Vec<Duration> {
    let of_window = windows.iter().map(|(begin, end)| {
        let touching = answers
            .iter()
            .filter(|(came, took)| came >= begin && *came - *took <= *end);
        touching.map(|it| it.1).max().unwrap_or_default()
    });
    let mut times: Vec<_> = of_window.collect();
    times.sort_unstable();
    times
}

/// Resident memory of the process, in bytes.
fn memory(site: &Site) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/status", site.at_work()))?;
    let mut lines = text.lines();
    let line = lines.find_map(|it| it.strip_prefix("VmRSS:"));
    let kib = line.and_then(|it| it.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.unwrap_or_default() * 1024)
}

/// CPU time of each thread of a process, with its name.
struct Cpu(Vec<(String, String, Duration)>);

impl Cpu {
    fn of(site: &Site) -> Self {
        let folder = format!("/proc/{}/task", site.at_work());
        let threads = fs::read_dir(folder).into_iter().flatten().flatten();
        let times = threads.filter_map(|thread| {
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).ok();
            let spent_ns = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
            Some((
                thread.file_name().to_str()?.to_owned(),
                read("comm")?.trim().to_owned(),
                Duration::from_nanos(spent_ns),
            ))
        });
        Cpu(times.collect())
    }
}

/// The most that a thread needed for one change, and what all needed for all changes.
#[derive(Default)]
struct Costs {
    worker: Duration,
    control: Duration,
    all: Duration,
}

impl Costs {
    fn add(&mut self, before: &Cpu, after: &Cpu) {
        for (id, name, spent) in &after.0 {
            let earlier = before.0.iter().find(|it| it.0 == *id);
            let spent = *spent - earlier.map_or(Duration::ZERO, |it| it.2);
            self.all += spent;
            if name.starts_with("worker-") {
                self.worker = self.worker.max(spent);
            }
            if name == "control" {
                self.control = self.control.max(spent);
            }
        }
    }
}

/// Ticks of all workers that came more than 8 ms late, so far.
fn late_ticks(site: &Site) -> io::Result<f64> {
    let counters = counters::scrape(site.status_address())?;
    let sample = |name: &str| counters.get(name).copied().unwrap_or_default();
    let all = sample("evenkeel_worker_loop_lag_seconds_count");
    Ok(all - sample("evenkeel_worker_loop_lag_seconds_bucket{le=\"0.008192\"}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_answer_of_a_window() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        let answers = [
            (at(10), ms(1)),
            (at(30), ms(9)),
            (at(70), ms(2)),
            (at(75), ms(7)),
        ];
        let windows = [(at(20), at(25)), (at(40), at(50)), (at(60), at(72))];
        assert_eq!(slowest(&answers, &windows), [ms(0), ms(7), ms(9)]);
    }
}
