//! Lists of endpoints that change again and again: by file, by name and by hand.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use super::ledger::{Closes, Ledger};
use super::load::Load;
use super::origin::CountingOrigin;
use super::site::{OPERATED, Site};
use super::{Limit, Report};
use crate::dns::NameServer;

/// Number of an upstream's names that change together. Each one counts as a change.
const NAMES: u8 = 10;

/// How often.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Changes of the file.
    pub of_file: u64,
    /// Changes of all names.
    pub of_names: u64,
    /// Changes by hand.
    pub by_hand: u64,
    /// The load, on a listener.
    pub load: fn(SocketAddr) -> Load,
}

impl Plan {
    /// A thousand.
    pub const WHOLE: Plan = Plan {
        of_file: 330,
        of_names: 34,
        by_hand: 330,
        load: Load::full,
    };
    /// Some dozens.
    pub const PART: Plan = Plan {
        of_file: 25,
        of_names: 3,
        by_hand: 25,
        load: Load::short,
    };
}

/// The addresses of an upstream's endpoints, all with the same port.
#[derive(Debug, Clone, Copy)]
struct Places(u8);

impl Places {
    const FILE: Places = Places(1);
    const NAMES: Places = Places(2);
    const HAND: Places = Places(3);

    fn at(self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, self.0, last)
    }

    /// The endpoint that stays.
    fn staying(self) -> Ipv4Addr {
        self.at(1)
    }

    fn upstream(self) -> &'static str {
        ["file", "names", "hand"][usize::from(self.0) - 1]
    }
}

/// The endpoint with the limit, which stays as well.
const WAITING: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 10);

struct Suite {
    site: Site,
    origin: CountingOrigin,
    ledger: Ledger,
}

/// Runs it.
///
/// # Errors
/// Something can't be started.
pub fn run(program: &Path, plan: &Plan) -> io::Result<Report> {
    let origin = CountingOrigin::start()?;
    let mut names = NameServer::new()?;
    names.start(&hosts(0), &[])?;
    let dir = crate::temp::TempDir::new()?;
    let file = dir.join("list.json");
    std::fs::write(&file, list(0, &origin))?;
    let config = configuration(&origin, names.port, &file);
    let suite = Suite {
        site: Site::start(program, &config)?,
        origin,
        ledger: Ledger::default(),
    };
    let mut load = (plan.load)(suite.site.address("web"));
    load.paths = ["file", "names", "hand"]
        .map(|it| format!("/{it}/ping"))
        .into();
    let began = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        load.start(scope, &suite.ledger);
        let (suite, file, names) = (&suite, &file, &names);
        let changing = [
            scope.spawn(move || suite.change_file(plan.of_file, file)),
            scope.spawn(move || suite.change_names(plan.of_names, names)),
            scope.spawn(move || suite.change_by_hand(plan.by_hand)),
        ];
        let done = changing.map(|it| it.join().unwrap_or_default());
        suite.ledger.end();
        done.iter().sum()
    });
    let took = began.elapsed();
    let wanted = plan.of_file + plan.of_names * u64::from(NAMES) + plan.by_hand;
    let mut report = Report::of(format!("{wanted} changes of lists under load"));
    let all = Limit::AtLeast(wanted as f64);
    report.require("changes in force", done, all);
    report.tell("seconds", took.as_secs_f64());
    suite
        .ledger
        .report(&mut report, load.web_sockets, Closes::None);
    for places in [Places::FILE, Places::NAMES, Places::HAND] {
        let tally = suite.origin.tally(places.staying());
        let of = format!("endpoint that stays, {}", places.upstream());
        report.tell(format!("{of}: requests"), tally.requests);
        report.require(
            format!("{of}: connections"),
            tally.connections,
            Limit::AtLeast(1.0),
        );
        report.require_none(format!("{of}: of those closed"), tally.closed);
    }
    let waiting = suite.origin.tally(WAITING);
    report.require_none(
        "endpoint with the queue: connections closed",
        waiting.closed,
    );
    Ok(report)
}

/// Which of the four endpoints that come and go are there in a turn: others each time.
fn coming(turn: u64) -> impl Iterator<Item = u8> {
    (0..4_u8)
        .filter(move |it| turn >> it & 1 == 1)
        .map(|it| it + 2)
}

/// The file of a turn.
fn list(turn: u64, origin: &CountingOrigin) -> String {
    let staying = origin.at(Places::FILE.staying());
    let coming = coming(turn).map(|it| {
        let (address, weight) = (origin.at(Places::FILE.at(it)), 1 + turn % 3);
        format!(", {{\"address\": \"{address}\", \"weight\": {weight}}}")
    });
    format!("[\"{staying}\"{}]", coming.collect::<String>())
}

/// The address of a name in a turn.
fn place(name: u8, turn: u64) -> Ipv4Addr {
    Places::NAMES.at(10 + 2 * name + (turn % 2) as u8)
}

/// The hosts of a turn.
fn hosts(turn: u64) -> String {
    let names = (0..NAMES).map(|it| format!("{} n{it}.test\n", place(it, turn)));
    let staying = format!("{} stays.test\n", Places::NAMES.staying());
    names.chain([staying]).collect()
}

