use std::net::{SocketAddr, TcpListener};
use std::task::Waker;
use std::time::Instant;

use evenkeel_policy::balance::Balance;
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::{Acquired, SlotRequest};
use evenkeel_policy::endpoint::Flag;
use evenkeel_policy::observation::Observed;
use evenkeel_testkit::deadline::until;
use socket2::{Domain, Socket, Type};
use tokio::sync::oneshot;

use super::admission::Admission;
use super::*;
use crate::config::{NameLookup, load_text};
use crate::net::poller::Poller;
use crate::observe::probes::ProbeEnd;

/// An endpoint, watched; `keys` are further ones of it.
fn limited(keys: &str) -> Watch {
    let text = format!(
        "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
         [upstream.app]\nendpoints = [{{ address = '127.0.0.1:1'{keys} }}]"
    );
    let config = load_text("test.toml", &text, NameLookup::Skip).unwrap();
    let config = Arc::new(config.config);
    let app = &config.upstreams[0];
    let health = Health::new(&Arc::new(Watched {
        upstreams: vec![Arc::new(SharedUpstream::new(app))],
        counters: vec![Arc::new(Counters::new(&config))],
        inquiries: Vec::new(),
        probes: Arc::new(Probes::new(&config)),
        config,
    }));
    let upstream = health.upstreams[0].of.clone();
    Watch {
        endpoint: upstream.shared.members().swap_remove(0),
        upstream,
    }
}

/// How a probe comes to the endpoint while `meanwhile` happens.
fn admitted<'a>(watch: &'a Watch, meanwhile: impl FnOnce()) -> Admission<'a> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let admitted = watch.admit(Duration::from_millis(50));
        // The first is polled first.
        tokio::join!(biased; admitted, async { meanwhile() }).0
    })
}

#[test]
fn a_probe_takes_a_slot_where_there_are_any() {
    let unlimited = limited("");
    let admission = admitted(&unlimited, || {});
    assert!(matches!(admission, Admission::Unlimited));
    let watch = limited(", max_in_flight = 1");
    let admission = admitted(&watch, || {});
    assert!(matches!(admission, Admission::Slot { .. }));
    assert_eq!(watch.state().in_flight(), 1);
    drop(admission);
    assert_eq!(watch.state().in_flight(), 0);
}

#[test]
fn a_probe_that_waits_gets_the_next_slot() {
    let watch = limited(", max_in_flight = 1");
    let taken = watch.state().try_reserve_for_probe().expect("it is free");
    let admission = admitted(&watch, || {
        watch
            .dispatcher()
            .release(watch.state(), taken, None, clock::now);
        assert!(!watch.state().has_room(), "it is the probe's");
    });
    assert!(matches!(admission, Admission::Slot { .. }));
    drop(admission);
    assert!(watch.state().has_room());
}

#[test]
fn a_probe_without_a_slot_goes_by_exchanges_or_beyond_the_limit() {
    let watch = limited(", max_in_flight = 1");
    let taken = watch.state().try_reserve_for_probe().expect("it is free");
    let counters = watch.upstream.current().watched.counters[0].clone();
    let of_endpoint = counters.endpoints[0].begin(watch.state());
    let status = &of_endpoint.status;
    status[2].add(1);
    let admission = admitted(&watch, || status[5].add(1));
    assert!(matches!(admission, Admission::Beyond));
    let admission = admitted(&watch, || status[4].add(1));
    assert!(matches!(admission, Admission::Answered));
    watch
        .dispatcher()
        .release(watch.state(), taken, None, clock::now);
    assert!(watch.state().has_room());
}

/// Watches on a thread of its own until what this gives is dropped.
fn watch_meanwhile(watched: Watched) -> oneshot::Sender<()> {
    let (_, followed) = watch::channel(Arc::new(watched));
    follow_meanwhile(followed)
}

/// The same, watching these in turn.
fn follow_meanwhile(watched: watch::Receiver<Arc<Watched>>) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let poller = Poller::of_this_thread().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            tokio::select! {
                () = super::watch(watched) => {}
                failed = poller.serve() => failed.unwrap(),
                _ = stopped => {}
            }
        });
    });
    stop
}

/// Without a probe: exchanges said that it can't be reached.
#[test]
fn an_unreachable_endpoint_is_tried_until_it_opens() {
    // Bound, so that nobody else gets the port, and refused until it listens.
    let port = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    port.bind(&any.into()).unwrap();
    let address = port.local_addr().unwrap().as_socket().unwrap();
    let text = format!(
        "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
         [upstream.app]\nendpoints = ['{address}']"
    );
    let config = Arc::new(
        load_text("test.toml", &text, NameLookup::Skip)
            .unwrap()
            .config,
    );
    let shared = Arc::new(SharedUpstream::new(&config.upstreams[0]));
    let app = shared.dispatcher().clone();
    let probes = Arc::new(Probes::new(&config));
    let watched = Watched {
        upstreams: vec![shared],
        counters: Vec::new(),
        inquiries: Vec::new(),
        probes,
        config,
    };
    let stop = watch_meanwhile(watched);
    let mut chooser = Chooser::new(app.members(), Balance::First, 0);
    let endpoint = chooser.members().endpoints()[0].clone();
    let is_unreachable = || endpoint.has(Flag::Unreachable);
    until("it counts as unreachable", || {
        let now = clock::now();
        let asking = SlotRequest {
            tried: &[],
            key: 0,
            pinned_to: None,
            lane: None,
            priority: 0,
            arrived: now,
            now,
        };
        if let Acquired::Reserved { reservation, .. } =
            app.acquire(&mut chooser, &asking, Waker::noop())
        {
            let observed = Observed::Unreachable;
            app.report(&mut chooser, &endpoint, reservation, observed, now);
            app.release(&endpoint, reservation, None, || now);
        }
        is_unreachable()
    });
    // Nobody listens: it stays so over several tries.
    let noted = Instant::now();
    until("half a second has passed", || {
        assert!(is_unreachable());
        noted.elapsed() > Duration::from_millis(500)
    });
    port.listen(1).unwrap();
    until("it is reachable again", || !is_unreachable());
    drop(stop);
}

