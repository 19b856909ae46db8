//! `evenkeel demo`: test origins of different speed and the load balancer before
//! them, in one process, on free loopback ports.
//!
//! Owns the picture. The origins are the ones of `evenkeel origin`; the balancer is the product,
//! started as `evenkeel run` does it.

mod cache;
mod clients;
mod outage;
mod table;
mod tcp;
mod tls;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::config::{self, Colour, NameLookup};
use evenkeel::lifecycle::StopSignals;
use evenkeel::runtime::{self, Running};
use evenkeel_net::Address;
use evenkeel_origin::{Origin, OriginHandle, OriginOptions, ServiceTime, Speaks};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};

use clients::{CACHE, CLIENTS, ClientTraffic, Clients};
use outage::Outage;
use table::Table;

/// The scene that the demo shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scene {
    /// Requests of others.
    Requests,
    /// The same over TLS.
    Tls,
    /// Requests of its own, and how they are shared out.
    Load,
    /// The same before a cache, and origins that go down and come back.
    Cache,
    /// Connections of TCP of its own, and an endpoint that goes down and comes back.
    Tcp,
}

impl Scene {
    /// The endpoints of its first upstream.
    fn speeds(self) -> &'static [Speed] {
        match self {
            Scene::Requests | Scene::Tls | Scene::Load | Scene::Cache => &SPEEDS,
            Scene::Tcp => &tcp::SPEEDS,
        }
    }

    fn speaks(self) -> Speaks {
        match self {
            Scene::Requests | Scene::Tls | Scene::Load | Scene::Cache => Speaks::Http,
            Scene::Tcp => Speaks::Lines,
        }
    }
}

/// The speed of an origin.
struct Speed {
    name: &'static str,
    mean_ms: u64,
}

impl Speed {
    const fn new(name: &'static str, mean_ms: u64) -> Self {
        Speed { name, mean_ms }
    }
}

const SPEEDS: [Speed; 4] = [
    Speed::new("fast", 2),
    Speed::new("brisk", 5),
    Speed::new("steady", 10),
    Speed::new("slow", 40),
];
/// Requests that an origin serves at once.
const THREADS: usize = 4;

/// The balancer's configuration. `$ENDPOINTS` stands for the origins' lines, `$TLS` for the
/// certificate, and `$LOG` for the access log, which would disturb the table.
const CONFIGURATION: &str = r#"[[listener]]
name = "demo"
bind = "127.0.0.1:0"            # 0: a free port
$TLS
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
$CACHE
[upstream.app]
balance = "shortest-queue"      # or "round-robin", or "random"
endpoints = [
$ENDPOINTS]
"#;

const ACCESS_LOG: &str = "access_log = { format = \"json\" }   # to standard output\n";

/// Commands to try, and their purpose: `$URL` stands for the listener's.
const TRIES: [(&str, &str); 8] = [
    (
        "A response from one of the origins; the Server header says which:",
        "curl -i $URL/ping",
    ),
    (
        "A megabyte:",
        "curl -s -o /dev/null -w '%{size_download} bytes in %{time_total} s\\n' '$URL/custom-payload?size=1000000'",
    ),
    (
        "Send a body, and get it back:",
        "curl --data 'there and back' -w '\\n' $URL/echo",
    ),
    (
        "The request as the origin got it, with the headers that were added:",
        "curl $URL/headers",
    ),
    (
        "A route with a fixed answer, without an origin:",
        "curl -i $URL/hello",
    ),
    ("A redirect:", "curl -i '$URL/old/page?a=1'"),
    ("A path that no route matches:", "curl -i $URL/nowhere"),
    (
        "A malformed request: two lengths, and a server might believe either:",
        "curl -i -H 'Content-Length: 1' -H 'Content-Length: 2' $URL/ping",
    ),
];

/// Reads the exchanges in flight this often, for their mean over a second.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs the demo until TERM or INT, then drains.
///
/// # Errors
/// No port, thread or memory is left for it, or standard output is closed.
pub fn run(scene: Scene) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut stop = {
        let _in_runtime = runtime.enter();
        StopSignals::new()?
    };
    let start = |speed| start_origin(speed, scene.speaks());
    let origins = scene.speeds().iter().map(start).collect::<Result<_, _>>()?;
    let origins: Vec<OriginHandle> = origins;
    let operator = (scene == Scene::Tcp).then(|| start(&tcp::OPERATOR));
    let operator = operator.transpose()?;
    let tls = (scene == Scene::Tls).then(tls::Files::new).transpose()?;
    let text = match &operator {
        Some(operator) => tcp::configuration(&origins, operator),
        None => configuration(&origins, scene, tls.as_ref()),
    };
    let loaded = config::load_text("demo.toml", &text, NameLookup::Skip)
        .map_err(|report| io::Error::other(report.render(Colour::Off)))?;
    let drain_timeout = loaded.config.server.drain_timeout;
    let running = runtime::start(loaded.config)?;
    let addresses = listening_addresses(&running)?;
    introduce(&origins, &text, &addresses, scene, tls.as_ref())?;
    let signal = match scene {
        Scene::Requests | Scene::Tls => Ok(runtime.block_on(stop.next())),
        Scene::Load | Scene::Cache | Scene::Tcp => runtime.block_on(show_load(
            &running,
            &origins,
            addresses[0],
            scene,
            stop.next(),
        )),
    };
    // Nobody reads this if standard output is what failed.
    if let Ok(signal) = &signal {
        let _ = writeln!(io::stdout(), "{signal}: finishing open requests.");
    }
    running.stop(drain_timeout);
    signal.map(drop)
}

