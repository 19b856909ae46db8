//! The access log: one line for each exchange.
//!
//! A worker notes each [`Exchange`] in a buffer of its own ([`Entries`]); full
//! buffers go to the thread that writes their destination, which makes the lines
//! ([`LineMaker`]). A `Record`, or its `Basics`, is what the formats read; each has
//! a file of its own here.

mod clock;
mod combined;
mod entries;
mod escape;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod httplog;
mod json;
mod line;
mod names;
mod record;
mod template;
mod termination;
mod texts;
pub mod writer;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::EndpointState;
use evenkeel_policy::members::Members;

use super::calendar::Moment;
use crate::config::access_log::Selection;
use crate::config::{self, AccessLogFormat, Config};
use crate::metrics::Counter;
use clock::{Clock, Seconds};
use line::{Line, Room};
use names::Names;
use writer::{Destination, LogSender};

pub use entries::{Batch, Entries, HAND_OVER_LEN};
pub use record::{
    AddressText, Exchange, Figures, GrpcStatus, LoggedEndpoint, Open, Phase, Reason, Source,
    StreamPlace, Times,
};

/// One worker's side of the access logs.
#[derive(Debug)]
pub struct AccessLog {
    /// By the slots of destinations.
    pending: RefCell<Vec<Option<Pending>>>,
    clock: Cell<Clock>,
    /// The last second with a `Date`, and that `Date`.
    date: Cell<(u64, [u8; 29])>,
}

/// Exchanges on their way to one destination, all of one generation.
#[derive(Debug)]
struct Pending {
    destination: Destination,
    entries: Entries,
    layout: Arc<Layout>,
}

impl Pending {
    /// The buffer of a destination that has joined. Adds it, or replaces the one of a destination
    /// that left.
    #[cold]
    fn begin<'a>(
        all: &'a mut Vec<Option<Pending>>,
        destination: &Destination,
        generation: &Logs,
    ) -> &'a mut Pending {
        let slot = destination.slot();
        if all.len() <= slot {
            all.resize_with(slot + 1, || None);
        }
        all[slot].insert(Pending {
            destination: destination.clone(),
            entries: Entries::default(),
            layout: generation.layout.borrow().clone(),
        })
    }
}

impl Default for AccessLog {
    fn default() -> Self {
        AccessLog::new()
    }
}

/// The access logs of one generation, as a worker writes to them.
#[derive(Debug)]
pub struct Logs {
    sender: LogSender,
    layout: RefCell<Arc<Layout>>,
    /// The dispatchers of the upstreams: they have the endpoints that joined later.
    dispatchers: Box<[Arc<Dispatcher>]>,
    /// State of each log's sample.
    samples: Box<[Cell<u32>]>,
}

impl Logs {
    /// The logs with this layout and sender, and with the endpoints of these upstreams.
    pub fn new(
        layout: Arc<Layout>,
        sender: LogSender,
        dispatchers: Box<[Arc<Dispatcher>]>,
    ) -> Self {
        Logs {
            sender,
            dispatchers,
            samples: layout.formats.iter().map(|_| Cell::default()).collect(),
            layout: RefCell::new(layout),
        }
    }

    /// Makes sure that the layout has the name of the exchange's endpoint.
    fn name_endpoint(&self, exchange: &Exchange<'_>) {
        let upstream = exchange.figures.upstream.map(|index| index as usize);
        if let Some((upstream, endpoint)) = upstream.zip(exchange.endpoint)
            && !self.knows(upstream, endpoint)
        {
            self.learn_endpoint(upstream, endpoint.state);
        }
    }

    fn knows(&self, upstream: usize, endpoint: LoggedEndpoint<'_>) -> bool {
        let layout = self.layout.borrow();
        layout.names.upstreams[upstream].knows(endpoint.id, endpoint.identity)
    }

    /// Adds an endpoint that joined after the layout was made. Adds all others that joined with
    /// it, as each time copies the upstream's names.
    #[cold]
    fn learn_endpoint(&self, upstream: usize, endpoint: &EndpointState) {
        let mut layout = Layout::clone(&self.layout.borrow());
        let names = Arc::make_mut(&mut layout.names.upstreams[upstream]);
        let members = self.dispatchers[upstream].members();
        members.endpoints().iter().for_each(|it| names.learn(it));
        // The endpoint may have left again.
        names.learn(endpoint);
        self.layout.replace(Arc::new(layout));
    }

