//! Real sockets and two workers, while clients leave, endpoints fail and weights change. The
//! origins see no limit exceeded, and nothing is left over.
//!
//! `EVENKEEL_STRESS=1000000 cargo test --release --test stress` makes a million
//! of the thirty thousand requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use evenkeel::config::{self, NameLookup};
use evenkeel::runtime::{self, Running};
use evenkeel_net::Address;
use evenkeel_net::clock;
use evenkeel_policy::endpoint::Admin;
use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::{Origin, OriginHandle, OriginOptions};

const LIMITS: [u32; 3] = [2, 3, 4];
const CLIENTS: usize = 24;
const REQUESTS: u64 = 30_000;

fn origins() -> [OriginHandle; 3] {
    [0, 1, 2].map(|seed| {
        Origin::local(OriginOptions {
            service: Some("exp:1ms".parse().expect("it is a service time")),
            fail_rate: 0.02,
            reset_rate: 0.005,
            cut_rate: 0.005,
            garbage_rate: 0.002,
            seed,
            ..OriginOptions::default()
        })
        .expect("an origin starts")
    })
}

fn start(origins: &[OriginHandle]) -> Running {
    let endpoints: Vec<_> = origins
        .iter()
        .zip(LIMITS)
        .map(|(origin, limit)| {
            let address = origin.address.to_string();
            format!("{{ address = '{address}', max_in_flight = {limit} }}")
        })
        .collect();
    let text = format!(
        "[server]\nworkers = 2\n[[listener]]\nbind = '127.0.0.1:0'\n[[route]]\nupstream = 'app'\n\
         [upstream.app]\nslow_start = '1s'\nhealth = {{ interval = '500ms' }}\nendpoints = [{}]",
        endpoints.join(", ")
    );
    let loaded = config::load_text("stress.toml", &text, NameLookup::Skip);
    let config = loaded.expect("the configuration is right").config;
    runtime::start(config).expect("it starts")
}

/// The clients' counts.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    answered: AtomicU64,
    left: AtomicU64,
    is_over: AtomicBool,
}

impl Counts {
    /// Waits until this many more requests were answered. Returns whether they were before the
    /// end.
    fn goes_on_for(&self, answers: u64) -> bool {
        let target = self.answered.load(Ordering::Relaxed) + answers;
        let is_over = || self.is_over.load(Ordering::Relaxed);
        until("requests are answered", || {
            is_over() || self.answered.load(Ordering::Relaxed) >= target
        });
        !is_over()
    }
}

/// Sends requests one after the other; leaves before the answer to one of
/// twenty, at once, or when it begins, or after waiting for that in vain.
fn client(address: SocketAddr, seed: u64, total: u64, counts: &Counts) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut connection = None;
    while counts.sent.fetch_add(1, Ordering::Relaxed) < total {
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => match TcpStream::connect(address) {
                Ok(stream) => stream,
                Err(error) => panic!("{error}"),
            },
        };
        let request = b"GET /100 HTTP/1.1\r\nHost: stress.example\r\n\r\n";
        if stream.write_all(request).is_err() {
            continue;
        }
        if random.u8(..20) == 0 {
            counts.left.fetch_add(1, Ordering::Relaxed);
            if random.bool() {
                let patience = Duration::from_micros(random.u64(1..500));
                let _ = stream.set_read_timeout(Some(patience));
                let _ = stream.peek(&mut [0]);
            }
            let socket = socket2::SockRef::from(&stream);
            // A reset leaves no doubt that it has left.
            let _ = socket.set_linger(Some(Duration::ZERO));
            continue;
        }
        if read_answer(&mut stream).is_some() {
            counts.answered.fetch_add(1, Ordering::Relaxed);
            connection = Some(stream);
        }
    }
}

/// Reads an answer with a length; `None` if the connection ends before it.
fn read_answer(stream: &mut TcpStream) -> Option<()> {
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).ok()?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let len = match stream.read(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("a request was forgotten")
            }
            Err(_) => 0,
        };
        if len == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..len]);
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.split("content-length: ").nth(1)?;
        let length: usize = length.split("\r\n").next()?.parse().ok()?;
        if body.len() >= length {
            return (!head.contains("connection: close")).then_some(());
        }
    }
}

/// Changes weights, limits and the operator's settings again and again, until the sender of
/// `over` is dropped.
fn meddle(running: &Running, over: &Receiver<()>) {
    let app = &running.dispatchers()[0];
    let mut random = fastrand::Rng::with_seed(5);
    while over.recv_timeout(Duration::from_millis(2)) == Err(RecvTimeoutError::Timeout) {
        let endpoint = random.usize(..3);
        let members = app.members();
        let state = &members.endpoints()[endpoint];
        match random.u8(..4) {
            0 => app.set_weight(state, random.u32(1..10), clock::now()),
            // Never above the limit at the start.
            1 => state.set_max_in_flight(Some(random.u32(1..=LIMITS[endpoint]))),
            2 => _ = app.set_admin(state, Admin::Drain, clock::now()),
            _ => _ = app.set_admin(state, Admin::Ready, clock::now()),
        }
    }
}

#[test]
fn no_limit_is_exceeded_and_nothing_is_left_over() {
    within(Duration::from_secs(1_200), || {
        let total = std::env::var("EVENKEEL_STRESS").ok();
        let total = total.map_or(REQUESTS, |total| total.parse().expect("it is a number"));
        let origins = origins();
        let running = start(&origins);
        let Address::Tcp(address) = running.addresses[0] else {
            panic!("it is TCP");
        };
        let counts = Counts::default();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS as u64)
                .map(|seed| {
                    let counts = &counts;
                    scope.spawn(move || client(address, seed, total, counts))
                })
                .collect();
            let (clients_go_on, over) = mpsc::channel();
            let running = &running;
            scope.spawn(move || meddle(running, &over));
            scope.spawn(|| {
                // Each is gone for a moment now and then.
                for origin in origins.iter().cycle() {
                    if !counts.goes_on_for(1_500) {
                        return;
                    }
                    origin.refuse();
                    counts.goes_on_for(500);
                    origin.serve();
                }
            });
            let ended: Vec<_> = clients.into_iter().map(|it| it.join()).collect();
            counts.is_over.store(true, Ordering::Relaxed);
            drop(clients_go_on);
            assert!(ended.iter().all(Result::is_ok), "a client panicked");
        });
        let app = &running.dispatchers()[0];
        until("nothing is in flight and nobody waits", || {
            app.waiting() == 0
                && app
                    .members()
                    .endpoints()
                    .iter()
                    .all(|it| it.in_flight() == 0)
        });
        for (origin, limit) in origins.iter().zip(LIMITS) {
            let most = origin.stats().max_in_flight;
            // How closely it comes to the limit depends on the machine.
            let limit = u64::from(limit);
            assert!(
                (limit / 2..=limit).contains(&most),
                "{most} at {}",
                origin.address
            );
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (answered, left) = (count(&counts.answered), count(&counts.left));
        println!("{total} requests: {answered} answered, {left} clients left");
        assert!(answered > total * 8 / 10, "{answered} of {total} answered");
        running.stop(Duration::from_secs(5));
    });
}
