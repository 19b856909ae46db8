//! Another generation on a running worker: endpoints and upstreams stay, leave and join.

use super::http1::{GET, OK, Simulation};
use super::*;
use crate::observe::counters::Staying;

impl Simulation {
    /// Has exchanges that begin from now on follow this configuration.
    fn reload(&mut self, config: &str) {
        let before = self.worker.generation.get();
        let config = load(config);
        self.shared = shared_upstreams(&config, &self.shared, clock::now());
        let sides = self.worker.listeners.all();
        let listeners = sides.iter().map(|it| it.shared().clone());
        let counters = before
            .counters
            .following(&Staying::of(&before.config, &config));
        self.worker.follow(&GenerationPlan {
            number: before.number + 1,
            listeners: listeners.collect(),
            counters: Arc::new(counters),
            ..plan_of(&config, &self.shared)
        });
    }

    /// The route, upstream and endpoint of the exchange in progress.
    fn goes_to(&self) -> [Option<String>; 3] {
        let cx = &mut TaskContext::from_waker(Waker::noop());
        let tick = Duration::from_millis(100);
        let mut list = Box::pin(async {
            let mut list = self.worker.sessions.list(1, 0, tick).await;
            let name = |id| self.worker.listeners.name(id);
            list.look_up(name, |it| self.worker.names_of(it)).await;
            list
        });
        let list = loop {
            if let Poll::Ready(list) = list.as_mut().poll(cx) {
                break list;
            }
        };
        let exchange = list.rows[0].exchange.as_ref();
        let names = exchange.and_then(|it| it.names.clone());
        let names = names.expect("there is an exchange");
        [Some(names.route), names.upstream, names.endpoint]
    }

    /// The work of a worker once a second.
    fn sweep(&self) {
        self.worker.look_at_generations();
        self.worker.upstreams.forget_gone();
        let sides = self.worker.upstreams.all();
        sides
            .iter()
            .for_each(|it| it.sweep(self.worker.wheel.now()));
    }
}

/// A configuration with these endpoints, and what comes before its upstream.
fn with_endpoints(ports: &[u16], before: &str) -> String {
    let endpoints = ports.iter().map(|port| format!("'127.0.0.1:{port}'"));
    let endpoints = endpoints.collect::<Vec<_>>().join(", ");
    format!(
        "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n{before}\n\
         [upstream.app]\nbalance = 'first'\nendpoints = [{endpoints}]\n"
    )
}

/// Upstreams are in the order of their names.
const ANOTHER: &str = "[upstream.a]\nendpoints = ['127.0.0.1:9']";
const GOES: &str = "[upstream.z]\nendpoints = ['127.0.0.1:9']";

#[test]
fn another_generation_goes_on_with_the_connections_of_endpoints_that_stay() {
    let mut simulation = Simulation::of(&with_endpoints(&[1, 2], ""));
    let exchange = |simulation: &mut Simulation| {
        simulation.client_sends(GET);
        let (request, _) = received(&mut simulation.endpoint);
        assert!(request.starts_with("GET /a "), "{request}");
        simulation.endpoint_sends(OK);
        let (answer, is_over) = received(&mut simulation.client);
        assert!(answer.ends_with("ok") && !is_over, "{answer}");
    };
    exchange(&mut simulation);
    // The endpoint stands elsewhere, and so does its upstream.
    simulation.reload(&with_endpoints(&[1, 3], ANOTHER));
    simulation.sweep();
    exchange(&mut simulation);
    let generation = simulation.worker.generation.get();
    let upstream = &generation.upstreams[1];
    let members = upstream.members();
    let stays = members.named("127.0.0.1:1").expect("it is a member");
    let slot = acquire(upstream, &[]);
    let endpoint = slot.endpoint();
    assert_eq!(endpoint.id(), stays.id());
    assert_eq!(endpoint.counters().attempts.value(), 2);
    assert_eq!(endpoint.counters().reuses.value(), 2);
    let exchanges = generation.counters.upstreams[1].exchanges.get();
    assert_eq!(exchanges.map(|it| it.requests.value()), Some(2));
    let exchanges = generation.counters.routes[0].exchanges.get();
    assert_eq!(exchanges.map(|it| it.requests.value()), Some(2));
    assert_eq!(simulation.exchanges(), 2);
    assert_eq!(simulation.failures(), []);
}

