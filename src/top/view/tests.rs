use evenkeel::observe::rates::{CacheRates, LimitRates, ListenerRates, Rates};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::names::shortened;
use super::*;
use crate::top::keys::{Todo, press};

fn endpoint(name: &str, state: &str, requests_per_s: f64) -> EndpointRates {
    EndpointRates {
        name: name.to_owned(),
        state: state.to_owned(),
        admin: "ready".to_owned(),
        weight: 3,
        in_flight: 4,
        max_in_flight: Some(8),
        idle: 2,
        traffic: Traffic {
            requests_per_s,
            errors_per_s: 0.5,
            p50_us: Some(2_100.0),
            p99_us: (requests_per_s > 0.0).then_some(12_340.0),
            bytes_in_per_s: 1_000.0,
            bytes_out_per_s: 4_100_000.0,
        },
    }
}

fn rates() -> Rates {
    let traffic = endpoint("", "", 150.0).traffic;
    Rates {
        version: "0.1.0".to_owned(),
        pid: 4242,
        started_unix_ms: 1,
        uptime_ms: 7_500_000,
        window_ms: 1000,
        generations: Vec::new(),
        listeners: vec![ListenerRates {
            name: "web".to_owned(),
            bind: "127.0.0.1:80".to_owned(),
            open: 43,
            traffic: traffic.clone(),
        }],
        routes: Vec::new(),
        limits: Vec::new(),
        caches: Vec::new(),
        upstreams: vec![UpstreamRates {
            name: "app".to_owned(),
            balance: "adaptive".to_owned(),
            in_flight: 12,
            waiting: 7,
            queue_max: 1000,
            eligible: 2,
            traffic,
            endpoints: vec![
                endpoint("10.0.0.1:8080", "up", 50.0),
                endpoint("10.0.0.2:8080", "unreachable", 0.0),
                endpoint("app-3.internal.example.com:8080", "draining", 100.0),
            ],
        }],
    }
}

fn model() -> Model {
    let mut model = Model::new(Colour::Off);
    model.news(Ok(Box::new(rates())));
    model
}

fn picture(model: &mut Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    let lines = terminal.backend().to_string();
    let lines: Vec<_> = lines
        .lines()
        .map(|line| line.trim_matches('"').trim_end())
        .collect();
    lines.join("\n")
}