    /// Whether an exchange gets a line: where a condition holds, or it belongs
    /// to the sample. `log` is an index in the configuration.
    pub fn selects(
        &self,
        log: usize,
        selection: &Selection,
        is_error: bool,
        total: Duration,
    ) -> bool {
        (selection.errors && is_error)
            || selection.slower_than.is_some_and(|limit| total > limit)
            || is_drawn(&self.samples[log], selection.sample)
    }
}

/// Formats of lines, and the names in them.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The format of each log.
    formats: Arc<[AccessLogFormat]>,
    names: Names,
}

impl Layout {
    /// The layout of this configuration, whose upstreams have these members. Workers add the
    /// endpoints that join later.
    pub fn new(config: &Config, members: &[Arc<Members>]) -> Self {
        let logs = config.access_logs.logs.iter();
        Layout {
            formats: logs.map(|log| log.format.clone()).collect(),
            names: Names::new(config, members),
        }
    }
}

impl AccessLog {
    /// Without any log.
    pub fn new() -> Self {
        let log = AccessLog {
            pending: RefCell::default(),
            clock: Cell::new(Clock::new()),
            date: Cell::new((0, Moment::from_unix(0).http_date())),
        };
        log.http_date(crate::net::clock::now());
        log
    }

    /// Notes an exchange that has ended, for the log with this index of its
    /// generation's.
    ///
    /// Invariant: a batch has exchanges of one generation, whose names are in its
    /// layout. An endpoint that has the id of an earlier one begins another batch.
    pub fn note(
        &self,
        generation: &Logs,
        index: usize,
        log: &config::AccessLog,
        exchange: &Exchange<'_>,
        dropped: &Counter,
    ) {
        let mut pending = self.pending.borrow_mut();
        let destination = generation.sender.destination(log.destination);
        let pending = match pending.get_mut(destination.slot()) {
            Some(Some(pending)) => pending,
            _ => Pending::begin(&mut pending, destination, generation),
        };
        // The other formats show no names.
        if !matches!(log.format, AccessLogFormat::Combined) {
            generation.name_endpoint(exchange);
        }
        if !Arc::ptr_eq(&pending.layout, &generation.layout.borrow()) {
            self.change_layout(pending, generation, dropped);
        }
        pending.entries.push(index, &log.format, exchange);
        if pending.entries.is_full() {
            self.hand_over(pending, dropped);
        }
    }

    #[cold]
    fn change_layout(&self, pending: &mut Pending, generation: &Logs, dropped: &Counter) {
        if !pending.entries.is_empty() {
            self.hand_over(pending, dropped);
        }
        pending.layout = generation.layout.borrow().clone();
    }

    /// Follows changes of the clock, and time in suspension.
    pub fn synchronise_clock(&self) {
        self.clock.set(Clock::new());
    }

    /// Hands over all entries, so that a quiet worker's lines appear.
    pub fn flush(&self, dropped: &Counter) {
        for slot in self.pending.borrow_mut().iter_mut() {
            let Some(pending) = slot else { continue };
            if !pending.entries.is_empty() {
                self.hand_over(pending, dropped);
            }
            if pending.destination.has_left() {
                // The thread ends once no generation has the destination.
                *slot = None;
            }
        }
    }

    /// A moment in microseconds since 1970, without a clock call.
    pub fn unix_us(&self, moment: Instant) -> u64 {
        self.clock.get().unix_us(moment)
    }

    /// `Date` as it was at the worker's last tick, for answers of endpoints that have
    /// none.
    pub fn last_date(&self) -> [u8; 29] {
        self.date.get().1
    }

    /// `Date` of this moment, for answers made here.
    pub fn http_date(&self, now: Instant) -> [u8; 29] {
        let unix_s = self.unix_us(now) / 1_000_000;
        let (known_s, date) = self.date.get();
        if known_s == unix_s {
            return date;
        }
        let date = Moment::from_unix(unix_s).http_date();
        self.date.set((unix_s, date));
        date
    }