fn start_origin(speed: &Speed, speaks: Speaks) -> io::Result<OriginHandle> {
    Origin::local(OriginOptions {
        name: speed.name.to_owned(),
        speaks,
        service: Some(ServiceTime::Exponential {
            mean: Duration::from_millis(speed.mean_ms),
        }),
        threads: THREADS,
        ..OriginOptions::default()
    })
}

fn configuration(origins: &[OriginHandle], scene: Scene, tls: Option<&tls::Files>) -> String {
    let endpoints: String = scene
        .speeds()
        .iter()
        .zip(origins)
        .map(|(speed, origin)| {
            let address = format!("\"{}\",", origin.address);
            format!("  {address:<28}  # {}\n", speed.name)
        })
        .collect();
    let log = match scene {
        Scene::Requests | Scene::Tls => ACCESS_LOG,
        Scene::Load | Scene::Cache | Scene::Tcp => "",
    };
    let cache = match scene {
        Scene::Cache => cache::SETTING,
        _ => "",
    };
    CONFIGURATION
        .replace("$ENDPOINTS", &endpoints)
        .replace("$TLS\n", &tls.map_or_else(String::new, tls::Files::setting))
        .replace("$LOG\n", &format!("{log}\n"))
        .replace("$CACHE\n", &format!("{cache}\n"))
}

fn listening_addresses(running: &Running) -> io::Result<Vec<SocketAddr>> {
    let tcp = |address: &Address| match address {
        Address::Tcp(address) => Ok(*address),
        Address::Unix(_) => Err(io::Error::other(format!("listening on {address:?}"))),
    };
    running.addresses.iter().map(tcp).collect()
}

fn introduce(
    origins: &[OriginHandle],
    text: &str,
    addresses: &[SocketAddr],
    scene: Scene,
    tls: Option<&tls::Files>,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (number, unit) = match scene {
        Scene::Requests | Scene::Tls | Scene::Load | Scene::Cache => ("Four", "request"),
        Scene::Tcp => ("Three", "line"),
    };
    writeln!(
        out,
        "\n{number} test origins, each serving {THREADS} {unit}s at once:\n"
    )?;
    for (speed, origin) in scene.speeds().iter().zip(origins) {
        let Speed { name, mean_ms } = speed;
        let address = origin.address.to_string();
        writeln!(
            out,
            "  {name:<8}{address:<17}{mean_ms:>4} ms per {unit} on average"
        )?;
    }
    writeln!(
        out,
        "\nThe load balancer in front of them has this configuration:\n"
    )?;
    for line in text.lines() {
        writeln!(out, "{}", format!("  {line}").trim_end())?;
    }
    match scene {
        Scene::Requests | Scene::Tls | Scene::Load | Scene::Cache => {
            introduce_http(&mut out, addresses[0], scene, tls)?;
        }
        Scene::Tcp => tcp::introduce(&mut out, addresses)?,
    }
    writeln!(out)?;
    out.flush()
}

fn introduce_http(
    out: &mut impl Write,
    address: SocketAddr,
    scene: Scene,
    tls: Option<&tls::Files>,
) -> io::Result<()> {
    let scheme = tls.map_or("http", |_| "https");
    let url = format!("{scheme}://{address}");
    writeln!(out, "\nIt listens on {url}. Try in another terminal:\n")?;
    match tls {
        Some(tls) => tls.introduce(out, address)?,
        None => {
            for (what, command) in TRIES {
                writeln!(out, "  {what}\n    {}", command.replace("$URL", &url))?;
            }
        }
    }
    if matches!(scene, Scene::Requests | Scene::Tls) {
        return writeln!(
            out,
            "\nEach request appears below as a line of the access log. Ctrl-C stops the demo."
        );
    }
    if scene == Scene::Cache {
        return cache::introduce(out, address);
    }
    writeln!(
        out,
        "\n{CLIENTS} clients now request /ping, with a short pause between two requests. The \
         table\nshows how the load balancer distributes the load. Ctrl-C stops the demo."
    )
}

/// Sends load and redraws the table until a signal comes, and gives its name.
async fn show_load(
    running: &Running,
    origins: &[OriginHandle],
    address: SocketAddr,
    scene: Scene,
    stop: impl Future<Output = &'static str>,
) -> io::Result<&'static str> {
    const SECOND: Duration = Duration::from_secs(1);
    let mut names: Vec<&'static str> = scene.speeds().iter().map(|speed| speed.name).collect();
    let rows = scene
        .speeds()
        .iter()
        .zip(origins)
        .map(|(speed, origin)| format!("{:<8}{}", speed.name, origin.address));
    let mut rows: Vec<String> = rows.collect();
    if scene == Scene::Cache {
        names.push(CACHE);
        rows.push(CACHE.to_owned());
    }
    let (rate, asking) = match scene {
        Scene::Requests | Scene::Tls | Scene::Load => ("requests/s", ClientTraffic::Ping),
        Scene::Cache => ("requests/s", ClientTraffic::Pages),
        Scene::Tcp => ("connections/s", ClientTraffic::Lines),
    };
    let mut table = Table::new(rows, rate)?;
    let clients = Clients::start(address, asking, &names)?;
    let mut outage = match scene {
        Scene::Requests | Scene::Tls | Scene::Load => None,
        Scene::Cache => Some(Outage::new(origins, &cache::OUTAGE)),
        Scene::Tcp => Some(Outage::new(&origins[..1], &tcp::OUTAGE)),
    };
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
            _ = draws.tick() => {
                if let Some(outage) = &mut outage {
                    table.set_note(outage.second());
                }
                table.draw(&mut io::stdout().lock())?;
            }
        }
    }
}
