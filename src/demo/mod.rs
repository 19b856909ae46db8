//! `evenkeel demo`: four test origins of different speed and the load balancer
//! before them, in one process, on free loopback ports.
//!
//! Owns what is shown. The origins are those of `evenkeel origin`; the
//! balancer is the product, started as `evenkeel run` does it.

mod clients;
mod table;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::config::{self, Colour, NameLookup};
use evenkeel::lifecycle::StopSignals;
use evenkeel::runtime::{self, Running};
use evenkeel_net::Address;
use evenkeel_origin::{Origin, OriginHandle, OriginOptions, ServiceTime};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};

use clients::{CLIENTS, Clients};
use table::Table;

/// Whether the demo sends itself requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// It only waits for those of others.
    Off,
    /// It does, and shows how they are shared out.
    On,
}

/// What an origin is like.
struct Speed {
    name: &'static str,
    mean_ms: u64,
}

const SPEEDS: [Speed; 4] = [
    Speed {
        name: "fast",
        mean_ms: 2,
    },
    Speed {
        name: "brisk",
        mean_ms: 5,
    },
    Speed {
        name: "steady",
        mean_ms: 10,
    },
    Speed {
        name: "slow",
        mean_ms: 40,
    },
];
/// Requests that an origin serves at once.
const THREADS: usize = 4;

/// What the balancer runs on; `$ENDPOINTS` stands for the origins' lines, and
/// `$LOG` for the access log, which would get into the table's way.
const CONFIGURATION: &str = r#"[[listener]]
name = "demo"
bind = "127.0.0.1:0"            # 0: a free port
$LOG
[[route]]
name = "hello"
match = { path = "/hello" }
answer = { body = "Hello from the load balancer itself.\n" }

[[route]]
name = "old"
match = { path = "/old/*" }
redirect = "/hello$query"

[[route]]
name = "app"
match = { path = ["/ping", "/echo", "/headers", "/custom-payload", "/slow/*"] }
upstream = "app"

[upstream.app]
balance = "shortest-queue"      # or "round-robin", or "random"
endpoints = [
$ENDPOINTS]
"#;

const ACCESS_LOG: &str = "access_log = { format = \"json\" }   # to standard output\n";

/// What to try, and how: `$URL` stands for the listener's.
const TRIES: [(&str, &str); 8] = [
    (
        "An answer of one of the origins; the Server field says which:",
        "curl -i $URL/ping",
    ),
    (
        "A megabyte:",
        "curl -s -o /dev/null -w '%{size_download} bytes in %{time_total} s\\n' '$URL/custom-payload?size=1000000'",
    ),
    (
        "A body there and back:",
        "curl --data 'there and back' -w '\\n' $URL/echo",
    ),
    (
        "The request as the origin got it, with what was added:",
        "curl $URL/headers",
    ),
    (
        "A route with a fixed answer, which no origin sees:",
        "curl -i $URL/hello",
    ),
    ("A redirect:", "curl -i '$URL/old/page?a=1'"),
    ("A path that no route matches:", "curl -i $URL/nowhere"),
    (
        "A malformed request: two lengths, of which a server might believe either:",
        "curl -i -H 'Content-Length: 1' -H 'Content-Length: 2' $URL/ping",
    ),
];

/// Looks at what is in flight this often, for its mean over a second.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs the demo until TERM or INT, then drains.
///
/// # Errors
/// No port, thread or memory is left for it, or standard output is closed.
pub fn run(load: Load) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut stop = {
        let _in_runtime = runtime.enter();
        StopSignals::new()?
    };
    let origins = SPEEDS.iter().map(start_origin).collect::<Result<_, _>>()?;
    let origins: Vec<OriginHandle> = origins;
    let text = configuration(&origins, load);
    let loaded = config::load_text("demo.toml", &text, NameLookup::Skip)
        .map_err(|report| io::Error::other(report.render(Colour::Off)))?;
    let drain_timeout = loaded.config.server.drain_timeout;
    let running = runtime::start(loaded.config)?;
    let address = listening_address(&running)?;
    introduce(&origins, &text, address, load)?;
    let signal = match load {
        Load::Off => Ok(runtime.block_on(stop.next())),
        Load::On => runtime.block_on(show_load(&running, &origins, address, stop.next())),
    };
    // Nobody is left to read this where standard output is what failed.
    if let Ok(signal) = &signal {
        let _ = writeln!(io::stdout(), "{signal}: finishing what is open.");
    }
    running.stop(drain_timeout);
    signal.map(drop)
}