    fn hand_over(&self, pending: &mut Pending, dropped: &Counter) {
        let batch = Batch {
            entries: std::mem::take(&mut pending.entries),
            layout: pending.layout.clone(),
            clock: self.clock.get(),
        };
        let destination = &pending.destination;
        pending.entries = destination.send(batch).unwrap_or_else(|unsent| {
            let mut entries = unsent.entries;
            dropped.add(entries.len());
            entries.clear();
            entries
        });
    }
}

/// Makes the lines of exchanges.
#[derive(Debug, Default)]
pub struct LineMaker {
    room: Room,
    seconds: Seconds,
}

impl LineMaker {
    /// Appends the lines of these exchanges to `out`.
    pub fn write(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        let mut reader = batch.reader();
        while let Some((format, basics)) = reader.next() {
            let mut line = Line::new(&mut self.room, out);
            let seconds = &mut self.seconds;
            match format {
                AccessLogFormat::Combined => combined::write(&mut line, &basics, seconds),
                AccessLogFormat::Json => json::write(&mut line, &reader.record(basics), seconds),
                AccessLogFormat::Httplog => {
                    httplog::write(&mut line, &reader.record(basics), seconds);
                }
                AccessLogFormat::Template(template) => {
                    template::write(&mut line, template, &reader.record(basics), seconds);
                }
            }
            line.end();
        }
    }
}

