//! Exchanges one after the other on a connection of HTTP/1.

use super::*;

/// A connection of a client, and one to the endpoint, which is idle at first.
pub(super) struct Simulation {
    pub(super) worker: Rc<Worker>,
    pub(super) shared: Vec<Arc<SharedUpstream>>,
    pub(super) client: Stream,
    pub(super) endpoint: Stream,
    /// `None` once the connection of the client is closed.
    serving: Option<Pin<Box<dyn Future<Output = ()>>>>,
    time: Time,
}

impl Simulation {
    fn new() -> Self {
        Self::of(CONFIG)
    }

    pub(super) fn of(config: &str) -> Self {
        let time = Time::begin();
        let config = load(config);
        let shared = shared_upstreams(&config, &[], clock::now());
        let worker = Rc::new(worker_of(&config, &shared));
        let (client, of_client) = Stream::pair();
        let (endpoint, of_endpoint) = Stream::pair();
        keep_idle(&worker, of_endpoint);
        let serving = client::serve_stream(&worker, of_client, Peer::Tcp(CLIENT));
        Simulation {
            worker,
            shared,
            client,
            endpoint,
            serving: Some(Box::pin(serving)),
            time,
        }
    }

    /// Polls the connection until it waits.
    fn run(&mut self) {
        let (wakes, waker) = Wakes::of_new_waker();
        let cx = &mut TaskContext::from_waker(&waker);
        while let Some(serving) = &mut self.serving {
            let before = wakes.count();
            if serving.as_mut().poll(cx).is_ready() {
                self.serving = None;
            } else if wakes.count() == before {
                return;
            }
        }
    }

    /// Moves time on, tick by tick.
    pub(super) fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / TICK.as_millis() {
            self.time.tick(&self.worker);
            self.run();
        }
    }

    pub(super) fn client_sends(&mut self, bytes: &str) {
        send(&mut self.client, bytes);
        self.run();
    }

    pub(super) fn endpoint_sends(&mut self, bytes: &str) {
        send(&mut self.endpoint, bytes);
        self.run();
    }

    pub(super) fn failures(&self) -> Vec<End> {
        failures(&self.worker)
    }

    pub(super) fn exchanges(&self) -> u64 {
        exchanges(&self.worker)
    }
}

pub(super) const GET: &str = "GET /a HTTP/1.1\r\nHost: example.com\r\n\r\n";
/// A request with a body of six bytes; these have come.
fn post(begun: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: example.com\r\nContent-Length: 6\r\n\r\n{begun}")
}

pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn both_connections_carry_two_exchanges() {
    let mut simulation = Simulation::new();
    for exchange in 1..=2 {
        simulation.client_sends(GET);
        let (request, _) = received(&mut simulation.endpoint);
        assert!(request.starts_with("GET /a HTTP/1.1\r\n"), "{request}");
        simulation.endpoint_sends(OK);
        let (answer, is_over) = received(&mut simulation.client);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        assert!(!is_over);
        assert_eq!(simulation.exchanges(), exchange);
        simulation.pass(Duration::from_secs(1));
    }
    assert_eq!(simulation.failures(), []);
    // Nobody needs them any more.
    simulation.pass(Duration::from_secs(6));
    assert!(simulation.serving.is_none());
    assert_eq!(received(&mut simulation.client), (String::new(), true));
}

#[test]
fn two_requests_at_once_are_answered_in_order() {
    let mut simulation = Simulation::new();
    simulation.client_sends(&GET.repeat(2));
    let (request, _) = received(&mut simulation.endpoint);
    assert_eq!(request.matches("GET /a").count(), 1, "one after the other");
    simulation.endpoint_sends(OK);
    let (request, _) = received(&mut simulation.endpoint);
    assert_eq!(request.matches("GET /a").count(), 1);
    simulation.endpoint_sends(&OK.replace("ok", "no"));
    let (answers, _) = received(&mut simulation.client);
    let heads_and_bodies: Vec<_> = answers.split("\r\n\r\n").collect();
    let [first, second, no] = heads_and_bodies[..] else {
        panic!("{answers}");
    };
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{answers}");
    assert!(second.starts_with("okHTTP/1.1 200 OK\r\n"), "{answers}");
    assert_eq!(no, "no");
    assert_eq!(simulation.exchanges(), 2);
}

