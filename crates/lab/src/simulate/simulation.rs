//! One run: clients, balancers and origins under virtual time.

use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::dispatch::{Acquired, SlotRequest};
use evenkeel_policy::endpoint::{EndpointId, Reservation, Tried};
use evenkeel_policy::queue::{Left, Ticket};
use slab::Slab;

use super::clock::Agenda;
use super::measure::{End, Figures, Measure, Over};
use super::origin::{AttemptId, Condition, Due, Finishing, Origin};
use super::proxy::{Policy, Proxy};
use super::request::{SimulatedRequest, Stage};
use super::setting::{Fault, Setting};
use super::watch::{AttemptOver, Outcome, TICK};
use super::workload::{Arrivals, Class, Source};

/// How long a request leaves out an endpoint that refused it a connection.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
enum Event {
    Arrive { client: Option<u32> },
    Finish { origin: usize, what: Finishing },
    Error { attempt: AttemptId },
    QueueTimeout { attempt: AttemptId },
    Change(Fault),
    Tick,
}

/// Whether a request is on its way to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Yes,
    /// It has to ask again.
    No,
    /// The run is over.
    Over,
}

struct Simulation<'a> {
    setting: &'a Setting,
    policy: &'a Policy,
    agenda: Agenda<Event>,
    source: Source,
    proxy: Proxy,
    origins: Vec<Origin>,
    requests: Slab<SimulatedRequest>,
    issued: u64,
    next_serial: u64,
    measure: Measure,
    over_limit: u64,
}

/// Runs a policy in a setting. The same seed gives the same figures.
#[must_use]
pub fn simulate(setting: &Setting, policy: &Policy, seed: u64) -> Figures {
    let epoch = Instant::from_nanos(0);
    let mut simulation = Simulation {
        setting,
        policy,
        agenda: Agenda::new(epoch),
        source: Source::new(seed),
        proxy: Proxy::new(
            policy,
            setting.balancers,
            setting.origins.len(),
            seed,
            epoch,
        ),
        origins: setting.origins.iter().copied().map(Origin::new).collect(),
        requests: Slab::new(),
        issued: 0,
        next_serial: 0,
        measure: Measure::default(),
        over_limit: 0,
    };
    simulation.run();
    let left_over = simulation.proxy.held();
    simulation.measure.figures(left_over, simulation.over_limit)
}

