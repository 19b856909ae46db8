//! The end of a connection, and of the process, with streams on the way.

use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::http2::{Ends, ErrorCode, kind};
use evenkeel_testkit::{H2Client, Proxy};
use rustix::process::Signal;

use super::{Shape, assert_answered, connect};
use crate::reload::with_hello;
use crate::setup::{origin, pattern, test};
use crate::upgrade::Successors;

/// The streams that GOAWAY still lets begin, in the first step.
const ANY: u32 = 0x7fff_ffff;

/// Reads until GOAWAY has come. PINGs are answered by that.
#[track_caller]
fn await_goodbye(client: &mut H2Client) -> u32 {
    client.until(|it| it.goes_away.is_some()).unwrap();
    let goodbye = client.goes_away.clone().unwrap();
    assert_eq!(goodbye.code, ErrorCode::NoError, "{goodbye:?}");
    goodbye.last
}

/// Reads the rest of a connection that ends.
#[track_caller]
fn assert_ends(client: &mut H2Client, last: u32) {
    let goodbye = client.end().unwrap().unwrap();
    assert_eq!((goodbye.last, goodbye.code), (last, ErrorCode::NoError));
}

/// Streams in flight, and one that begins after the first GOAWAY, end whole.
fn drains_whole(end: impl FnOnce(&Proxy)) -> Proxy {
    let origin = origin();
    let proxy = Shape::default().before(&origin.address);
    let mut client = connect(&proxy);
    client.get(1, "/slow/700").unwrap();
    client.get(3, "/drip/20/40").unwrap();
    client
        .request(5, "POST", "/echo", &[], Ends::Later)
        .unwrap();
    client.data(5, "before, ", Ends::Later).unwrap();
    client.get(7, "/custom-payload?size=300000").unwrap();
    client.credit(0, 1 << 20).unwrap();
    client.credit(7, 1 << 20).unwrap();
    until("they are in flight", || origin.stats().requests == 4);
    end(&proxy);
    // Nothing but GOAWAY itself is read, so that the client seems not to know yet.
    client.until(|it| it.goes_away.is_some()).unwrap();
    client.get(9, "/ping").unwrap();
    client.data(5, "after", Ends::Now).unwrap();
    assert_answered(&client.response(9).unwrap(), 200, "pong");
    assert_answered(&client.response(5).unwrap(), 200, "before, after");
    let long = client.response(7).unwrap();
    assert_eq!((long.status, long.reset), (200, None));
    assert!(long.body == pattern(300_000));
    assert_answered(&client.response(1).unwrap(), 200, "pong");
    let drip = client.response(3).unwrap();
    assert_eq!((drip.status, drip.is_whole, drip.reset), (200, true, None));
    assert_ends(&mut client, 9);
    until("all are logged", || proxy.access_log().len() == 5);
    for line in proxy.access_log_json() {
        assert_eq!(line["end"], "complete", "{line}");
    }
    proxy
}

#[test]
fn term_lets_streams_end() {
    test(|| {
        let mut proxy = drains_whole(Proxy::terminate);
        assert!(proxy.wait(STEP).unwrap().success());
    });
}

#[test]
fn the_first_goodbye_names_no_stream() {
    test(|| {
        let origin = origin();
        let proxy = Shape::default().before(&origin.address);
        let mut client = connect(&proxy);
        client.get(1, "/slow/500").unwrap();
        until("it is in flight", || origin.stats().in_flight == 1);
        proxy.terminate();
        let mut last = Vec::new();
        loop {
            match client.next() {
                Ok(frame) if frame.kind == kind::GOAWAY => {
                    last.push(client.goes_away.clone().unwrap().last);
                }
                Ok(_) => {}
                Err(error) => {
                    assert!(evenkeel_testkit::http2::is_end(&error), "{error}");
                    break;
                }
            }
        }
        assert_eq!(last, [ANY, 1]);
        assert_answered(&client.response(1).unwrap(), 200, "pong");
    });
}

/// One that does not answer the PING hears of the end after a second.
#[test]
fn a_client_that_shows_nothing_is_told_in_time() {
    test(|| {
        let origin = origin();
        let proxy = Shape::default().before(&origin.address);
        let mut client = connect(&proxy);
        client.get(1, "/slow/3000").unwrap();
        until("it is in flight", || origin.stats().in_flight == 1);
        proxy.terminate();
        // Nothing is read, and so nothing answered.
        std::thread::park_timeout(Duration::from_millis(1_500));
        client.get(3, "/ping").unwrap();
        let begun = Instant::now();
        let response = client.response(1).unwrap();
        assert_answered(&response, 200, "pong");
        assert!(begun.elapsed() > Duration::from_millis(500));
        let goodbye = client.end().unwrap().unwrap();
        assert_eq!((goodbye.last, goodbye.code), (1, ErrorCode::NoError));
        // The stream that came too late was not served, and the client knows.
        let late = client.so_far(3);
        assert!(late.is_none_or(|it| it.status == 0), "{late:?}");
        assert_eq!(origin.stats().requests, 1);
    });
}

#[test]
fn a_second_term_cuts_streams_off() {
    test(|| {
        let origin = origin();
        let mut proxy = Shape::default().before(&origin.address);
        let mut client = connect(&proxy);
        client.get(1, "/slow/20000").unwrap();
        until("it is in flight", || origin.stats().in_flight == 1);
        proxy.terminate();
        await_goodbye(&mut client);
        // One that follows at once is taken for the same.
        std::thread::park_timeout(Duration::from_millis(1_500));
        proxy.terminate();
        assert!(proxy.wait(STEP).is_some());
        client.end().unwrap();
        let response = client.so_far(1);
        let is_cut = response.is_none_or(|it| it.status == 503 || it.reset.is_some());
        assert!(is_cut, "{response:?}");
    });
}

