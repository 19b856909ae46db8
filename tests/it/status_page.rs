//! The status page in a real browser: `status_page.py` drives a headless
//! Chromium, over traffic that is made here.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::run;
use evenkeel_testkit::{Origin, OriginHandle, OriginOptions, Proxy, RawClient, RawOrigin, TempDir};

use crate::setup::{Site, nobody, origin};
use evenkeel_testkit::process::python;

const TOKEN: &str = "a-token-for-the-browser";

/// Requests one after the other, until dropped.
struct Traffic {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    fn start(proxy: &Proxy, pause: Duration) -> Self {
        Self::of(proxy, "/ping", pause)
    }

    fn of(proxy: &Proxy, path: &'static str, pause: Duration) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let address = proxy.socket_addr("web");
        let stop = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut client = None;
            while !stop.load(Ordering::Relaxed) {
                let mut open = match client.take() {
                    Some(open) => open,
                    None => RawClient::connect(address).unwrap(),
                };
                if open.get(path).is_ok() {
                    client = Some(open);
                }
                std::thread::park_timeout(pause);
            }
        });
        Traffic {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Lets the browser do what `case` says, on the status page of this program.
#[track_caller]
fn browse(case: &str, proxy: &Proxy, args: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/status_page.py");
    let mut command = python();
    let url = format!("http://{}/", proxy.status_address());
    command.arg(script).args([case, &url]).args(args);
    let output = run(command, Duration::from_secs(100)).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {}\n{said}", output.status);
    // The measurements, for a run with --nocapture.
    eprint!("{said}");
}

fn site(origins: &[&OriginHandle]) -> Proxy {
    let endpoints: Vec<_> = origins.iter().map(|it| it.address.to_string()).collect();
    // Read at the start, and not needed after.
    let dir = TempDir::new().unwrap();
    let path = dir.join("token");
    std::fs::write(&path, TOKEN).unwrap();
    let server = format!("[status]\nbind = \"127.0.0.1:0\"\ntoken_file = {path:?}");
    let site = Site {
        server: &server,
        upstream: "balance = \"round-robin\"\nqueue = { timeout = \"1s\" }\n\
                   health = { path = \"/ping\", interval = \"300ms\" }",
        ..Site::default()
    };
    site.start(&endpoints)
}

/// A browser takes its time to start.
fn test(body: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(120), body);
}

#[test]
fn figures_change_while_one_looks() {
    test(|| {
        let origins = [origin(), origin()];
        let proxy = site(&[&origins[0], &origins[1]]);
        let _traffic = Traffic::start(&proxy, Duration::from_millis(5));
        browse("figures", &proxy, &[]);
    });
}

#[test]
fn an_endpoint_is_drained_by_a_click() {
    test(|| {
        let origins = [origin(), origin()];
        let proxy = site(&[&origins[0], &origins[1]]);
        let _traffic = Traffic::start(&proxy, Duration::from_millis(5));
        let names = origins.each_ref().map(|it| it.address.to_string());
        browse("drain", &proxy, &[&names[0], &names[1], TOKEN]);
    });
}

#[test]
fn what_is_broken_stands_at_the_top() {
    test(|| {
        let origins = [origin(), origin()];
        let proxy = site(&[&origins[0], &origins[1]]);
        origins[0].refuse();
        browse("broken", &proxy, &[&origins[0].address.to_string()]);
    });
}

/// One cause is one line, however many endpoints it takes out.
#[test]
fn a_cause_is_said_once() {
    test(|| {
        let origins = [origin(), origin(), origin()];
        let proxy = site(&[&origins[0], &origins[1], &origins[2]]);
        let names = origins.each_ref().map(|it| it.address.to_string());
        origins[0].refuse();
        origins[1].refuse();
        browse("some_out", &proxy, &[&names[0], &names[1]]);
        origins[2].refuse();
        let _traffic = Traffic::start(&proxy, Duration::from_millis(50));
        browse("all_out", &proxy, &[&names[0], &names[1], &names[2]]);
    });
}

/// A drained endpoint is a line as well.
#[test]
fn the_number_of_problems_is_that_of_their_lines() {
    test(|| {
        let origins = [origin(), origin(), origin()];
        let proxy = site(&[&origins[0], &origins[1], &origins[2]]);
        origins[0].refuse();
        let names = origins.each_ref().map(|it| it.address.to_string());
        browse("counted", &proxy, &[&names[0], &names[1], TOKEN]);
    });
}