#[test]
fn an_endpoint_that_leaves_finishes_what_it_has() {
    let mut simulation = Simulation::of(&with_endpoints(&[1, 2], ""));
    simulation.client_sends(GET);
    assert!(received(&mut simulation.endpoint).0.starts_with("GET /a "));
    let goes_to = simulation.goes_to();
    assert_eq!(
        goes_to[1..],
        ["app", "127.0.0.1:1"].map(|it| Some(it.to_owned()))
    );
    simulation.reload(&with_endpoints(&[3, 2], ANOTHER));
    simulation.sweep();
    assert_eq!(simulation.goes_to(), goes_to);
    simulation.endpoint_sends(OK);
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.ends_with("ok") && !is_over, "{answer}");
    assert!(!received(&mut simulation.endpoint).1);
    simulation.sweep();
    let (_, is_closed) = received(&mut simulation.endpoint);
    assert!(is_closed, "nobody goes there any more");
}

#[test]
fn an_upstream_goes_with_the_last_generation_that_has_it() {
    let mut simulation = Simulation::of(&with_endpoints(&[1], GOES));
    let (mut far_end, of_endpoint) = Stream::pair();
    let before = simulation.worker.generation.get();
    let held = acquire(&before.upstreams[1], &[]);
    held.keep_idle(of_endpoint, None, simulation.worker.wheel.now());
    simulation.reload(&with_endpoints(&[1], ""));
    simulation.sweep();
    assert_eq!(simulation.worker.upstreams.all().len(), 2);
    assert!(!received(&mut far_end).1, "an exchange may go there still");
    drop(held);
    drop(before);
    assert!(received(&mut far_end).1);
    simulation.sweep();
    assert_eq!(simulation.worker.upstreams.all().len(), 1);
    assert!(!received(&mut simulation.endpoint).1);
}

#[test]
fn what_goes_on_with_an_older_generation_is_shown_and_ends_in_time() {
    const REPLACED: &str = "[server]\ngeneration_timeout = '3s'\n";
    let upgrade = "Connection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let begins = [
        (GET.to_owned(), String::new(), 0),
        (
            GET.replace("\r\n\r\n", &format!("\r\n{upgrade}")),
            format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}"),
            1,
        ),
    ];
    for (request, answer, tunnels) in begins {
        let config = with_endpoints(&[1], "");
        let mut simulation = Simulation::of(&config);
        simulation.client_sends(&request);
        received(&mut simulation.endpoint);
        simulation.endpoint_sends(&answer);
        received(&mut simulation.client);
        let counters = simulation.worker.generation.get().counters.clone();
        let shown = &counters.generation;
        let shown = || (shown.exchanges.value(), shown.tunnels.value());
        simulation.sweep();
        assert_eq!(shown(), (1, tunnels));
        simulation.pass(Duration::from_secs(9));
        simulation.reload(&format!("{REPLACED}{config}"));
        let newest = simulation.worker.generation.get().counters.clone();
        simulation.pass(Duration::from_secs(2));
        simulation.sweep();
        assert_eq!(shown(), (1, tunnels), "its time is not over");
        assert_eq!(newest.generation.exchanges.value(), 0);
        simulation.pass(Duration::from_secs(1));
        simulation.sweep();
        simulation.pass(TICK);
        let (answer, _) = received(&mut simulation.client);
        let refused = "the configuration of this request was replaced too long ago";
        assert_eq!(answer.contains(refused), tunnels == 0, "{answer}");
        let expected = End::Failure(Failure::GenerationTimeout);
        assert_eq!(simulation.failures(), [expected]);
    }
}

/// An upstream of one endpoint, with these settings of both.
fn one_endpoint(of_upstream: &str, of_endpoint: &str) -> String {
    format!(
        "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n[upstream.app]\n{of_upstream}\n\
         endpoints = [{{ address = '127.0.0.1:1'{of_endpoint} }}]\n"
    )
}

#[test]
fn an_upstream_that_stays_follows_its_new_settings() {
    let mut simulation = Simulation::of(&one_endpoint("", ""));
    let dispatcher = simulation.shared[0].dispatcher().clone();
    let state = dispatcher.members().endpoints()[0].clone();
    let weight = |weight| dispatcher.set_weight(&state, weight, clock::now());
    weight(7);
    // The list is as before: settings of the run time stay.
    simulation.reload(&one_endpoint("pool.max_idle = 0", ""));
    assert_eq!(state.weight(), 7);
    let (_, is_closed) = received(&mut simulation.endpoint);
    assert!(is_closed, "none is kept any more");
    simulation.reload(&one_endpoint("", ", weight = 2"));
    assert_eq!(state.weight(), 2);
    weight(0);
    simulation.reload(&one_endpoint("queue.max = 1", ", weight = 2"));
    assert_eq!(state.weight(), 0);
    simulation.reload(&with_endpoints(&[1, 2], ""));
    assert_eq!(state.weight(), 1, "the list is another one");
    assert!(Arc::ptr_eq(&dispatcher.members().endpoints()[0], &state));
}

