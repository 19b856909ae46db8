use std::future::poll_fn;
use std::task::Poll;

use evenkeel_testkit::TempDir;

use super::*;
use crate::config::{NameLookup, load_text};
use names::Target;

/// The configuration of an upstream with these keys, and its discovery, which has asked
/// nobody.
fn site(keys: &str) -> (Discovery, Config, Vec<Arc<SharedUpstream>>) {
    let config = config(keys, None);
    let shared = crate::upstream::shared_upstreams(&config, &[], clock::now());
    let discovery = Discovery::default();
    discovery.configure(&config, &shared);
    (discovery, config, shared)
}

fn config(keys: &str, state_file: Option<&Path>) -> Config {
    let server = state_file.map_or(String::new(), |path| {
        format!("[server]\nstate_file = '{}'\n", path.display())
    });
    let text = format!(
        "{server}[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n[upstream.app]\n{keys}"
    );
    let loaded = load_text("test.toml", &text, NameLookup::Later);
    loaded.unwrap().config
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

/// A weight that the operator has set stays until the list gives another.
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
        .assemble(&other.upstreams[0].sources, None, None)
        .endpoints;
    let staying = crate::upstream::shared_upstreams(&other, &shared, clock::now());
    discovery.configure(&other, &staying);
    assert_eq!(state.weight(), 3);
    assert_eq!(names(&shared), ["10.0.0.9:80", "10.0.0.1:80"]);
}

/// A process with a list that operators change.
#[derive(Default)]
struct Run {
    discovery: Arc<Discovery>,
    shared: Vec<Arc<SharedUpstream>>,
}

impl Run {
    fn of(keys: &str, state_file: &Path) -> Self {
        let mut run = Run::default();
        wait(run.reload(keys, state_file));
        run
    }

    async fn reload(&mut self, keys: &str, state_file: &Path) {
        let mut config = config(keys, Some(state_file));
        self.discovery.prepare(&mut config).await;
        self.follow(&config);
    }

    fn follow(&mut self, config: &Config) {
        self.shared = crate::upstream::shared_upstreams(config, &self.shared, clock::now());
        self.discovery.configure(config, &self.shared);
    }

    async fn change(&self, endpoint: &str, change: ListChange, keep: Keep) -> String {
        let said = self
            .discovery
            .change("app", endpoint, &change, keep, "by me");
        said.await.unwrap_or_else(|error| error)
    }

    /// The changes, as `diff` shows them.
    fn changed(&self, keys: &str) -> String {
        let changes = self.discovery.operator_changes(&config(keys, None));
        let changes: Vec<_> = changes.iter().map(ToString::to_string).collect();
        changes.join("\n")
    }
}

fn wait<T>(of: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.unwrap().block_on(of)
}

fn weighed(weight: u32) -> EndpointChange {
    EndpointChange {
        weight: Some(weight),
        ..EndpointChange::default()
    }
}

const ONE: &str = "10.0.0.1:80";
const TWO: &str = "10.0.0.2:80";
const THREE: &str = "10.0.0.3:80";
const LIST: &str =
    "endpoints = ['10.0.0.1:80', { address = '10.0.0.2:80', weight = 5, max_in_flight = 100 }]";
const OTHER_LIST: &str = "endpoints = ['10.0.0.1:80', '10.0.0.2:80', '10.0.0.9:80']";

#[test]
fn what_is_saved_holds_whenever_its_list_is_configured() {
    let dir = TempDir::new().unwrap();
    let file = dir.join("state.json");
    let mut run = Run::of(LIST, &file);
    wait(run.change(ONE, ListChange::Remove, Keep::Saved));
    wait(run.change(THREE, ListChange::Add(weighed(1)), Keep::Running));
    assert_eq!(names(&run.shared), [TWO, THREE]);
    wait(run.reload(OTHER_LIST, &file));
    assert_eq!(names(&run.shared), [ONE, TWO, "10.0.0.9:80"]);
    wait(run.reload(LIST, &file));
    assert_eq!(names(&run.shared), [TWO]);
    assert_eq!(
        run.changed(OTHER_LIST),
        format!(
            "upstream app: the operator's changes are lost, because the file has another list: \
             removed {ONE} (saved: it applies again with the previous list)"
        )
    );
    // A change that is undone until the program ends stays undone with the same list.
    wait(run.change(
        ONE,
        ListChange::Add(EndpointChange::default()),
        Keep::Running,
    ));
    wait(run.reload(&format!("retries = 1\n{LIST}"), &file));
    assert_eq!(names(&run.shared), [ONE, TWO]);
    assert_eq!(names(&Run::of(LIST, &file).shared), [TWO]);
}