#[test]
fn an_endpoint_that_says_nothing_is_given_up_in_time() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    simulation.pass(Duration::from_millis(1_900));
    assert_eq!(received(&mut simulation.client), (String::new(), false));
    // A timeout is up to two ticks late.
    simulation.pass(Duration::from_millis(300));
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("first-byte-timeout"), "{answer}");
    assert!(!is_over, "the client may go on");
    assert_eq!(
        simulation.failures(),
        [End::Failure(Failure::FirstByteTimeout)]
    );
    let (_, is_closed) = received(&mut simulation.endpoint);
    assert!(is_closed, "an answer may still come on it");
}

#[test]
fn a_part_of_an_answer_does_not_pass_for_the_whole() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    simulation.endpoint_sends("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart");
    let (begun, is_over) = received(&mut simulation.client);
    assert!(begun.ends_with("\r\n\r\npart"), "{begun}");
    assert!(!is_over);
    let (other, _) = Stream::pair();
    drop(std::mem::replace(&mut simulation.endpoint, other));
    simulation.run();
    assert_eq!(received(&mut simulation.client), (String::new(), true));
    assert_eq!(simulation.failures(), [End::Failure(Failure::UpstreamCut)]);
    assert!(simulation.serving.is_none());
}

#[test]
fn a_client_that_leaves_takes_its_request_along() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    assert!(received(&mut simulation.endpoint).0.starts_with("GET /a"));
    let (other, _) = Stream::pair();
    drop(std::mem::replace(&mut simulation.client, other));
    simulation.run();
    assert!(simulation.serving.is_none());
    assert_eq!(simulation.exchanges(), 1);
    let (_, is_closed) = received(&mut simulation.endpoint);
    assert!(is_closed, "its answer is nobody's");
}

/// Longest state of a connection that has an exchange, in bytes. With hundreds in
/// flight, each line of it is a cache miss.
const SERVED_LEN_MAX: usize = 2_448;

#[test]
fn an_exchange_in_flight_stays_small() {
    let worker = Rc::new(worker());
    let (_, stream) = Stream::pair();
    let len = client::served_len(&worker, stream, Peer::Tcp(CLIENT));
    println!("{len} bytes");
    assert!(len <= SERVED_LEN_MAX, "{len} bytes");
}

/// Longest state of a connection of TCP, in bytes: there may be many idle ones. TLS to endpoints
/// takes 8 of them. Facts that routes use and no client shows, such as the time, take another 8,
/// and the log's figure of bandwidths 8 more.
const CARRIED_LEN_MAX: usize = 920;

#[test]
fn an_idle_tunnel_stays_small() {
    let worker = Rc::new(worker());
    let (_, stream) = Stream::pair();
    let len = client::carried_len(&worker, stream, Peer::Tcp(CLIENT));
    println!("{len} bytes");
    assert!(len <= CARRIED_LEN_MAX, "{len} bytes");
}

#[test]
fn interim_responses_are_passed_on_before_the_final_one() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
    simulation.endpoint_sends(hints);
    assert_eq!(received(&mut simulation.client).0, hints);
    simulation.endpoint_sends(OK);
    let (answer, _) = received(&mut simulation.client);
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(simulation.exchanges(), 1);
}

#[test]
fn a_body_goes_on_as_it_comes() {
    let mut simulation = Simulation::new();
    simulation.client_sends(&post("one"));
    let (request, _) = received(&mut simulation.endpoint);
    assert!(request.ends_with("\r\n\r\none"), "{request}");
    simulation.client_sends("two");
    assert_eq!(received(&mut simulation.endpoint).0, "two");
    simulation.endpoint_sends(OK);
    assert!(received(&mut simulation.client).0.contains(" 200 OK"));
    // A second request shows that its end was seen.
    simulation.client_sends(GET);
    assert!(received(&mut simulation.endpoint).0.starts_with("GET /a"));
}

#[test]
fn a_body_that_does_not_go_on_is_given_up_in_time() {
    let mut simulation = Simulation::new();
    simulation.client_sends(&post("one"));
    simulation.pass(Duration::from_millis(3_300));
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("body-timeout"), "{answer}");
    assert!(is_over, "no further request can follow");
    assert_eq!(simulation.failures(), [End::Failure(Failure::BodyTimeout)]);
}

