use super::*;
use crate::config::{NameLookup, load_text};
use names::Target;

/// The configuration of an upstream with these keys, and its discovery, which has asked
/// nobody.
fn site(keys: &str) -> (Discovery, Config, Vec<Arc<SharedUpstream>>) {
    let text =
        format!("[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n[upstream.app]\n{keys}");
    let config = load_text("test.toml", &text, NameLookup::Later)
        .unwrap()
        .config;
    let shared = crate::upstream::shared_upstreams(&config, &[], clock::now());
    let discovery = Discovery::default();
    discovery.configure(&config, &shared);
    (discovery, config, shared)
}

fn question(config: &Config, at: usize) -> Question {
    Question::of(&config.upstreams[0].sources[at]).unwrap()
}

fn target(address: &str) -> Target {
    let address: SocketAddr = address.parse().unwrap();
    Target {
        priority: 0,
        address: address.ip(),
        port: address.port(),
        weight: 0,
        host: None,
    }
}

fn answer(targets: Vec<Target>) -> Result<Answer, Failure> {
    let ttl = Duration::from_secs(30);
    Ok(Answer {
        targets,
        ttl,
        absent: Vec::new(),
    })
}

fn failure() -> Failure {
    Failure {
        word: "dns-timeout",
        text: "it took too long".to_owned(),
    }
}

/// Name, weight and tier of the members.
fn members(shared: &[Arc<SharedUpstream>]) -> Vec<(String, u32, u16)> {
    let members = shared[0].dispatcher().members();
    let members = members.endpoints().iter();
    members
        .map(|it| (it.name().to_owned(), it.weight(), it.tier()))
        .collect()
}

fn names(shared: &[Arc<SharedUpstream>]) -> Vec<String> {
    members(shared).into_iter().map(|it| it.0).collect()
}

#[test]
fn a_failure_takes_nothing_away() {
    let (discovery, config, shared) =
        site("endpoints = ['10.0.0.9:80', { address = 'app.test:80', weight = 2 }]");
    let asked = question(&config, 1);
    discovery.note_answer(&asked, Err(failure()));
    assert_eq!(names(&shared), ["10.0.0.9:80"]);
    let both = vec![target("10.0.0.1:0"), target("10.0.0.2:0")];
    discovery.note_answer(&asked, answer(both));
    let expected = [
        ("10.0.0.9:80", 1, 0),
        ("10.0.0.1:80", 2, 0),
        ("10.0.0.2:80", 2, 0),
    ];
    assert_eq!(
        members(&shared),
        expected.map(|(it, weight, tier)| (it.to_owned(), weight, tier))
    );
    let first = shared[0].members()[1].clone();
    for _ in 0..3 {
        discovery.note_answer(&asked, Err(failure()));
    }
    assert_eq!(names(&shared).len(), 3);
    let shown = &discovery.shown().sources("app")[0];
    assert_eq!(
        (shown.failures, shown.failing, shown.endpoints),
        (4, Some("dns-timeout"), 2)
    );
    assert!(shown.read_unix_ms.is_some());
    discovery.note_answer(&asked, answer(vec![target("10.0.0.1:0")]));
    assert_eq!(names(&shared), ["10.0.0.9:80", "10.0.0.1:80"]);
    assert!(
        Arc::ptr_eq(&first, &shared[0].members()[1]),
        "it is the same one"
    );
    let reason = |name| discovery.shown().reason("app", name);
    assert_eq!(reason("10.0.0.1:80").unwrap(), "name app.test:80, TTL 30 s");
    assert_eq!(reason("10.0.0.2:80"), None);
    assert_eq!(discovery.shown().sources("app")[0].failing, None);
}