#[test]
fn endpoints_that_join_are_probed_until_they_leave() {
    let ports = [1, 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = ports.each_ref().map(|it| it.local_addr().unwrap());
    let config = addresses.map(|address| {
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
             [upstream.app]\nendpoints = ['{address}']\nhealth = {{ interval = '100ms' }}"
        );
        let loaded = load_text("test.toml", &text, NameLookup::Skip);
        Arc::new(loaded.unwrap().config)
    });
    let shared = Arc::new(SharedUpstream::new(&config[0].upstreams[0]));
    let probes = Arc::new(Probes::new(&config[0]));
    let stop = watch_meanwhile(Watched {
        config: config[0].clone(),
        upstreams: vec![shared.clone()],
        counters: Vec::new(),
        inquiries: Vec::new(),
        probes: probes.clone(),
    });
    let is_probed = |id| probes.of(0, id).last.is_some_and(|it| it.passed);
    let first = Arc::downgrade(&shared.members()[0]);
    let id = shared.members()[0].state.id();
    until("the first is probed", || is_probed(id));
    let replace = |at: usize| {
        let endpoints = &config[at].upstreams[0].endpoints;
        shared.replace_members(endpoints, clock::now());
    };
    replace(1);
    let id = shared.members()[0].state.id();
    until("the other is probed", || is_probed(id));
    // Only a replacement of members forgets endpoints that nothing holds.
    until("nobody watches the first", || {
        replace(1);
        first.upgrade().is_none()
    });
    drop(stop);
}

/// Between two looks of the control thread, and long before its next probe is due.
#[test]
fn an_endpoint_that_leaves_and_comes_back_is_probed_anew() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    let text = format!(
        "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
         [upstream.app]\nendpoints = ['{address}']\n\
         health = {{ interval = '1h', initial = 'down' }}"
    );
    let loaded = load_text("test.toml", &text, NameLookup::Skip);
    let config = Arc::new(loaded.unwrap().config);
    let shared = Arc::new(SharedUpstream::new(&config.upstreams[0]));
    let stop = watch_meanwhile(Watched {
        config: config.clone(),
        upstreams: vec![shared.clone()],
        counters: Vec::new(),
        inquiries: Vec::new(),
        probes: Arc::new(Probes::new(&config)),
    });
    let is_up = || !shared.members()[0].state.has(Flag::Unprobed);
    until("it is probed", is_up);
    for endpoints in [&[][..], &config.upstreams[0].endpoints] {
        shared.replace_members(endpoints, clock::now());
    }
    until("it is probed again", is_up);
    drop(stop);
}

/// An upstream stays: its endpoint is down, as its old probes have found. The new ones
/// pass.
#[test]
fn probes_that_are_others_begin_anew_and_health_goes_on() {
    let [bad, good] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [address, port] = [&bad, &good].map(|it| it.local_addr().unwrap());
    let config = |health: &str| {
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
             [upstream.app]\nendpoints = ['{address}']\n{health}"
        );
        let loaded = load_text("test.toml", &text, NameLookup::Skip);
        Arc::new(loaded.unwrap().config)
    };
    // Nobody answers the request, but a connection opens at the other port.
    let asked = config("health = { path = '/', interval = '100ms', timeout = '20ms', fall = 1 }");
    let connected = config(&format!(
        "health = {{ port = {}, interval = '100ms', rise = 3 }}",
        port.port()
    ));
    let mut shared = crate::upstream::shared_upstreams(&asked, &[], clock::now());
    let mut probes = Arc::new(Probes::new(&asked));
    let watched = |config: &Arc<Config>, shared: &[Arc<SharedUpstream>], probes: &Arc<Probes>| {
        Arc::new(Watched {
            config: config.clone(),
            upstreams: shared.to_vec(),
            counters: Vec::new(),
            inquiries: Vec::new(),
            probes: probes.clone(),
        })
    };
    let (sender, followed) = watch::channel(watched(&asked, &shared, &probes));
    let stop = follow_meanwhile(followed);
    let state = shared[0].members()[0].state.clone();
    until("it is down", || state.has(Flag::Down));
    let failures = |probes: &Probes| probes.of(0, state.id()).failures;
    assert!(failures(&probes) > 0);
    shared = crate::upstream::shared_upstreams(&connected, &shared, clock::now());
    probes = Arc::new(probes.following(&asked, &connected));
    assert!(state.has(Flag::Down) && failures(&probes) > 0);
    sender.send_replace(watched(&connected, &shared, &probes));
    until("it is up", || !state.has(Flag::Down));
    let last = probes.of(0, state.id()).last;
    assert_eq!(last.map(|it| it.end), Some(ProbeEnd::Connected));
    // Down for want of an answer, then probed no more.
    shared = crate::upstream::shared_upstreams(&asked, &shared, clock::now());
    sender.send_replace(watched(&asked, &shared, &probes));
    until("it is down again", || state.has(Flag::Down));
    let unprobed = config("");
    shared = crate::upstream::shared_upstreams(&unprobed, &shared, clock::now());
    assert!(!state.has(Flag::Down));
    sender.send_replace(watched(&unprobed, &shared, &probes));
    drop(stop);
}