#[test]
fn errors_are_drawn_to_scale_and_counted() {
    test(|| {
        let origin = origin();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"\n\
                     [upstream.empty]\nendpoints = []",
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let _traffic = [
            Traffic::start(&proxy, Duration::from_millis(10)),
            Traffic::of(&proxy, "/status/503", Duration::from_millis(700)),
        ];
        browse("errors", &proxy, &[]);
    });
}

/// The whole row of an endpoint opens its view.
#[test]
fn a_click_anywhere_in_a_row_opens_the_endpoint() {
    test(|| {
        let origins = [origin(), origin()];
        let proxy = site(&[&origins[0], &origins[1]]);
        let name = origins[1].address.to_string();
        browse("row", &proxy, &[&name]);
    });
}

#[test]
fn a_first_probe_takes_the_place_of_not_yet() {
    test(|| {
        let gate = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let opens = gate.local_addr().unwrap().to_string();
        // Probes are answered after a connection to the gate.
        let opened = OnceLock::new();
        let origin = RawOrigin::start(move |_, mut stream| {
            opened.get_or_init(|| gate.accept().unwrap());
            let _ = stream.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        })
        .unwrap();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            upstream: "health = { path = \"/\", interval = \"100s\", timeout = \"100s\" }",
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        browse("first_probe", &proxy, &[&opens]);
    });
}

/// The time in the queue is the upstream's: nothing has an endpoint there.
#[test]
fn time_in_the_queue_stands_at_the_upstream() {
    test(|| {
        let origin = origin();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let endpoint = format!("{{ address = \"{}\", max_in_flight = 1 }}", origin.address);
        let proxy = site.start(&[endpoint]);
        let slow = || Traffic::of(&proxy, "/slow/20", Duration::from_millis(1));
        let _traffic = [slow(), slow(), slow()];
        browse("queue", &proxy, &[]);
    });
}

/// A page that is stored, by a long name.
const STORED: &str = "/custom-payload?size=100&a-parameter-whose-name-is-longer-than-others=1";

/// Everything that the page can show, with names that are long.
#[test]
fn everything_is_readable_at_every_width() {
    test(|| {
        let origins = [origin(), origin()];
        let dir = TempDir::new().unwrap();
        let root = dir.join("a-folder-whose-name-is-longer-than-a-telephone-is-wide");
        std::fs::create_dir(&root).unwrap();
        let server = format!(
            "[status]\nbind = \"127.0.0.1:0\"\n\
             [[listener]]\nname = \"a-listener-whose-name-takes-more-than-one-line\"\n\
             bind = \"[::1]:0\"\nlimits = {{ connections = 10000 }}\n\
             [[route]]\nname = \"files-that-a-route-with-a-long-name-serves\"\n\
             match = {{ path = \"/files/*\" }}\nfiles = {{ root = {root:?} }}\n\
             [[route]]\nname = \"more-of-it\"\nmatch = {{ path = \"/more\" }}\n\
             upstream = \"an-upstream-whose-name-was-made-by-a-program\"\n\
             [upstream.an-upstream-whose-name-was-made-by-a-program]\n\
             health = {{ path = \"/status/503\", interval = \"300ms\" }}\n\
             endpoints = [\"{}\", \"unix:/run/an-application/with-a-long-name/listener.sock\"]\n\
             [cache.a-cache-that-many-routes-and-machines-share]\n\
             disk = {{ path = {:?}, size = \"64MiB\" }}\nshared = \"redis://{}\"\n\
             [[route]]\nname = \"stored-pages-that-have-a-name-which-is-long\"\n\
             match = {{ path = \"/custom-payload\" }}\nupstream = \"app\"\n\
             cache = \"a-cache-that-many-routes-and-machines-share\"",
            origins[0].address,
            dir.join("responses"),
            nobody()
        );
        let site = Site {
            server: &server,
            listener: "limits = { connections = 10000 }",
            upstream: "balance = \"round-robin\"\n\
                       health = { path = \"/ping\", interval = \"300ms\" }",
            ..Site::default()
        };
        let down = nobody();
        let names = [
            origins[0].address.to_string(),
            origins[1].address.to_string(),
            down.clone(),
        ];
        let proxy = site.start(&names);
        let _traffic = [
            Traffic::start(&proxy, Duration::from_millis(20)),
            Traffic::of(&proxy, "/status/503", Duration::from_millis(20)),
            Traffic::of(&proxy, STORED, Duration::from_millis(20)),
        ];
        browse("widths", &proxy, &[&down]);
    });
}