fn configuration(origin: &CountingOrigin, resolver: u16, file: &Path) -> String {
    let port = origin.port;
    let names = (0..NAMES).map(|it| format!(", \"n{it}.test:{port}\""));
    let names: String = names.collect();
    let operated = OPERATED.replace(
        "[server]\n",
        &format!("[server]\nresolvers = [\"127.0.0.1:{resolver}\"]\n"),
    );
    let mut text = format!(
        "{operated}[access_log]\npath = \"$DIR/access.log\"\nsample = 0.1\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n"
    );
    for (path, upstream) in [
        ("/file/*", "file"),
        ("/names/*", "names"),
        ("/hand/*", "hand"),
        ("/waiting/*", "waiting"),
        ("/*", "long"),
    ] {
        text += &format!("[[route]]\nmatch = {{ path = \"{path}\" }}\nupstream = \"{upstream}\"\n");
    }
    let pool = "pool = { idle_timeout = \"20m\" }";
    text + &format!(
        "[upstream.file]\nendpoints_file = \"{}\"\n{pool}\n\
         [upstream.names]\nendpoints = [\"stays.test:{port}\"{names}]\n{pool}\n\
         [upstream.hand]\nendpoints = [\"{}\"]\n{pool}\n\
         [upstream.waiting]\nendpoints = [{{ address = \"{}\", max_in_flight = 2 }}]\n\
         queue = {{ timeout = \"50s\" }}\n{pool}\n\
         [upstream.long]\nendpoints = [\"{}\"]\n{pool}\n",
        file.display(),
        origin.at(Places::HAND.staying()),
        origin.at(WAITING),
        origin.at(Ipv4Addr::new(127, 0, 0, 11)),
    )
}

impl Suite {
    /// The endpoints that an upstream has now.
    fn shown(&self, upstream: &str) -> io::Result<BTreeSet<String>> {
        let shown = self.site.json("show upstreams")?;
        let upstreams = shown.as_array().into_iter().flatten();
        let mut named = upstreams.filter(|it| it["name"] == upstream);
        let endpoints = named.next().and_then(|it| it["endpoints"].as_array());
        let names = endpoints.into_iter().flatten();
        let names = names.filter_map(|it| it["name"].as_str().map(str::to_owned));
        Ok(names.collect())
    }

    /// Waits until an upstream has these endpoints, and says whether it came to.
    fn has(&self, places: Places, addresses: impl IntoIterator<Item = Ipv4Addr>) -> bool {
        let addresses = addresses.into_iter().chain([places.staying()]);
        let expected: BTreeSet<_> = addresses.map(|it| self.origin.at(it)).collect();
        let mut shown = BTreeSet::new();
        let is_so = self.site.comes_to(|| {
            shown = self.shown(places.upstream()).unwrap_or_default();
            shown == expected
        });
        if !is_so {
            let upstream = places.upstream();
            let what = format!("upstream {upstream} has {shown:?} and not {expected:?}");
            self.ledger.note(&what);
        }
        is_so
    }

    /// Replaces the file so often; how many changes came into force.
    fn change_file(&self, count: u64, file: &Path) -> u64 {
        let mut done = 0;
        for turn in 1..=count {
            let new = file.with_extension("new");
            let written = std::fs::write(&new, list(turn, &self.origin));
            let replaced = written.and_then(|()| std::fs::rename(&new, file));
            if let Err(error) = replaced {
                self.ledger.note(&format!("the file: {error}"));
            }
            let coming = coming(turn).map(|it| Places::FILE.at(it));
            done += u64::from(self.has(Places::FILE, coming));
        }
        done
    }

    /// Changes all names so often.
    fn change_names(&self, count: u64, names: &NameServer) -> u64 {
        let mut done = 0;
        for turn in 1..=count {
            if let Err(error) = names.change(&hosts(turn)) {
                self.ledger.note(&format!("the names: {error}"));
            }
            let places = (0..NAMES).map(|it| place(it, turn));
            if self.has(Places::NAMES, places) {
                done += u64::from(NAMES);
            }
        }
        done
    }

    /// Adds, sets and removes endpoints, this many changes together.
    fn change_by_hand(&self, count: u64) -> u64 {
        let mut done = 0;
        for turn in 0..count {
            let (one, two) = (Places::HAND.at(2), Places::HAND.at(3));
            let weight = 1 + turn % 5;
            let (verb, place, options, then): (_, _, _, &[_]) = match turn % 6 {
                0 => ("add", one, "", &[one]),
                1 => ("add", two, "--tier 0 --weight", &[one, two]),
                2 => ("set", one, "--weight", &[one, two]),
                3 => ("remove", one, "", &[two]),
                4 => ("set", two, "--max-in-flight 20 --weight", &[two]),
                _ => ("remove", two, "", &[]),
            };
            let weight = if options.ends_with("--weight") {
                weight.to_string()
            } else {
                String::new()
            };
            let place = format!("hand/{}", self.origin.at(place));
            let words = format!("ctl endpoint {verb} {place} {options} {weight}");
            match self.command(&words) {
                Ok(()) => done += u64::from(self.has(Places::HAND, then.iter().copied())),
                Err(error) => self.ledger.note(&format!("{words}: {error}")),
            }
            // About as long as the other changes take.
            std::thread::sleep(Duration::from_millis(20));
        }
        done
    }

    fn command(&self, words: &str) -> io::Result<()> {
        let words: Vec<_> = words.split_whitespace().collect();
        let output = self.site.evenkeel(&words)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(said.into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_is_another_list() {
        let origin = CountingOrigin::start().unwrap();
        for turn in 0..100 {
            let places = |turn| coming(turn).collect::<Vec<_>>();
            assert_ne!(places(turn), places(turn + 1));
            assert_ne!(hosts(turn), hosts(turn + 1));
        }
        let listed = list(3, &origin);
        assert_eq!(listed.matches("127.0.1.").count(), 3, "{listed}");
    }
}