#[test]
fn idle_connections_are_told_and_end_with_the_process() {
    test(|| {
        let origin = origin();
        let mut proxy = Shape::default().before(&origin.address);
        let (mut used, mut unused) = (connect(&proxy), connect(&proxy));
        assert_answered(&used.ask(1, "/ping").unwrap(), 200, "pong");
        unused.ping().unwrap();
        proxy.terminate();
        assert_eq!(await_goodbye(&mut used), ANY);
        // A request that was on its way.
        used.get(3, "/ping").unwrap();
        assert_answered(&used.response(3).unwrap(), 200, "pong");
        assert_ends(&mut used, 3);
        // A connection without a request gets a GOAWAY too, so that no request on its way is
        // lost.
        unused.set_step(Duration::from_secs(3));
        assert_ends(&mut unused, 0);
        assert!(proxy.wait(STEP).unwrap().success());
    });
}

#[test]
fn an_idle_connection_is_told_and_closed_in_time() {
    test(|| {
        let origin = origin();
        let shape = Shape {
            listener: "timeouts = { idle = '300ms', head = '300ms' }",
            ..Shape::default()
        };
        let proxy = shape.before(&origin.address);
        let mut client = connect(&proxy);
        // A connection with an exchange is not idle.
        assert_answered(&client.ask(1, "/slow/700").unwrap(), 200, "pong");
        assert_answered(&client.ask(3, "/ping").unwrap(), 200, "pong");
        let begun = Instant::now();
        assert_eq!(await_goodbye(&mut client), ANY);
        assert!(begun.elapsed() > Duration::from_millis(200));
        assert_ends(&mut client, 3);
        let mut unused = connect(&proxy);
        assert_ends(&mut unused, 0);
    });
}

#[test]
fn a_reload_disturbs_nothing() {
    test(|| {
        let origin = origin();
        let shape = Shape::default();
        let config = shape.config(&[format!("'{}'", origin.address)]);
        let proxy = shape.before(&origin.address);
        let mut client = connect(&proxy);
        assert_eq!(client.ask(1, "/hello").unwrap().status, 404);
        client.get(3, "/slow/1500").unwrap();
        client
            .request(5, "POST", "/echo", &[], Ends::Later)
            .unwrap();
        client.data(5, "before, ", Ends::Later).unwrap();
        until("they are in flight", || origin.stats().in_flight == 2);
        let dir = proxy.dir().display().to_string();
        let written = with_hello(&config).replace("$DIR", &dir);
        std::fs::write(proxy.path("evenkeel.toml"), written).unwrap();
        proxy.signal(Signal::HUP);
        let mut stream = 7;
        until("the route is there", || {
            stream += 2;
            client.ask(stream, "/hello").unwrap().text() == "hello"
        });
        client.data(5, "after", Ends::Now).unwrap();
        assert_answered(&client.response(5).unwrap(), 200, "before, after");
        assert_answered(&client.response(3).unwrap(), 200, "pong");
        assert_eq!(client.goes_away, None);
        assert_answered(&client.ask(stream + 2, "/ping").unwrap(), 200, "pong");
    });
}

#[test]
fn an_upgrade_loses_no_stream() {
    test(|| {
        let origin = origin();
        let mut proxy = Shape::default().before(&origin.address);
        let (mut busy, mut idle) = (connect(&proxy), connect(&proxy));
        assert_answered(&idle.ask(1, "/ping").unwrap(), 200, "pong");
        busy.get(1, "/slow/1500").unwrap();
        busy.request(3, "POST", "/echo", &[], Ends::Later).unwrap();
        busy.data(3, "before, ", Ends::Later).unwrap();
        until("they are in flight", || origin.stats().in_flight == 2);
        {
            let successors = Successors(&proxy);
            successors.upgrade();
            assert_answered(&connect(&proxy).ask(1, "/ping").unwrap(), 200, "pong");
            // Both connections are the old process's, which tells them.
            assert_eq!(await_goodbye(&mut busy), ANY);
            assert_eq!(await_goodbye(&mut idle), ANY);
            idle.get(3, "/ping").unwrap();
            assert_answered(&idle.response(3).unwrap(), 200, "pong");
            assert_ends(&mut idle, 3);
            busy.get(5, "/ping").unwrap();
            assert_answered(&busy.response(5).unwrap(), 200, "pong");
            busy.data(3, "after", Ends::Now).unwrap();
            assert_answered(&busy.response(3).unwrap(), 200, "before, after");
            assert_answered(&busy.response(1).unwrap(), 200, "pong");
            assert_ends(&mut busy, 5);
        }
        assert!(proxy.wait(STEP).unwrap().success());
    });
}

/// A client that says that it ends: its streams are served, and then the connection ends.
#[test]
fn a_client_that_says_goodbye_is_served_first() {
    test(|| {
        let origin = origin();
        let proxy = Shape::default().before(&origin.address);
        let mut client = connect(&proxy);
        client.get(1, "/slow/300").unwrap();
        client.frame(kind::GOAWAY, 0, 0, [0; 8]).unwrap();
        assert_answered(&client.response(1).unwrap(), 200, "pong");
        client.end().unwrap();
    });
}