#[test]
fn after_an_early_answer_the_rest_of_the_body_is_read() {
    let mut simulation = Simulation::new();
    simulation.client_sends(&post("one"));
    simulation.endpoint_sends(OK);
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert!(!is_over);
    simulation.client_sends(&format!("two{GET}"));
    let (sent, _) = received(&mut simulation.endpoint);
    assert!(sent.contains("onetwoGET /a"), "{sent}");
    assert_eq!(simulation.failures(), []);
}

#[test]
fn a_client_of_http_1_0_gets_chunks_as_what_they_hold() {
    let mut simulation = Simulation::new();
    simulation.client_sends("GET /a HTTP/1.0\r\nHost: example.com\r\n\r\n");
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    simulation.endpoint_sends(chunked);
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert!(!answer.contains("chunked"), "{answer}");
    assert!(is_over, "the end of the connection is that of the body");
}

#[test]
fn a_change_of_protocols_makes_a_tunnel() {
    let mut simulation = Simulation::new();
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n\r\n";
    simulation.client_sends(&GET.replace("\r\n\r\n", &format!("\r\n{upgrade}")));
    assert!(received(&mut simulation.endpoint).0.contains("echo"));
    let switched = format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}hello");
    simulation.endpoint_sends(&switched);
    let (answer, _) = received(&mut simulation.client);
    assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    simulation.client_sends("one");
    assert_eq!(received(&mut simulation.endpoint).0, "one");
    simulation.endpoint_sends("two");
    assert_eq!(received(&mut simulation.client).0, "two");
    simulation.pass(Duration::from_millis(3_300));
    assert_eq!(received(&mut simulation.client), (String::new(), true));
    assert_eq!(simulation.failures(), [End::Failure(Failure::TunnelIdle)]);
}

#[test]
fn a_fin_right_behind_a_last_request_leaves_it_its_answer() {
    let mut simulation = Simulation::new();
    let last = GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    send(&mut simulation.client, &last);
    simulation.client.close_notify().unwrap();
    simulation.run();
    simulation.pass(Duration::from_secs(1));
    simulation.endpoint_sends(OK);
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert!(is_over);
}

#[test]
fn a_fin_long_after_a_request_takes_it_along() {
    let mut simulation = Simulation::new();
    let last = GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    simulation.client_sends(&last);
    simulation.pass(Duration::from_secs(1));
    simulation.client.close_notify().unwrap();
    simulation.run();
    assert!(simulation.serving.is_none());
    assert!(
        received(&mut simulation.endpoint).1,
        "its answer is nobody's"
    );
}

#[test]
fn a_client_that_takes_nothing_is_given_up_in_time() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    let len = 1024 * 1024;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
    simulation.endpoint_sends(&head);
    let piece = "x".repeat(32 * 1024);
    for _ in 0..4 {
        simulation.endpoint_sends(&piece);
    }
    simulation.pass(Duration::from_millis(3_300));
    assert!(simulation.serving.is_none());
    assert_eq!(
        simulation.failures(),
        [End::Failure(Failure::ClientStalled)]
    );
}

#[test]
fn half_a_head_is_refused_in_time() {
    let mut simulation = Simulation::new();
    simulation.client_sends("GET /a HTTP/1.1\r\nHo");
    simulation.pass(Duration::from_millis(2_900));
    assert_eq!(received(&mut simulation.client), (String::new(), false));
    simulation.pass(Duration::from_millis(400));
    let (answer, _) = received(&mut simulation.client);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("head-timeout"), "{answer}");
}

/// The worker ends at once where it has no client.
#[test]
fn a_worker_that_drains_closes_idle_connections_at_once() {
    let limited = CONFIG.replace(
        "['127.0.0.1:1']",
        "[{ address = '127.0.0.1:1', max_in_flight = 2 }]",
    );
    for config in [CONFIG, &limited] {
        let mut simulation = Simulation::of(config);
        let is_closed = |simulation: &mut Simulation| received(&mut simulation.endpoint).1;
        assert!(!is_closed(&mut simulation));
        simulation.worker.drain();
        assert!(is_closed(&mut simulation));
    }
}

#[test]
fn a_worker_that_drains_closes_after_the_answer_in_hand() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    simulation.worker.drain();
    simulation.run();
    simulation.endpoint_sends(OK);
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert!(is_over);
}