fn start_origin(speed: &Speed) -> io::Result<OriginHandle> {
    Origin::local(OriginOptions {
        name: speed.name.to_owned(),
        service: Some(ServiceTime::Exponential {
            mean: Duration::from_millis(speed.mean_ms),
        }),
        threads: THREADS,
        ..OriginOptions::default()
    })
}

fn configuration(origins: &[OriginHandle], load: Load) -> String {
    let endpoints: String = SPEEDS
        .iter()
        .zip(origins)
        .map(|(speed, origin)| {
            let address = format!("\"{}\",", origin.address);
            format!("  {address:<28}  # {}\n", speed.name)
        })
        .collect();
    let log = match load {
        Load::Off => ACCESS_LOG,
        Load::On => "",
    };
    CONFIGURATION
        .replace("$ENDPOINTS", &endpoints)
        .replace("$LOG\n", &format!("{log}\n"))
}

fn listening_address(running: &Running) -> io::Result<SocketAddr> {
    match running.addresses.first() {
        Some(Address::Tcp(address)) => Ok(*address),
        other => Err(io::Error::other(format!("listening on {other:?}"))),
    }
}

fn introduce(
    origins: &[OriginHandle],
    text: &str,
    address: SocketAddr,
    load: Load,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "\nFour test origins, each serving {THREADS} requests at once:\n"
    )?;
    for (speed, origin) in SPEEDS.iter().zip(origins) {
        let Speed { name, mean_ms } = speed;
        let address = origin.address.to_string();
        writeln!(
            out,
            "  {name:<8}{address:<17}{mean_ms:>4} ms per request on average"
        )?;
    }
    writeln!(
        out,
        "\nThe load balancer before them, with this configuration:\n"
    )?;
    for line in text.lines() {
        writeln!(out, "{}", format!("  {line}").trim_end())?;
    }
    writeln!(
        out,
        "\nIt listens on http://{address}. Try in another terminal:\n"
    )?;
    let url = format!("http://{address}");
    for (what, command) in TRIES {
        writeln!(out, "  {what}\n    {}", command.replace("$URL", &url))?;
    }
    match load {
        Load::Off => writeln!(
            out,
            "\nEach request appears below as a line of the access log. Ctrl-C stops the demo."
        )?,
        Load::On => writeln!(
            out,
            "\n{CLIENTS} clients now ask for /ping, each pausing a little between two requests: \
             how\nthe load balancer shares that out. Ctrl-C stops the demo."
        )?,
    }
    writeln!(out)?;
    out.flush()
}

/// Sends load and redraws the table until the signal comes, whose name it
/// gives.
async fn show_load(
    running: &Running,
    origins: &[OriginHandle],
    address: SocketAddr,
    stop: impl Future<Output = &'static str>,
) -> io::Result<&'static str> {
    const SECOND: Duration = Duration::from_secs(1);
    let names: Vec<&'static str> = SPEEDS.iter().map(|speed| speed.name).collect();
    let rows = SPEEDS
        .iter()
        .zip(origins)
        .map(|(speed, origin)| format!("{:<8}{}", speed.name, origin.address));
    let mut table = Table::new(rows.collect())?;
    let clients = Clients::start(address, &names)?;
    let mut stop = std::pin::pin!(stop);
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draws = interval_at(Instant::now() + SECOND, SECOND);
    draws.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            signal = &mut stop => return Ok(signal),
            _ = looks.tick() => {
                let app = running.dispatchers().first().map(|app| app.members());
                let endpoints = app.iter().flat_map(|app| app.endpoints());
                table.look(endpoints.map(|endpoint| endpoint.in_flight()));
                clients.outcomes().for_each(|outcome| table.count(outcome));
            }
            _ = draws.tick() => table.draw(&mut io::stdout().lock())?,
        }
    }
}