/// Whether the next exchange belongs to a sample of this part.
///
/// A Weyl sequence by the golden ratio: the sample is as evenly spread as can
/// be without following a rhythm that requests may have.
fn is_drawn(state: &Cell<u32>, part: f64) -> bool {
    const STEP: u32 = 0x9E37_79B9;
    if part >= 1.0 {
        return true;
    }
    let next = state.get().wrapping_add(STEP);
    state.set(next);
    f64::from(next) < part * (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use evenkeel_policy::endpoint::{EndpointId, EndpointSettings};

    use super::writer::LogWriter;
    use super::*;
    use crate::config::{NameLookup, load_text};

    /// An access log, and the file that it goes to.
    struct Written {
        log: AccessLog,
        writer: LogWriter,
        path: PathBuf,
        dropped: Counter,
    }

    impl Written {
        fn new(path: PathBuf, writer: LogWriter) -> Self {
            Written {
                log: AccessLog::new(),
                writer,
                path,
                dropped: Counter::default(),
            }
        }

        fn note(&self, config: &Config, logs: &Logs, endpoint: Option<&EndpointState>) {
            let mut figures = Figures::begun(0, 0, crate::net::clock::now());
            figures.upstream = endpoint.map(|_| 0);
            let endpoint = endpoint.map(|state| LoggedEndpoint {
                id: state.id(),
                identity: state.identity(),
                state,
            });
            let exchange = Exchange {
                figures: &figures,
                endpoint,
                client: b"unix",
                buf: b"",
                head: None,
                user: None,
                request_id: None,
                trace_id: None,
                place: StreamPlace::default(),
                open: &Open::default,
            };
            let settings = &config.access_logs.logs[0];
            self.log.note(logs, 0, settings, &exchange, &self.dropped);
        }

        /// The values of this key in all lines.
        fn values(self, key: &str) -> Vec<String> {
            self.log.flush(&self.dropped);
            assert_eq!(self.writer.finish(Duration::from_secs(5)), 0);
            let written = std::fs::read_to_string(&self.path).unwrap();
            std::fs::remove_file(&self.path).unwrap();
            let values = written.lines().map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                line[key].as_str().unwrap().to_owned()
            });
            values.collect()
        }
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()))
    }

    fn config(path: &Path, listener: &str, rest: &str) -> Config {
        let path = path.display();
        let text = format!(
            "[[listener]]\nname = '{listener}'\nbind = ':0'\n\
             access_log = {{ path = '{path}', format = 'json' }}\n\
             [[route]]\n{rest}"
        );
        let loaded = load_text("test.toml", &text, NameLookup::Skip);
        loaded.unwrap().config
    }

    /// Exchanges of two generations end in turn, and each line has the name that
    /// its listener had when the exchange began.
    #[test]
    fn lines_have_the_names_of_their_generation() {
        let path = path("names");
        let configs =
            ["first", "second"].map(|name| config(&path, name, "answer = { status = 204 }"));
        let (sender, writer) = writer::start(&configs[0].access_logs.destinations).unwrap();
        let logs = configs.each_ref().map(|it| {
            Logs::new(
                Arc::new(Layout::new(it, &[])),
                sender.clone(),
                Box::default(),
            )
        });
        let written = Written::new(path, writer);
        for generation in [0, 1, 1, 0] {
            written.note(&configs[generation], &logs[generation], None);
        }
        assert_eq!(
            written.values("listener"),
            ["first", "second", "second", "first"]
        );
    }

    fn settings(name: &str) -> EndpointSettings<'_> {
        EndpointSettings {
            name,
            fingerprint: 0,
            weight: 1,
            max_in_flight: None,
            tier: 0,
        }
    }

    /// Logs whose layout was made before these endpoints joined.
    fn logs_without_members<const N: usize>(
        config: &Config,
        joined: [&str; N],
    ) -> (Logs, LogWriter) {
        let layout = Layout::new(config, &[Arc::default()]);
        let (joined, upstream) = (joined.map(settings), &config.upstreams[0]);
        let (queue, health) = (upstream.queue.settings, upstream.health);
        let now = crate::net::clock::now();
        let dispatcher = Dispatcher::new(joined, &[], queue, health, now);
        let (sender, writer) = writer::start(&config.access_logs.destinations).unwrap();
        let logs = Logs::new(Arc::new(layout), sender, [Arc::new(dispatcher)].into());
        (logs, writer)
    }

    #[test]
    fn endpoints_that_join_together_are_learned_at_once() {
        let path = path("together");
        let config = config(
            &path,
            "web",
            "upstream = 'app'\n[upstream.app]\nendpoints = ['127.0.0.1:1']",
        );
        let (logs, writer) = logs_without_members(&config, ["a", "b", "c"]);
        let written = Written::new(path, writer);
        let members = logs.dispatchers[0].members();
        let mut layouts = Vec::new();
        for endpoint in members.endpoints() {
            written.note(&config, &logs, Some(endpoint));
            layouts.push(logs.layout.borrow().clone());
        }
        assert!(layouts.iter().all(|it| Arc::ptr_eq(it, &layouts[0])));
        assert_eq!(written.values("endpoint"), ["a", "b", "c"]);
    }

    /// Endpoints join after the layout was made, one of them under the id of another
    /// that left.
    #[test]
    fn lines_have_the_names_of_endpoints_that_joined_later() {
        let path = path("endpoints");
        let config = config(
            &path,
            "web",
            "upstream = 'app'\n[upstream.app]\nendpoints = ['127.0.0.1:1']",
        );
        let (logs, writer) = logs_without_members(&config, []);
        let endpoints = [("a", 1), ("b", 0), ("c", 1)]
            .map(|(name, id)| EndpointState::new(EndpointId::new(id), &settings(name)));
        let written = Written::new(path, writer);
        for endpoint in [0, 1, 0, 2, 2] {
            written.note(&config, &logs, Some(&endpoints[endpoint]));
        }
        assert_eq!(written.values("endpoint"), ["a", "b", "a", "c", "c"]);
    }

    #[test]
    fn a_sample_is_as_large_as_asked_for() {
        for (part, expected) in [
            (0.0, 0),
            (0.01, 100),
            (0.25, 2_500),
            (0.5, 5_000),
            (1.0, 10_000),
        ] {
            let state = Cell::default();
            let drawn = (0..10_000).filter(|_| is_drawn(&state, part)).count();
            assert!(drawn.abs_diff(expected) <= 3, "{part}: {drawn}");
        }
    }

    #[test]
    fn a_sample_does_not_follow_a_rhythm() {
        for period in [2, 3, 4, 5, 10] {
            let state = Cell::default();
            let drawn = (0..10_000).filter(|index| is_drawn(&state, 0.1) && index % period == 0);
            let (drawn, expected) = (drawn.count(), 1_000 / period);
            assert!(drawn.abs_diff(expected) <= 10, "{period}: {drawn}");
        }
    }
}
