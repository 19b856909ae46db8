use proptest::prelude::*;

use super::*;
use crate::object::tests::{NOW, SECRET, object};

fn order(path: &str, strength: Strength) -> Order {
    let url = format!("http://example.com{path}");
    Order::new(Purge::Url(url.as_bytes()), strength)
}

fn begun(epoch: u64) -> Entry {
    Entry {
        position: Position { epoch, number: 1 },
        event: Event::Begun,
    }
}

fn purged(epoch: u64, number: u64, by: Author, order: &Order) -> Entry {
    Entry {
        position: Position { epoch, number },
        event: Event::Purged {
            by,
            order: order.clone(),
        },
    }
}

const OTHER: Author = Author {
    machine: 2,
    serial: 1,
};

/// A ledger of machine 1 at the start of log 7, with stores whose count is 0.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new(1);
    ledger.restart(&begun(7));
    assert_eq!(ledger.apply(&SECRET, begun(7)), Ok(None));
    ledger.note_count(1, 0);
    ledger
}

#[test]
fn what_is_too_long_purges_more() {
    let long = vec![b'a'; MAX_TEXT_BYTES + 1];
    for (what, kind, len) in [
        (Purge::Url(&long), Kind::Prefix, MAX_TEXT_BYTES),
        (Purge::Prefix(&long), Kind::Prefix, MAX_TEXT_BYTES),
        (Purge::Tag(&long), Kind::Everything, 0),
        (Purge::Url(&long[1..]), Kind::Url, MAX_TEXT_BYTES),
        (Purge::Everything, Kind::Everything, 0),
    ] {
        let order = Order::new(what, Strength::Soft);
        assert_eq!((order.kind, order.text.len()), (kind, len));
        assert_eq!(order.strength, Strength::Soft);
    }
    for (at, (kind, word)) in Kind::WORDS.into_iter().enumerate() {
        assert_eq!((kind as usize, kind.word()), (at, word));
    }
}

#[test]
fn takes_entries_in_order_alone() {
    let mut ledger = Ledger::new(1);
    assert_eq!(ledger.apply(&SECRET, begun(7)), Err(Gap));
    ledger.restart(&begun(7));
    let a = order("/a", Strength::Hard);
    assert_eq!(ledger.apply(&SECRET, purged(7, 2, OTHER, &a)), Err(Gap));
    assert_eq!(ledger.apply(&SECRET, begun(7)), Ok(None));
    assert_eq!(ledger.apply(&SECRET, begun(7)), Err(Gap));
    for (epoch, number, expected) in [
        (7, 3, Err(Gap)),
        (8, 2, Err(Gap)),
        (7, 2, Ok(Some(a.clone()))),
        (7, 2, Err(Gap)),
    ] {
        let found = ledger.apply(&SECRET, purged(epoch, number, OTHER, &a));
        assert_eq!(found, expected, "{epoch} {number}");
    }
    let position = Position {
        epoch: 7,
        number: 2,
    };
    assert_eq!(ledger.position(), Some(position));
}

#[test]
fn a_purge_holds_for_what_was_asked_for_before() {
    let mut ledger = ledger();
    let before = ledger.position().unwrap();
    let judge = |ledger: &Ledger, path: &str, position| {
        let object = object(path, "", "", b"", 0);
        let fate = ledger.judge(&SECRET, &object, position);
        (fate, object.stored(NOW).is_purged, object.seen())
    };
    assert_eq!(judge(&ledger, "/a", before), (Fate::Alive, false, 0));
    let given = ledger.apply(&SECRET, purged(7, 2, OTHER, &order("/a", Strength::Soft)));
    ledger.note_count(2, 10);
    assert!(matches!(given, Ok(Some(_))));
    let given = ledger.apply(&SECRET, purged(7, 3, OTHER, &order("/b", Strength::Hard)));
    // The stores here have not had it yet.
    assert!(matches!(given, Ok(Some(_))));
    let after = ledger.position().unwrap();
    assert_eq!(judge(&ledger, "/a", before), (Fate::Alive, true, 10));
    assert_eq!(judge(&ledger, "/a", after), (Fate::Alive, false, 10));
    assert_eq!(judge(&ledger, "/b", before).0, Fate::Gone);
    assert_eq!(judge(&ledger, "/b", after), (Fate::Alive, false, 10));
    for position in [
        Position { epoch: 8, ..after },
        Position { number: 0, ..after },
    ] {
        assert_eq!(judge(&ledger, "/c", position).0, Fate::Gone);
    }
}