fn key(model: &mut Model, code: KeyCode) -> Todo {
    press(model, KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn the_table_at_80_columns() {
    let expected = "\
evenkeel 0.1.0  process 4242  up 2h05m  150 req/s  0.5 err/s  43 connections
UPSTREAM, ENDPOINT    STATE         FLIGHT   QUEUE  REQ/S  ERR/S     P50     P99
app                   2/3 up            12       7    150    0.5 2.10 ms 12.3 ms
  10.0.0.1:8080       up               4/8           50.0    0.5 2.10 ms 12.3 ms
  10.0.0.2:8080       unreachable      4/8              0    0.5 2.10 ms       -
  app-3.int~.com:8080 draining         4/8            100    0.5 2.10 ms 12.3 ms


upstream app: balance adaptive, 7 of 1000 waiting, in 1.00 kB/s, out 4.10 MB/s
up/down  d drain  r ready  s stop  w weight  o order  / filter  ? help  q quit";
    assert_eq!(picture(&mut model(), 80, 10), expected);
}

#[test]
fn limits_that_refuse_have_a_line() {
    let mut model = model();
    let mut rates = rates();
    rates.limits = [("api", 3.0), ("quiet", 0.0)]
        .map(|(route, refused_per_s)| LimitRates {
            route: route.to_owned(),
            allowed_per_s: 1520.0,
            delayed_per_s: 0.0,
            refused_per_s,
            dry_run_per_s: refused_per_s / 2.0,
            keys: 7,
        })
        .into();
    model.news(Ok(Box::new(rates)));
    let picture = picture(&mut model, 80, 11);
    let line = picture.lines().nth(1).unwrap();
    assert_eq!(
        line,
        "limits of api  1520 passed/s  3.0 refused/s  1.5 dry run/s"
    );
}

#[test]
fn caches_have_a_line() {
    let mut model = model();
    let mut rates = rates();
    rates.caches = ["main", "images"]
        .map(|name| CacheRates {
            name: name.to_owned(),
            requests_per_s: 1520.0,
            hits_per_s: 1420.0,
            saved_bytes_per_s: 4_100_000.0,
            responses: 12,
            bytes: 480_000_000,
            limit_bytes: 512_000_000,
        })
        .into();
    rates.caches[1].requests_per_s = 0.0;
    model.news(Ok(Box::new(rates)));
    let picture_of_two = picture(&mut model, 130, 10);
    let line = picture_of_two.lines().nth(1).unwrap();
    let first = "cache main  93.4% hits  1520 req/s  saved 4.10 MB/s  480 MB of 512 MB";
    assert!(
        line.starts_with(&format!("{first}; cache images  - hits")),
        "{line}"
    );
    let narrow = picture(&mut model, 40, 10);
    assert!(
        narrow.contains("\ncache main  93.4% hits  1520 req/s  sav~\n"),
        "{narrow}"
    );
    // The table comes first.
    assert!(!picture(&mut model, 130, 5).contains("cache main"));
}

#[test]
fn names_and_figures_are_both_there_at_50_columns() {
    let expected = "\
evenkeel  150 req/s  0.5 err/s  43 connections
ENDPOINT       STATE     FLIGHT REQ/S ERR/S    P99
app            2/3 up        12   150   0.5 12.3ms
 10.0.0.1:8080 up           4/8  50.0   0.5 12.3ms
 10.0.0.2:8080 unreach~     4/8     0   0.5      -
 app-3.~m:8080 draining     4/8   100   0.5 12.3ms


upstream app: balance adaptive, 7 of 1000 waiting,
in 1.00 kB/s, out 4.10 MB/s, p50 2.10 ms
d r s w  o order  / filter  ? help  q quit";
    assert_eq!(picture(&mut model(), 50, 11), expected);
    // A question is asked to its end.
    let mut model = model();
    key(&mut model, KeyCode::End);
    key(&mut model, KeyCode::Char('d'));
    let asked = picture(&mut model, 50, 11);
    assert!(asked.ends_with("y/n"), "{asked}");
}

#[test]
fn endpoints_of_an_upstream_are_told_apart() {
    let mut model = model();
    let mut many = rates();
    let addresses = [
        "192.168.10.11:8080",
        "192.168.10.21:8080",
        "192.168.20.11:8080",
    ];
    many.upstreams[0].endpoints = addresses.map(|name| endpoint(name, "up", 50.0)).into();
    model.news(Ok(Box::new(many)));
    for (width, expected) in [
        (40, [" ~10.11:8080", " ~10.21:8080", " ~20.11:8080"]),
        (50, [" ~10.11:8080", " ~10.21:8080", " ~20.11:8080"]),
        (
            62,
            [
                " 192.168.10.11:8080",
                " 192.168.10.21:8080",
                " 192.168.20.11:8080",
            ],
        ),
    ] {
        let shown = picture(&mut model, width, 12);
        for (line, expected) in shown.lines().skip(3).zip(expected) {
            assert!(
                line.starts_with(&format!("{expected} ")),
                "{width}:\n{shown}"
            );
        }
    }
}

#[test]
fn names_are_cut_where_they_are_alike() {
    for (width, names) in [
        // Whole; without their middle.
        (11, &[("10.0.0.1:80", "10.0.0.1:80")][..]),
        (13, &[("app-3.internal.example.com:8080", "app-3.~m:8080")]),
        // Without the start that they share, which ends with a word or number.
        (
            13,
            &[
                ("backend-1.internal:8080", "~1.internal:~"),
                ("backend-2.internal:8080", "~2.internal:~"),
            ],
        ),
        (
            12,
            &[
                ("10.20.30.101:8080", "~101:8080"),
                ("10.20.30.111:8080", "~111:8080"),
                ("10.0.0.1:80", "10.0.0.1:80"),
            ],
        ),
        // They share no start.
        (
            12,
            &[
                ("172.16.10.11:8080", "~.10.11:8080"),
                ("172.16.20.11:8080", "~.20.11:8080"),
                ("db.internal.example:8080", "~xample:8080"),
            ],
        ),
    ] {
        let whole: Vec<_> = names.iter().map(|it| it.0).collect();
        let texts = shortened(&whole, width);
        for (name, expected) in names {
            assert_eq!(texts[name], *expected, "{whole:?} in {width}");
        }
    }
}

#[test]
fn every_width_has_names_and_figures_that_are_not_cut() {
    let mut model = model();
    let mut many = rates();
    let upstream = &mut many.upstreams[0];
    upstream.traffic.requests_per_s = 1_234_567.0;
    upstream.endpoints[0].in_flight = 1_000;
    upstream.endpoints[0].max_in_flight = Some(10_000);
    upstream.endpoints[1].name = "10.0.0.2:8080".to_owned();
    model.news(Ok(Box::new(many)));
    for width in 30..160 {
        let shown = picture(&mut model, width, 12);
        let rows: Vec<_> = shown.lines().skip(2).take(3).collect();
        assert!(rows[0].starts_with("app "), "{width}:\n{shown}");
        assert!(rows[1].contains("10.0.0.1:8080 "), "{width}:\n{shown}");
        assert!(rows[2].contains(" unreach"), "{width}:\n{shown}");
        for figures in [rows[0], rows[1]] {
            assert!(!figures.contains('~'), "{width}:\n{shown}");
        }
        let longest = shown.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(usize::from(width)), "{width}:\n{shown}");
        if width >= 50 {
            assert!(
                rows[0].contains("1235k") || rows[0].contains("1234567"),
                "{width}:\n{shown}"
            );
        }
    }
}

#[test]
fn texts_go_on_in_further_lines() {
    for (text, width, most, expected) in [
        ("one two", 10, 3, &["one two"][..]),
        ("one two", 4, 3, &["one", "two"]),
        ("one two", 3, 3, &["one", "two"]),
        ("abcdefgh", 3, 3, &["abc", "def", "gh"]),
        ("one two three", 3, 2, &["one", "tw~"]),
        ("one two three", 5, 1, &["one ~"]),
        ("", 5, 3, &[""]),
    ] {
        let lines = wrapped(text, width, most);
        let lines: Vec<_> = lines.iter().map(|it| it.trim_end()).collect();
        assert_eq!(lines, expected, "{text:?} in {width}");
    }
}

#[test]
fn a_wide_terminal_has_every_column_and_a_small_one_says_so() {
    let wide = picture(&mut model(), 120, 10);
    assert!(wide.contains("WEIGHT") && wide.contains("OUT/S"), "{wide}");
    assert!(wide.contains("app-3.internal.example.com:8080"), "{wide}");
    for (width, height) in [(30, 5), (40, 6), (10, 2), (1, 1), (200, 60)] {
        picture(&mut model(), width, height);
    }
}

#[test]
fn the_order_and_the_filter() {
    let mut model = model();
    key(&mut model, KeyCode::Char('o'));
    key(&mut model, KeyCode::Char('o'));
    let names = |model: &Model| -> Vec<_> {
        let rows = model.rows();
        let targets = rows.iter().map(Row::target);
        targets
            .map(|it| it.endpoint.unwrap_or(it.upstream))
            .collect()
    };
    let by_requests = [
        "app",
        "app-3.internal.example.com:8080",
        "10.0.0.1:8080",
        "10.0.0.2:8080",
    ];
    assert_eq!(names(&model), by_requests);
    assert!(picture(&mut model, 80, 10).contains(" *REQ/S"));
    key(&mut model, KeyCode::Char('/'));
    for letter in "unreach".chars() {
        key(&mut model, KeyCode::Char(letter));
    }
    assert_eq!(names(&model), ["app", "10.0.0.2:8080"]);
    key(&mut model, KeyCode::Char('!'));
    assert!(picture(&mut model, 80, 10).contains("no row contains this text"));
    key(&mut model, KeyCode::Esc);
    assert_eq!(names(&model).len(), 4);
}

#[test]
fn a_change_asks_first() {
    let mut model = model();
    key(&mut model, KeyCode::Down);
    assert_eq!(key(&mut model, KeyCode::Char('d')), Todo::Nothing);
    let asked = picture(&mut model, 80, 10);
    assert!(
        asked.contains("drain endpoint app/10.0.0.1:8080?  y/n"),
        "{asked}"
    );
    assert_eq!(key(&mut model, KeyCode::Char('n')), Todo::Nothing);
    assert!(picture(&mut model, 80, 10).contains("nothing was changed"));
    key(&mut model, KeyCode::Char('s'));
    let drain = Todo::Command("stop app/10.0.0.1:8080".to_owned());
    assert_eq!(key(&mut model, KeyCode::Char('y')), drain);
    key(&mut model, KeyCode::Home);
    key(&mut model, KeyCode::Char('w'));
    key(&mut model, KeyCode::Char('x'));
    key(&mut model, KeyCode::Char('5'));
    let weight = Todo::Command("weight app/* 5".to_owned());
    assert_eq!(key(&mut model, KeyCode::Enter), weight);
}

#[test]
fn the_selected_row_stays_in_sight() {
    let mut model = model();
    let mut many = rates();
    many.upstreams[0].endpoints = (0..500)
        .map(|index| endpoint(&format!("host-{index}:80"), "up", 1.0))
        .collect();
    model.news(Ok(Box::new(many)));
    key(&mut model, KeyCode::End);
    assert!(picture(&mut model, 80, 24).contains("host-499:80"));
    key(&mut model, KeyCode::Up);
    assert!(picture(&mut model, 80, 24).contains("host-499:80"));
    key(&mut model, KeyCode::Home);
    assert!(picture(&mut model, 80, 24).contains("  host-0:80"));
}

#[test]
fn a_lost_process_is_said_and_so_is_a_new_one() {
    let mut model = model();
    model.news(Err("nobody listens there".to_owned()));
    let lost = picture(&mut model, 80, 10);
    assert!(
        lost.contains("no answer, trying again: nobody listens there"),
        "{lost}"
    );
    assert!(lost.contains("10.0.0.1:8080"), "{lost}");
    let mut anew = rates();
    anew.pid = 4243;
    model.news(Ok(Box::new(anew)));
    let again = picture(&mut model, 80, 10);
    assert!(again.contains("restarted, as process 4243"), "{again}");
}

#[test]
fn help_is_there_and_goes_with_any_key() {
    let mut model = model();
    key(&mut model, KeyCode::Char('?'));
    assert!(picture(&mut model, 80, 24).contains("out of service"));
    key(&mut model, KeyCode::Char(' '));
    assert!(!picture(&mut model, 80, 24).contains("out of service"));
}
