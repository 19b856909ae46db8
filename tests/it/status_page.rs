//! The status page in a real browser: `status_page.py` drives a headless
//! Chromium, over traffic that is made here.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::run;
use evenkeel_testkit::{Origin, OriginHandle, OriginOptions, Proxy, RawClient, TempDir};

use crate::foreign_clients::python;
use crate::setup::{Site, origin};

const TOKEN: &str = "a-token-for-the-browser";

/// Requests one after the other, until dropped.
struct Traffic {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    fn start(proxy: &Proxy, pause: Duration) -> Self {
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
                if open.get("/ping").is_ok() {
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
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/status_page.py");
    let mut command = python();
    let url = format!("http://{}/", proxy.status_address());
    command.arg(script).args([case, &url]).args(args);
    let output = run(command, Duration::from_secs(100)).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {}\n{said}", output.status);
    // What was measured, for whoever runs it with --nocapture.
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
        upstream: "balance = \"round-robin\"\nhealth = { path = \"/ping\", interval = \"300ms\" }",
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