/// A program whose cache is asked for a page, and passed by for another.
fn with_cache(origin: &OriginHandle, status: &str) -> Proxy {
    let server = format!(
        "[status]\nbind = \"127.0.0.1:0\"\n{status}\n\
         [cache.main]\nshared = \"redis://{}\"\n\
         [[route]]\nname = \"pages\"\nmatch = {{ path = \"/medium-payload\" }}\nupstream = \"app\"\n\
         cache = {{ store = \"main\", ttl = {{ 200 = \"1m\" }}, \
         bypass = {{ query = {{ token = true }} }} }}",
        nobody()
    );
    let site = Site {
        server: &server,
        ..Site::default()
    };
    site.start(&[origin.address.to_string()])
}

#[test]
fn caches_are_shown_and_purged() {
    test(|| {
        let origin = origin();
        let dir = TempDir::new().unwrap();
        let path = dir.join("token");
        std::fs::write(&path, TOKEN).unwrap();
        let proxy = with_cache(&origin, &format!("token_file = {path:?}"));
        let _traffic = [
            Traffic::of(&proxy, "/medium-payload", Duration::from_millis(10)),
            Traffic::of(
                &proxy,
                "/medium-payload?token=s3cret",
                Duration::from_millis(100),
            ),
        ];
        browse("caches", &proxy, &[TOKEN]);
    });
}

#[test]
fn limits_are_shown() {
    test(|| {
        let origin = origin();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"\n\
                [[route]]\nname = \"api\"\nmatch = { path = \"/ping\" }\nupstream = \"app\"\n\
                limit = [{ rate = \"5/s\", entries = 1000 }, \
                { key = \"{route}\", concurrent = 100, entries = 8 }]",
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let _traffic = Traffic::start(&proxy, Duration::from_millis(20));
        browse("limits", &proxy, &[]);
    });
}

#[test]
fn without_a_token_nothing_is_purged() {
    test(|| {
        let origin = origin();
        let proxy = with_cache(&origin, "");
        browse("caches_without_token", &proxy, &[]);
    });
}

#[test]
fn it_fits_on_a_phone_and_into_the_night() {
    test(|| {
        let origin = origin();
        let proxy = site(&[&origin]);
        browse("phone", &proxy, &[]);
    });
}

/// Names and answers that a browser would run, if they were taken for HTML.
#[test]
fn hostile_texts_stay_texts() {
    test(|| {
        let origin = origin();
        let hostile = "<img src=x onerror=document.title='taken'>";
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            upstream: "health = { path = \"/ping\", interval = \"200ms\", \
                       body = \"<script>document.title='taken'</script>\" }",
            ..Site::default()
        };
        let endpoints = [origin.address.to_string(), format!("unix:/tmp/{hostile}")];
        let proxy = site.start(&endpoints);
        browse("hostile", &proxy, &[hostile]);
    });
}

#[test]
fn a_thousand_endpoints_load_and_stay_smooth() {
    test(|| {
        // The same origin by a thousand addresses of this machine.
        let everywhere = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let origin = Origin::start(OriginOptions::default(), everywhere).unwrap();
        let address = origin.socket_addr().unwrap();
        let endpoint = |n: usize| {
            format!(
                "127.{}.{}.{}:{}",
                1 + n / 62_500,
                n / 250 % 250,
                1 + n % 250,
                address.port()
            )
        };
        let endpoints: Vec<_> = (0..1000).map(endpoint).collect();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            upstream: "balance = \"round-robin\"",
            ..Site::default()
        };
        let proxy = site.start(&endpoints);
        let _traffic = [0; 4].map(|_| Traffic::start(&proxy, Duration::from_millis(1)));
        browse("thousand", &proxy, &[]);
    });
}

#[test]
fn a_lost_connection_is_said() {
    test(|| {
        let origin = origin();
        let proxy = site(&[&origin]);
        browse("lost", &proxy, &[]);
    });
}
