//! The cost of observing Evenkeel: a JSON access log, metrics scraped every second and an open
//! status page, compared with none of them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::case::LoadPlan;
use super::process::{Process, free_address};
use super::proxy::{Kind, LOG_FILE, Proxy, Site, access_log, evenkeel};
use super::report::{CaseReport, Limit, Row, Verdict};
use super::rounds::{Effort, Stage, load, start_origins};

/// CPU time per request with everything on, over that with everything off.
const CPU_MAX: f64 = 1.03;
/// Folder of the one with everything on.
const ALL_ON: &str = "all-on";
/// Time between two scrapes.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
/// The log's writer has everything by then.
const SETTLE: Duration = Duration::from_secs(2);

/// The fate of the access log's lines.
#[derive(Debug)]
pub struct Lines {
    /// Requests that Evenkeel counted.
    requests: u64,
    /// Lines in the file.
    written: u64,
    /// Lines that it says are missing.
    missing: u64,
}

/// Options of `evenkeel-lab watch`.
#[derive(Debug, clap::Args)]
pub struct Watch {
    /// The status listener.
    #[arg(long)]
    status: SocketAddr,
}

/// Loads Evenkeel with everything off and with everything on in rounds, then the latter with
/// `count` requests, and counts its log lines.
///
/// Each round restarts both. Two processes of the same program differ by as much as this
/// measures, for their whole life.
///
/// # Errors
/// A process can't be started, or a result can't be read.
pub fn run(
    site: &Site,
    plan: &LoadPlan,
    effort: Effort,
    count: u64,
) -> io::Result<(Vec<Row>, Lines)> {
    let (_origins, addresses) = start_origins(site.load_cores, 1, plan.waiting())?;
    let mut rows = Vec::<Row>::new();
    for round in 0..effort.rounds {
        let off = site.start_configured(Kind::Unobserved, "all-off", |address, _| {
            evenkeel(address, &addresses, "")
        })?;
        let Watched { proxy, watch, .. } = Watched::start(site, &addresses)?;
        let mut proxies = vec![off, proxy];
        proxies.rotate_left(round % 2);
        let effort = Effort {
            rounds: 1,
            ..effort
        };
        for measured in Stage::of(proxies).load(plan, effort)? {
            match rows.iter_mut().find(|row| row.proxy == measured.proxy) {
                Some(row) => row.rounds.extend(measured.rounds),
                None => rows.push(measured),
            }
        }
        drop(watch);
        std::fs::remove_file(log_of(site))?;
    }
    let watched = Watched::start(site, &addresses)?;
    let arguments = [
        format!("--connections={}", plan.connections),
        format!("--count={count}"),
        format!("--sizes={}", plan.size),
        "--seconds=3600".into(),
    ];
    load(watched.proxy.address, &arguments)?;
    drop(watched.watch);
    std::thread::sleep(SETTLE);
    let figures = status_json(watched.status)?;
    let number = |path: &str| figures.pointer(path).and_then(|it| it.as_u64());
    let number = |path: &str| number(path).ok_or_else(|| io::Error::other(path.to_owned()));
    let log = log_of(site);
    let lines = Lines {
        requests: number("/listeners/0/requests")?,
        written: line_count(File::open(&log)?)?,
        missing: number("/log_lines_dropped")? + number("/log_lines_lost")?,
    };
    // The log grows with the length of the run.
    std::fs::remove_file(log)?;
    Ok((rows, lines))
}

/// Evenkeel with everything on, and who looks at it.
struct Watched {
    proxy: Proxy,
    status: SocketAddr,
    watch: Process,
}

impl Watched {
    fn start(site: &Site, origins: &[SocketAddr]) -> io::Result<Self> {
        let status = free_address()?;
        let proxy = site.start_configured(Kind::Observed, ALL_ON, |address, folder| {
            let log = access_log(folder, "json");
            let observation = format!("{log}\n[status]\nbind = \"{status}\"\n");
            evenkeel(address, origins, &observation)
        })?;
        let watch = Process::start_lab(
            site.load_cores,
            &["watch".into(), format!("--status={status}")],
        )?;
        Ok(Watched {
            proxy,
            status,
            watch,
        })
    }
}

/// The access log of [`Watched`].
fn log_of(site: &Site) -> PathBuf {
    site.folder.join(ALL_ON).join(LOG_FILE)
}

/// The requirements on both.
pub fn compare(report: &mut CaseReport, lines: &Lines) {
    if let Some(value) = report.cpu_ratio(Kind::Observed, Kind::Unobserved) {
        report.verdicts.push(Verdict {
            what: "CPU all on / all off".into(),
            value,
            limit: Some(Limit::AtMost(CPU_MAX)),
        });
    }
    let Lines {
        requests,
        written,
        missing,
    } = *lines;
    let figures = [
        ("requests", requests, None),
        ("lines in the log", written, None),
        ("lines said to be missing", missing, None),
        (
            "lines unaccounted for",
            requests.abs_diff(written + missing),
            Some(Limit::AtMost(0.0)),
        ),
    ];
    for (what, value, limit) in figures {
        report.verdicts.push(Verdict {
            what: what.into(),
            value: value as f64,
            limit,
        });
    }
}

/// Scrapes the metrics every second and keeps the page's stream of events open,
/// until it is ended.
///
/// # Errors
/// The status listener closed.
pub fn watch(options: &Watch) -> io::Result<()> {
    let status = options.status;
    let mut events = ask(status, "/events")?;
    let viewer = std::thread::spawn(move || {
        let mut bytes = [0; 64 * 1024];
        while events.read(&mut bytes).is_ok_and(|len| len > 0) {}
    });
    while !viewer.is_finished() {
        let begun = Instant::now();
        let mut text = Vec::new();
        ask(status, "/metrics")?.read_to_end(&mut text)?;
        std::thread::sleep(SCRAPE_EVERY.saturating_sub(begun.elapsed()));
    }
    Err(io::Error::other("the stream of events ended"))
}

fn ask(status: SocketAddr, path: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(status)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {status}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

fn status_json(status: SocketAddr) -> io::Result<serde_json::Value> {
    let mut text = String::new();
    ask(status, "/status.json")?.read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body)?)
}

fn line_count(file: File) -> io::Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut count = 0;
    loop {
        let bytes = reader.fill_buf()?;
        let len = bytes.len();
        if len == 0 {
            return Ok(count);
        }
        count += memchr::memchr_iter(b'\n', bytes).count() as u64;
        reader.consume(len);
    }
}