#[test]
fn objects_have_the_position_of_when_they_were_asked_for() {
    let mut ledger = ledger();
    let mut position_of = |count: u64, number: u64, seen: u64| {
        ledger.note_count(number, count);
        let position = ledger.position_of(&object("/", "", "", b"", seen));
        position.map(|it| it.number)
    };
    assert_eq!(position_of(5, 2, 5), Some(2));
    assert_eq!(position_of(5, 2, 4), Some(1));
    assert_eq!(position_of(7, 4, 6), Some(2));
    assert_eq!(position_of(7, 4, 9), Some(4));
    for number in 0..MAX_COUNTS as u64 {
        ledger.note_count(5 + number, 8 + number);
    }
    // The object is older than the known positions.
    assert_eq!(ledger.position_of(&object("/", "", "", b"", 7)), None);
}

#[test]
fn purges_of_this_machine_hold_until_the_log_has_them() {
    let mut ledger = ledger();
    let judge = |ledger: &Ledger, number| {
        let position = Position { epoch: 7, number };
        ledger.judge(&SECRET, &object("/a", "", "", b"", 0), position)
    };
    let a = order("/a", Strength::Hard);
    let serial = ledger.purge(&SECRET, a.clone());
    // The pending purge holds at any position, since other machines do not know it.
    assert_eq!(judge(&ledger, 1), Fate::Gone);
    assert_eq!(judge(&ledger, 9), Fate::Gone);
    // An answer of the local stores must not count as newer than the purge.
    assert_eq!(ledger.next_pending(), None);
    ledger.note_purged(serial);
    let (by, next) = ledger.next_pending().unwrap();
    assert_eq!((by.machine, by.serial, next), (1, 1, &a));
    // The stores here have had it.
    assert_eq!(ledger.apply(&SECRET, purged(7, 2, by, &a)), Ok(None));
    assert_eq!((ledger.pending(), ledger.next_pending()), (0, None));
    assert_eq!(judge(&ledger, 1), Fate::Gone);
    assert_eq!(judge(&ledger, 2), Fate::Alive);
    // The same purge again waits only once, except the first, which may be on its way.
    let mut open = Vec::new();
    for at in 0..MAX_PENDING - 1 {
        let twice =
            [0; 2].map(|_| ledger.purge(&SECRET, order(&format!("/b{at}"), Strength::Soft)));
        assert_eq!(ledger.pending(), at + 2);
        // Not until both of them are through.
        ledger.note_purged(twice[0]);
        open.push(twice[1]);
    }
    open.push(ledger.purge(&SECRET, order("/c", Strength::Soft)));
    for serial in open {
        assert_eq!(ledger.next_pending(), None);
        ledger.note_purged(serial);
    }
    let (by, next) = ledger.next_pending().unwrap();
    assert_eq!((ledger.pending(), by.serial), (1, MAX_PENDING as u64 + 2));
    assert_eq!(next, &Order::everything(Strength::Hard));
    assert_eq!(judge(&ledger, 9), Fate::Gone);
}

/// Machines with their own stores, and the state that they share.
struct World {
    machines: Vec<Machine>,
    /// The kept part of the log.
    log: Vec<Entry>,
    epoch: u64,
    /// Purges: the path, the time, the machine where it is pending (`None` once the log has
    /// it), and the author.
    purged: Vec<(usize, u64, Option<usize>, Author)>,
    shared: Vec<Stored>,
    time: u64,
}

struct Machine {
    ledger: Ledger,
    count: u64,
    /// Purges that its stores have not had yet.
    running: VecDeque<u64>,
    is_current: bool,
    asked: Vec<(Object, usize, u64)>,
}

struct Stored {
    path: usize,
    asked: u64,
    position: Position,
}

const PATHS: [&str; 3] = ["/a", "/b", "/c"];