#[test]
fn one_is_the_first_and_an_address_counts_once() {
    let (discovery, config, shared) = site(
        "endpoints = [{ address = 'app.test:80', resolve = 'one' }, '10.0.0.1:80', 'b.test:80']",
    );
    let both = || answer(vec![target("10.0.0.1:0"), target("10.0.0.2:0")]);
    discovery.note_answer(&question(&config, 0), both());
    assert_eq!(names(&shared), ["app.test:80", "10.0.0.1:80"]);
    discovery.note_answer(&question(&config, 2), both());
    assert_eq!(
        names(&shared),
        ["app.test:80", "10.0.0.1:80", "10.0.0.2:80"]
    );
    // At another address it is another endpoint of the same name.
    let before = shared[0].members()[0].clone();
    discovery.note_answer(&question(&config, 0), answer(vec![target("10.0.0.3:0")]));
    assert!(!Arc::ptr_eq(&before, &shared[0].members()[0]));
    assert_eq!(names(&shared)[0], "app.test:80");
}

#[test]
fn priorities_are_tiers_and_weights_are_weights() {
    let (discovery, config, shared) =
        site("endpoints = [{ srv = '_http._tcp.test.example', tier = 3, max_in_flight = 2 }]");
    let record = |address, priority, weight| Target {
        priority,
        weight,
        ..target(address)
    };
    let records = vec![
        record("10.0.0.1:81", 10, 5),
        record("10.0.0.2:82", 10, 0),
        record("10.0.0.3:83", 20, 7),
    ];
    discovery.note_answer(&question(&config, 0), answer(records));
    let expected = [
        ("10.0.0.1:81", 50, 3),
        ("10.0.0.2:82", 1, 3),
        ("10.0.0.3:83", 70, 4),
    ];
    assert_eq!(
        members(&shared),
        expected.map(|(it, weight, tier)| (it.to_owned(), weight, tier))
    );
    assert_eq!(shared[0].members()[0].state.max_in_flight(), Some(2));
    // All of the same weight, whatever that is.
    let records = vec![record("10.0.0.1:81", 1, 0), record("10.0.0.2:82", 1, 0)];
    discovery.note_answer(&question(&config, 0), answer(records));
    let expected = [("10.0.0.1:81", 1, 3), ("10.0.0.2:82", 1, 3)];
    assert_eq!(
        members(&shared),
        expected.map(|(it, weight, tier)| (it.to_owned(), weight, tier))
    );
}

#[test]
fn one_of_each_host_of_a_service() {
    let service = |resolve: &str| {
        site(&format!(
            "endpoints = [{{ srv = '_http._tcp.test.example', resolve = '{resolve}' }}]"
        ))
    };
    let record = |host: &str, address| Target {
        host: Some(host.to_owned()),
        ..target(address)
    };
    let records = || {
        vec![
            record("a.test:80", "10.0.0.1:80"),
            record("b.test:80", "10.0.0.2:80"),
            record("a.test:80", "10.0.0.3:80"),
        ]
    };
    for (resolve, count) in [("each", 3), ("one", 2)] {
        let (discovery, config, shared) = service(resolve);
        discovery.note_answer(&question(&config, 0), answer(records()));
        assert_eq!(names(&shared).len(), count, "{resolve}");
        assert_eq!(names(&shared)[..2], ["10.0.0.1:80", "10.0.0.2:80"]);
    }
}

/// What the operator has set stays until the list says something else.
#[test]
fn weights_follow_the_list_where_it_changes() {
    let keys = |weight| {
        format!("endpoints = ['10.0.0.9:80', {{ address = 'app.test:80', weight = {weight} }}]")
    };
    let (discovery, config, shared) = site(&keys(2));
    let one = || answer(vec![target("10.0.0.1:0")]);
    discovery.note_answer(&question(&config, 1), one());
    let state = shared[0].members()[1].state.clone();
    shared[0].dispatcher().set_weight(&state, 7, clock::now());
    discovery.note_answer(&question(&config, 1), one());
    assert_eq!(state.weight(), 7);
    let (_, mut other, _) = site(&keys(3));
    other.upstreams[0].endpoints = discovery
        .state()
        .assemble("app", &other.upstreams[0].sources, None)
        .endpoints;
    let staying = crate::upstream::shared_upstreams(&other, &shared, clock::now());
    discovery.configure(&other, &staying);
    assert_eq!(state.weight(), 3);
    assert_eq!(names(&shared), ["10.0.0.9:80", "10.0.0.1:80"]);
}