#[test]
fn all_of_an_endpoint_is_saved() {
    let dir = TempDir::new().unwrap();
    let file = dir.join("state.json");
    let run = Run::of(LIST, &file);
    wait(run.change(THREE, ListChange::Add(weighed(3)), Keep::Running));
    let limited = EndpointChange {
        max_in_flight: Some(7),
        ..EndpointChange::default()
    };
    wait(run.change(THREE, ListChange::Set(limited), Keep::Saved));
    wait(run.change(TWO, ListChange::Remove, Keep::Running));
    wait(run.change(TWO, ListChange::Add(EndpointChange::default()), Keep::Saved));
    // The present state is not the saved one.
    wait(run.change(ONE, ListChange::Remove, Keep::Running));
    let next = Run::of(LIST, &file);
    let expected = [(ONE, 1, 0), (TWO, 5, 0), (THREE, 3, 0)];
    assert_eq!(
        members(&next.shared),
        expected.map(|(it, weight, tier)| (it.to_owned(), weight, tier))
    );
    let limits = next.shared[0].members();
    let limits = limits.iter().map(|it| it.state.max_in_flight());
    assert_eq!(limits.collect::<Vec<_>>(), [None, Some(100), Some(7)]);
}

#[test]
fn another_state_file_is_read_before_it_is_written() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (dir.join("first.json"), dir.join("second.json"));
    wait(Run::of(LIST, &second).change(ONE, ListChange::Remove, Keep::Saved));
    let damaged = dir.join("damaged.json");
    std::fs::write(&damaged, "{").unwrap();
    let mut run = Run::of(LIST, &first);
    wait(run.change(THREE, ListChange::Add(weighed(1)), Keep::Saved));
    // A configuration that does not come into force changes nothing.
    let mut refused = config(LIST, Some(&second));
    wait(run.discovery.prepare(&mut refused));
    wait(run.change(THREE, ListChange::Set(weighed(2)), Keep::Saved));
    assert_eq!(names(&run.shared), [ONE, TWO, THREE]);
    wait(run.reload(LIST, &second));
    wait(run.change(TWO, ListChange::Set(weighed(2)), Keep::Saved));
    let expected = |list: &[(&str, u32, u16)]| {
        let list = list.iter();
        let list = list.map(|&(it, weight, tier)| (it.to_owned(), weight, tier));
        list.collect::<Vec<_>>()
    };
    assert_eq!(
        members(&Run::of(LIST, &second).shared),
        expected(&[(TWO, 2, 0)])
    );
    assert_eq!(
        members(&Run::of(LIST, &first).shared),
        expected(&[(ONE, 1, 0), (TWO, 5, 0), (THREE, 2, 0)])
    );
    wait(run.reload(LIST, &damaged));
    wait(run.change(TWO, ListChange::Set(weighed(3)), Keep::Saved));
    let aside = std::fs::read_to_string(dir.join("damaged.json.bad")).unwrap();
    assert_eq!(aside, "{");
}

#[test]
fn a_configuration_that_is_refused_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let [first, second, third] = ["1", "2", "3"].map(|it| dir.join(it));
    wait(Run::of(LIST, &second).change(ONE, ListChange::Remove, Keep::Saved));
    let mut run = Run::of(LIST, &first);
    let asked = {
        let keys = "endpoints = ['nobody.invalid:80']\nendpoints_file = '/nowhere.json'";
        let mut refused = config(keys, Some(&third));
        let asked = question(&refused, 0);
        // No name server is asked here.
        run.discovery
            .note_answer(&asked, answer(vec![target("10.0.0.1:0")]));
        wait(run.discovery.prepare(&mut refused));
        assert_eq!(refused.upstreams[0].endpoints.len(), 1);
        asked
    };
    assert!(run.discovery.state().answers.contains_key(&asked));
    run.discovery.forget_prepared();
    {
        let state = run.discovery.state();
        let left = (state.answers.len(), state.files.len());
        assert_eq!((left, state.saved_next.len()), ((0, 0), 0));
    }
    // Nor does one that is only compared, meanwhile.
    let [mut wanted, mut compared] = [&second, &third].map(|it| config(LIST, Some(it)));
    wait(run.discovery.prepare(&mut wanted));
    wait(run.discovery.prepare(&mut compared));
    run.follow(&wanted);
    assert_eq!(names(&run.shared), [TWO]);
}

/// A dry run may have asked.
#[test]
fn an_answer_that_nobody_follows_holds_as_long_as_it_said() {
    let (discovery, followed, _) = site("endpoints = ['app.test:80']");
    let other = question(&config("endpoints = ['other.test:80']", None), 0);
    let followed = question(&followed, 0);
    let now = Instant::now();
    let is_known = |question: &Question, at| {
        let state = discovery.state();
        state.is_known(question, &state.questions(), at)
    };
    for asked in [&followed, &other] {
        assert!(!is_known(asked, now));
        discovery.note_answer(asked, answer(vec![target("10.0.0.1:0")]));
        assert!(is_known(asked, now));
    }
    let later = now + Duration::from_secs(31);
    assert!(is_known(&followed, later));
    assert!(!is_known(&other, later));
    discovery.note_answer(&other, Err(failure()));
    assert!(!is_known(&other, now));
}