#[test]
fn a_limit_that_appears_or_disappears_keeps_what_is_known_of_the_endpoint() {
    let limit = ", max_in_flight = 1";
    for (before, after) in [("", limit), (limit, "")] {
        let mut simulation = Simulation::of(&one_endpoint("", before));
        let old = simulation.worker.generation.get();
        let members = simulation.shared[0].dispatcher().members();
        let state = &members.endpoints()[0];
        // The one that is idle, and this exchange's.
        let (mut far_end, of_endpoint) = Stream::pair();
        let held = acquire(&old.upstreams[0], &[]);
        simulation.reload(&one_endpoint("", after));
        assert_eq!(state.in_flight(), 1);
        let has_limit = state.max_in_flight().is_some();
        assert_eq!(has_limit, !after.is_empty());
        assert_eq!(state.has_room(), after.is_empty());
        assert!(received(&mut simulation.endpoint).1, "of the other kind");
        held.keep_idle(of_endpoint, None, simulation.worker.wheel.now());
        drop(held);
        assert!(received(&mut far_end).1, "it ends as it began");
        assert_eq!(state.in_flight(), 0);
        // From now on its connections are of the new kind.
        let (mut far_end, of_endpoint) = Stream::pair();
        keep_idle(&simulation.worker, of_endpoint);
        simulation.sweep();
        let new = simulation.worker.generation.get();
        let slot = acquire(&new.upstreams[0], &[]);
        assert!(std::ptr::eq(slot.endpoint().state(), &**state));
        let reused = slot.take_idle(simulation.worker.wheel.now());
        assert!(reused.stream.is_some() && !received(&mut far_end).1);
    }
}

#[test]
fn lanes_go_on_by_name() {
    let lanes = |lanes: &str, lane: &str| {
        format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\nlane = '{lane}'\n\
             [upstream.app]\nlanes = {{ {lanes} }}\n\
             endpoints = [{{ address = '127.0.0.1:1', max_in_flight = 4 }}]\n"
        )
    };
    let mut simulation = Simulation::of(&lanes("slow = 1", "slow"));
    simulation.client_sends(GET);
    assert!(received(&mut simulation.endpoint).0.starts_with("GET /a "));
    let dispatcher = simulation.shared[0].dispatcher().clone();
    let in_flight = |name: &str| {
        dispatcher
            .lane_named(name)
            .map(|it| dispatcher.lane_in_flight(it))
    };
    // Lanes are in the order of their names.
    simulation.reload(&lanes("fast = 2, slow = 1", "fast"));
    assert_eq!((in_flight("fast"), in_flight("slow")), (Some(0), Some(1)));
    simulation.endpoint_sends(OK);
    assert!(received(&mut simulation.client).0.ends_with("ok"));
    assert_eq!(in_flight("slow"), Some(0));
    simulation.client_sends(GET);
    assert!(received(&mut simulation.endpoint).0.starts_with("GET /a "));
    assert_eq!((in_flight("fast"), in_flight("slow")), (Some(1), Some(0)));
}

#[test]
fn endpoints_that_stay_keep_their_load_and_their_place() {
    let mut simulation = Simulation::of(&with_endpoints(&[1, 2], ""));
    let before = simulation.worker.generation.get();
    let slots = [1, 2].map(|_| acquire(&before.upstreams[0], &[]));
    let load = slots[0].endpoint().clone();
    let load = load.state();
    simulation.reload(&with_endpoints(&[3, 2, 1], ANOTHER));
    let after = simulation.worker.generation.get();
    let upstream = &after.upstreams[1];
    assert_eq!(load.in_flight(), 2);
    let new = acquire(upstream, &[]);
    assert_eq!(new.config().name, "127.0.0.1:3");
    let tried = [Tried::Sent { endpoint: new.id() }];
    let next = acquire(upstream, &tried);
    assert_eq!(next.config().name, "127.0.0.1:2");
    let tried = [
        tried[0],
        Tried::Sent {
            endpoint: next.id(),
        },
    ];
    let last = acquire(upstream, &tried);
    assert!(Rc::ptr_eq(last.endpoint(), slots[0].endpoint()));
    assert_eq!(load.in_flight(), 3);
    drop(slots);
    assert_eq!(load.in_flight(), 1);
}