#[derive(Debug, Clone)]
enum Step {
    Ask(usize, usize),
    Store(usize),
    Purge(usize, usize),
    Purged(usize),
    Send(usize),
    Receive(usize),
    Trim,
    Lose,
    Get(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let machine = 0..3_usize;
    let path = 0..PATHS.len();
    let step = prop_oneof![
        8 => (machine.clone(), path.clone()).prop_map(|(at, path)| Step::Ask(at, path)),
        8 => machine.clone().prop_map(Step::Store),
        4 => (machine.clone(), path).prop_map(|(at, path)| Step::Purge(at, path)),
        4 => machine.clone().prop_map(Step::Purged),
        4 => machine.clone().prop_map(Step::Send),
        8 => machine.clone().prop_map(Step::Receive),
        1 => Just(Step::Trim),
        1 => Just(Step::Lose),
        8 => machine.prop_map(Step::Get),
    ];
    proptest::collection::vec(step, 1..120)
}

impl World {
    fn new() -> Self {
        let machine = |number| Machine {
            ledger: Ledger::new(number),
            count: 0,
            running: VecDeque::new(),
            is_current: false,
            asked: Vec::new(),
        };
        World {
            machines: (0..3).map(machine).collect(),
            log: vec![begun(1)],
            epoch: 1,
            purged: Vec::new(),
            shared: Vec::new(),
            time: 0,
        }
    }

    /// Makes a machine apply one entry, or all from the beginning if there is a gap.
    fn receive(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        let known = machine.ledger.position().filter(|_| machine.is_current);
        let place = known.and_then(|it| self.log.iter().position(|entry| entry.position == it));
        let Some(place) = place else {
            machine.ledger.restart(&self.log[0]);
            for entry in &self.log {
                let applied = machine.ledger.apply(&SECRET, entry.clone());
                assert!(applied.is_ok(), "{entry:?}");
            }
            // Its own stores are purged of everything.
            machine.count += 1;
            let number = self.log.last().unwrap().position.number;
            machine.ledger.note_count(number, machine.count);
            machine.is_current = true;
            return;
        };
        let Some(entry) = self.log.get(place + 1) else {
            return;
        };
        let number = entry.position.number;
        if let Some(_order) = machine.ledger.apply(&SECRET, entry.clone()).unwrap() {
            machine.count += 1;
        }
        machine.ledger.note_count(number, machine.count);
    }

    fn take(&mut self, step: &Step) {
        self.time += 1;
        match *step {
            Step::Ask(at, path) => {
                let machine = &mut self.machines[at];
                let asked = object(PATHS[path], "", "", b"", machine.count);
                machine.asked.push((asked, path, self.time));
            }
            Step::Store(at) => {
                let machine = &mut self.machines[at];
                let Some((object, path, asked)) = machine.asked.pop() else {
                    return;
                };
                if let Some(position) = machine.ledger.position_of(&object) {
                    self.shared.push(Stored {
                        path,
                        asked,
                        position,
                    });
                }
            }
            Step::Purge(at, path) => {
                let machine = &mut self.machines[at];
                let order = order(PATHS[path], Strength::Hard);
                let serial = machine.ledger.purge(&SECRET, order);
                machine.running.push_back(serial);
                let by = Author {
                    machine: at as u64,
                    serial,
                };
                self.purged.push((path, self.time, Some(at), by));
            }
            Step::Purged(at) => {
                let machine = &mut self.machines[at];
                if let Some(serial) = machine.running.pop_front() {
                    machine.count += 1;
                    machine.ledger.note_purged(serial);
                }
            }
            Step::Send(at) => {
                let Some((by, order)) = self.machines[at].ledger.next_pending() else {
                    return;
                };
                let last = self.log.last().unwrap().position;
                self.log
                    .push(purged(self.epoch, last.number + 1, by, order));
                for it in &mut self.purged {
                    if it.3 == by {
                        it.2 = None;
                    }
                }
            }
            Step::Receive(at) => self.receive(at),
            Step::Trim => {
                let half = self.log.len() / 2;
                self.log.drain(..half);
            }
            // The server lost its log, and may have kept its objects.
            Step::Lose => {
                self.epoch += 1;
                self.log = vec![begun(self.epoch)];
            }
            Step::Get(at) => self.get(at),
        }
    }

    /// A machine asks only while it is where the log is.
    fn get(&self, at: usize) {
        let machine = &self.machines[at];
        let last = self.log.last().unwrap().position;
        if machine.ledger.position() != Some(last) {
            return;
        }
        for it in &self.shared {
            let object = object(PATHS[it.path], "", "", b"", 0);
            if machine.ledger.judge(&SECRET, &object, it.position) == Fate::Gone {
                continue;
            }
            let is_missed = self.purged.iter().any(|(path, when, pending, _)| {
                let is_known = pending.is_none() || *pending == Some(at);
                *path == it.path && *when > it.asked && is_known
            });
            assert!(!is_missed, "{} asked at {}", PATHS[it.path], it.asked);
            assert!(object.seen() <= machine.count);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_from_before_a_purge_lives_after_it(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
    }
}