#[test]
fn a_reload_while_a_change_is_saved_wins() {
    let dir = TempDir::new().unwrap();
    let file = dir.join("state.json");
    let mut run = Run::of(LIST, &file);
    let discovery = run.discovery.clone();
    wait(async {
        let remove = ListChange::Remove;
        let mut removing = Box::pin(discovery.change("app", ONE, &remove, Keep::Saved, "by me"));
        let pending = poll_fn(|cx| Poll::Ready(removing.as_mut().poll(cx).is_pending())).await;
        assert!(pending, "it is being written");
        run.follow(&config(OTHER_LIST, Some(&file)));
        let error = removing.await.unwrap_err();
        assert!(error.contains("was replaced in the meantime"), "{error}");
        let added = run.change(THREE, ListChange::Add(weighed(1)), Keep::Running);
        assert_eq!(
            added.await,
            format!("endpoint app/{THREE} is added; until the program ends")
        );
    });
    assert_eq!(names(&run.shared), [ONE, TWO, "10.0.0.9:80", THREE]);
}

#[test]
fn what_is_saved_and_what_is_not_is_told_apart() {
    let dir = TempDir::new().unwrap();
    let file = dir.join("state.json");
    let mut run = Run::of(LIST, &file);
    let of_list = "upstream app: the running list differs from the file: ";
    wait(run.change(THREE, ListChange::Add(weighed(1)), Keep::Saved));
    wait(run.change(TWO, ListChange::Set(weighed(7)), Keep::Running));
    let both = format!(
        "{of_list}added {THREE} (saved); set {TWO} (not saved: lost when the program ends)"
    );
    assert_eq!(run.changed(LIST), both);
    wait(run.change(THREE, ListChange::Remove, Keep::Running));
    let undone = format!(
        "{of_list}set {TWO} (not saved: lost when the program ends); undone until the program \
         ends, but still saved: added {THREE}"
    );
    assert_eq!(run.changed(LIST), undone);
    // A drain stays with another list, and is no change of that.
    let drain = EndpointChange {
        admin: Some(AdminChange::Drain),
        ..EndpointChange::default()
    };
    wait(run.change(ONE, ListChange::Set(drain), Keep::Running));
    let lost = format!(
        "upstream app: the operator's changes are lost, because the file has another list: set \
         {TWO}; still drained or stopped, until an operator makes them ready or the program ends: \
         {ONE}"
    );
    assert_eq!(run.changed(OTHER_LIST), lost);
    wait(run.reload(OTHER_LIST, &file));
    let one = run.shared[0].members()[0].state.clone();
    let admin = run.shared[0].dispatcher().admin(&one);
    assert_eq!(AdminChange::from(admin), AdminChange::Drain);
}

#[test]
fn a_process_that_drains_saves_nothing() {
    let dir = TempDir::new().unwrap();
    let file = dir.join("state.json");
    let run = Run::of(LIST, &file);
    wait(run.change(ONE, ListChange::Remove, Keep::Saved));
    run.discovery.leave_state_file();
    let next = Run::of(LIST, &file);
    wait(next.change(THREE, ListChange::Add(weighed(1)), Keep::Saved));
    let refused = wait(run.change(TWO, ListChange::Remove, Keep::Saved));
    assert_eq!(refused, "nothing was changed: the process is draining");
    assert_eq!(names(&run.shared), [TWO]);
    let failures = run.discovery.shown().state_failures().read();
    assert_eq!(failures.iter().find(|it| it.1 > 0), Some(("draining", 1)));
    assert_eq!(names(&Run::of(LIST, &file).shared), [TWO, THREE]);
    // Changes for this process alone are still made.
    wait(run.change(TWO, ListChange::Remove, Keep::Running));
    assert_eq!(names(&run.shared), [""; 0]);
}

#[test]
fn a_weight_of_the_list_replaces_one_of_the_run_time() {
    let (discovery, _, shared) = site(LIST);
    let two = shared[0].members()[1].state.clone();
    shared[0].dispatcher().set_weight(&two, 3, clock::now());
    let weight = ListChange::Set(weighed(5));
    wait(discovery.change("app", TWO, &weight, Keep::Running, "by me")).unwrap();
    assert_eq!(two.weight(), 5);
}

#[test]
fn what_is_saved_is_so_whoever_changed_it() {
    let dir = TempDir::new().unwrap();
    let file = dir.join("state.json");
    let run = Run::of(LIST, &file);
    wait(run.change(THREE, ListChange::Add(weighed(1)), Keep::Saved));
    let expected =
        format!("upstream app: the running list differs from the file: added {THREE} (saved)");
    assert_eq!(run.changed(LIST), expected);
    let next = Run::of(LIST, &file);
    next.discovery.restore_changes(run.discovery.keep_changes());
    assert_eq!(next.changed(LIST), expected);
}