impl Simulation<'_> {
    fn run(&mut self) {
        for fault in &self.setting.faults {
            self.agenda.plan(fault.at, Event::Change(*fault));
        }
        self.agenda.plan(TICK, Event::Tick);
        match self.setting.workload.arrivals {
            Arrivals::Closed { clients } => {
                for client in 0..clients {
                    let client = Some(client);
                    self.agenda.plan(Duration::ZERO, Event::Arrive { client });
                }
            }
            Arrivals::Open { .. } => self.plan_arrival(),
        }
        while let Some(event) = self.agenda.next_event() {
            self.handle(event);
            while let Some(slot) = self.proxy.next_woken() {
                self.go_on(slot);
            }
            if !self.is_open() && self.requests.is_empty() {
                break;
            }
        }
    }

    /// Whether there are arrivals to come.
    fn is_open(&self) -> bool {
        self.issued < self.setting.workload.requests
    }

    fn plan_arrival(&mut self) {
        if let Arrivals::Open { per_second } = self.setting.workload.arrivals
            && self.is_open()
        {
            let at = self.agenda.now() + self.source.gap(per_second);
            self.agenda.plan(at, Event::Arrive { client: None });
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.agenda.now();
        match event {
            Event::Arrive { client } => {
                self.arrive(client);
                self.plan_arrival();
            }
            Event::Finish { origin, what } => {
                let (over, due) = self.origins[origin].finish(what, now);
                self.plan_finish(origin, due);
                if let Some(attempt) = over {
                    self.attempt_over(attempt, Outcome::Answered);
                }
            }
            Event::Error { attempt } => self.attempt_over(attempt, Outcome::Failed),
            Event::QueueTimeout { attempt } => self.queue_timeout(attempt),
            Event::Change(fault) => {
                let (lost, due) = self.origins[fault.origin].change(fault.condition, now);
                self.plan_finish(fault.origin, due);
                for attempt in lost {
                    self.attempt_over(attempt, Outcome::Broken);
                }
            }
            Event::Tick => {
                let origins = &self.origins;
                self.proxy.tick(self.agenda.instant(), |endpoint| {
                    origins[endpoint].condition() != Condition::Down
                });
                self.agenda.plan(now + TICK, Event::Tick);
            }
        }
    }

    fn plan_finish(&mut self, origin: usize, due: Option<Due>) {
        if let Some(Due { at, what }) = due {
            self.agenda.plan(at, Event::Finish { origin, what });
        }
    }

    fn arrive(&mut self, client: Option<u32>) {
        if !self.is_open() {
            return;
        }
        let workload = &self.setting.workload;
        let is_measured = self.issued >= workload.warm_up;
        self.issued += 1;
        self.measure.arrived(self.agenda.now(), is_measured);
        let work = self.source.work(&workload.service_time);
        let workers = self.setting.balancers.count();
        let worker = match client {
            Some(client) => client as usize % workers,
            None => self.source.balancer(workers),
        };
        let slot = self.requests.insert(SimulatedRequest {
            client,
            worker,
            arrived: self.agenda.now(),
            is_measured,
            work,
            tried: Vec::new(),
            retries_left: self.setting.retries,
            waited: Duration::ZERO,
            serial: 0,
            stage: Stage::Asking,
        });
        self.ask(slot);
    }

    /// Asks for endpoints until the request is on its way, waits or is over.
    fn ask(&mut self, slot: usize) {
        loop {
            let reservation = match self.acquire(slot) {
                Acquired::Reserved { reservation, .. } => reservation,
                Acquired::Queued(ticket) => return self.wait(slot, ticket),
                Acquired::Refused(_) => return self.end(slot, End::Refused),
            };
            if self.send(slot, reservation) != Sent::No {
                return;
            }
        }
    }

    fn acquire(&mut self, slot: usize) -> Acquired {
        let now = self.agenda.instant();
        let request = &self.requests[slot];
        let asking = SlotRequest {
            tried: &request.tried,
            key: request.work.key,
            pinned_to: None,
            lane: self.lane(request),
            priority: 0,
            arrived: now - (self.agenda.now() - request.arrived),
            now,
        };
        self.proxy.acquire(request.worker, slot, &asking)
    }

    fn lane(&self, request: &SimulatedRequest) -> Option<usize> {
        let is_slow = request.work.class == Class::Slow;
        (is_slow && self.policy.slow_lane.is_some()).then_some(0)
    }

    fn wait(&mut self, slot: usize, ticket: Ticket) {
        let since = self.agenda.now();
        let attempt = self.next_attempt(slot);
        self.requests[slot].stage = Stage::Waiting { ticket, since };
        let at = since + self.setting.queue_timeout;
        self.agenda.plan(at, Event::QueueTimeout { attempt });
    }

    fn next_attempt(&mut self, slot: usize) -> AttemptId {
        self.next_serial += 1;
        let serial = self.next_serial;
        self.requests[slot].serial = serial;
        AttemptId { slot, serial }
    }

    /// Continues a request that was woken: it has a slot, or its time in the queue is over.
    fn go_on(&mut self, slot: usize) {
        let Some(request) = self.requests.get_mut(slot) else {
            return;
        };
        let Stage::Waiting { ticket, since } = &request.stage else {
            return;
        };
        let Some(left) = self.proxy.poll(request.worker, slot, ticket) else {
            return;
        };
        request.waited += self.agenda.now() - *since;
        match left {
            Left::Granted(reservation) => self.send_or_ask(slot, reservation),
            Left::TimedOut => self.end(slot, End::TimedOut),
            Left::Refused(_) => self.end(slot, End::Refused),
        }
    }

    fn queue_timeout(&mut self, attempt: AttemptId) {
        let slot = attempt.slot;
        let request = match self.requests.get_mut(slot) {
            Some(request) if request.serial == attempt.serial => request,
            _ => return,
        };
        match std::mem::replace(&mut request.stage, Stage::Asking) {
            Stage::Waiting { ticket, since } => {
                request.waited += self.agenda.now() - since;
                match self.proxy.leave(request.worker, ticket) {
                    Some(reservation) => self.send_or_ask(slot, reservation),
                    None => self.end(slot, End::TimedOut),
                }
            }
            stage => request.stage = stage,
        }
    }

    fn send_or_ask(&mut self, slot: usize, reservation: Reservation) {
        if self.send(slot, reservation) == Sent::No {
            self.ask(slot);
        }
    }

    /// Sends a request to the endpoint at which it has a slot.
    fn send(&mut self, slot: usize, reservation: Reservation) -> Sent {
        let endpoint = reservation.endpoint();
        let now = self.agenda.now();
        let attempt = self.next_attempt(slot);
        let request = &mut self.requests[slot];
        request.stage = Stage::At {
            reservation,
            since: now,
        };
        let in_flight = self.proxy.in_flight(request.worker, endpoint);
        let is_over = self.policy.max_in_flight.is_some_and(|max| in_flight > max);
        self.over_limit += u64::from(is_over);
        let origin = endpoint.index();
        match self.origins[origin].condition() {
            Condition::Up { .. } => {
                let due = self.origins[origin].begin(attempt, request.work.time, now);
                self.plan_finish(origin, due);
                Sent::Yes
            }
            Condition::Failing { after } => {
                self.agenda.plan(now + after, Event::Error { attempt });
                Sent::Yes
            }
            Condition::Down => {
                self.give_back(slot, Outcome::Unreachable);
                self.try_elsewhere(slot, endpoint, Outcome::Unreachable)
            }
        }
    }

    /// Reports the current attempt and releases its slot. Returns its endpoint.
    fn give_back(&mut self, slot: usize, outcome: Outcome) -> Option<EndpointId> {
        let request = &mut self.requests[slot];
        let Stage::At { reservation, since } = request.stage else {
            return None;
        };
        request.stage = Stage::Asking;
        let over = AttemptOver {
            reservation,
            outcome,
            took: self.agenda.now() - since,
            now: self.agenda.instant(),
        };
        let request = &self.requests[slot];
        let lane = self.lane(request);
        self.proxy.attempt_over(request.worker, lane, &over);
        Some(reservation.endpoint())
    }

    /// As the exchanges of the program do: one that nothing was sent of waits
    /// for the endpoint where it may, and costs no retry then.
    fn try_elsewhere(&mut self, slot: usize, endpoint: EndpointId, outcome: Outcome) -> Sent {
        let now = self.agenda.instant();
        let worker = self.requests[slot].worker;
        let tried = match outcome {
            Outcome::Unreachable => self.proxy.refused_until(worker, endpoint, now + PAUSE),
            _ => Tried::Sent { endpoint },
        };
        let is_held = outcome == Outcome::Unreachable && self.policy.queue.hold;
        let request = &mut self.requests[slot];
        if request.retries_left == 0 && !is_held {
            self.end(slot, End::Unreachable);
            return Sent::Over;
        }
        if !is_held {
            request.retries_left -= 1;
        }
        request.tried.push(tried);
        Sent::No
    }

    fn attempt_over(&mut self, attempt: AttemptId, outcome: Outcome) {
        let slot = attempt.slot;
        let request = self.requests.get(slot);
        if request.is_none_or(|request| request.serial != attempt.serial) {
            return;
        }
        let Some(endpoint) = self.give_back(slot, outcome) else {
            return;
        };
        match outcome {
            Outcome::Answered => self.end(slot, End::Answered),
            Outcome::Failed => self.end(slot, End::Failed),
            Outcome::Unreachable | Outcome::Broken => {
                if self.try_elsewhere(slot, endpoint, outcome) == Sent::No {
                    self.ask(slot);
                }
            }
        }
    }

    fn end(&mut self, slot: usize, end: End) {
        let request = self.requests.remove(slot);
        let over = Over {
            end,
            class: request.work.class,
            arrived: request.arrived,
            at: self.agenda.now(),
            waited: request.waited,
            is_measured: request.is_measured,
        };
        self.measure.over(&over, self.is_open());
        if request.client.is_some() {
            let client = request.client;
            let now = self.agenda.now();
            self.agenda.plan(now, Event::Arrive { client });
        }
    }
}
