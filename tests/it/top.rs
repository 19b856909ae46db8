//! `evenkeel top` in a pseudo-terminal: its screens, and the effects of keys.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::process::run;
use evenkeel_testkit::{OriginHandle, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::setup::{Site, origin, program, test};

/// The program in a pseudo-terminal; killed on drop.
pub struct Terminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// The settings of the terminal before, which must be restored.
    before: Termios,
    side: OwnedFd,
    _reader: JoinHandle<()>,
}

impl Terminal {
    pub fn start(mut command: Command, rows: u16, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let main = openpt(flags).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let mut options = File::options();
        let options = options.read(true).write(true);
        let side = options.open(name.to_str().unwrap()).unwrap();
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&side, size).unwrap();
        let before = tcgetattr(&side).unwrap();
        let stdio = || Stdio::from(side.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.env("TERM", "xterm-256color").spawn().unwrap();
        let keys = File::from(main);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let mut output = keys.try_clone().unwrap();
        let shown = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..len]);
            }
        });
        Terminal {
            child,
            keys,
            screen,
            before,
            side: side.into(),
            _reader: reader,
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    #[track_caller]
    pub fn await_text(&self, text: &str) {
        if !holds_within(Duration::from_secs(10), || self.text().contains(text)) {
            panic!("{text:?} is not on the screen:\n{}", self.text());
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        let mut screen = self.screen.lock().unwrap();
        screen.screen_mut().set_size(rows, columns);
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.side, size).unwrap();
        // The kernel tells only those whose controlling terminal it is.
        self.signal(Signal::WINCH);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn await_end(&mut self) -> ExitStatus {
        let mut status = None;
        until("it has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Checks that the terminal is restored: cooked, its main screen, a cursor.
    #[track_caller]
    fn assert_restored(&self) {
        let now = tcgetattr(&self.side).unwrap();
        assert_eq!(now.local_modes, self.before.local_modes);
        assert_eq!(now.input_modes, self.before.input_modes);
        until("the main screen is back", || {
            let parser = self.screen.lock().unwrap();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn top(proxy: &Proxy) -> Command {
    top_at(&proxy.path("control.sock"))
}

fn top_at(socket: &Path) -> Command {
    let mut command = Command::new(program());
    command
        .args(["top", "--interval", "0.3", "--socket"])
        .arg(socket);
    command
}

const SERVER: &str = "control = \"$DIR/control.sock\"";

/// Two origins, and the program before them.
fn site() -> ([OriginHandle; 2], [String; 2], Proxy) {
    let origins = [origin(), origin()];
    let names = origins.each_ref().map(|it| it.address.to_string());
    let site = Site {
        server: SERVER,
        ..Site::default()
    };
    let proxy = site.start(&names);
    (origins, names, proxy)
}

fn state_of(proxy: &Proxy, endpoint: &str) -> String {
    let mut command = Command::new(program());
    command.args(["ctl", "--json", "--socket"]);
    command
        .arg(proxy.path("control.sock"))
        .args(["show", "upstreams"]);
    let output = run(command, Duration::from_secs(10)).unwrap();
    let upstreams: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let endpoints = upstreams[0]["endpoints"].as_array().unwrap();
    let found = endpoints.iter().find(|it| it["name"] == endpoint).unwrap();
    found["state"].as_str().unwrap().to_owned()
}

#[test]
fn an_endpoint_is_drained_by_keys() {
    test(|| {
        let (_origins, names, proxy) = site();
        let mut terminal = Terminal::start(top(&proxy), 24, 80);
        terminal.await_text("2/2 up");
        terminal.await_text(&names[1]);
        let mut client = proxy.client();
        let serves = || {
            assert_eq!(client.get("/ping").unwrap().status, 200);
            terminal.text().contains("us") || terminal.text().contains("ms")
        };
        until("traffic is seen", serves);
        // The second endpoint, by way of the first.
        terminal.press("jj");
        terminal.press("d");
        terminal.await_text(&format!("drain endpoint app/{}?", names[1]));
        assert_eq!(state_of(&proxy, &names[1]), "up");
        terminal.press("y");
        terminal.await_text("is drained: it gets no new requests");
        terminal.await_text("draining");
        terminal.await_text("1/2 up");
        assert_eq!(state_of(&proxy, &names[1]), "draining");
        assert_eq!(state_of(&proxy, &names[0]), "up");
        terminal.press("ry");
        terminal.await_text("2/2 up");
        terminal.press("w7\r");
        terminal.await_text("is at weight 7");
        // Arrow keys and an order.
        terminal.press("\x1b[A\x1b[A");
        terminal.await_text("upstream app: balance adaptive");
        terminal.press("o");
        terminal.await_text("*FLIGHT");
        terminal.press("?");
        terminal.await_text("change the weight");
        terminal.press("q");
        terminal.press("q");
        assert!(terminal.await_end().success());
        terminal.assert_restored();
    });
}

#[test]
fn a_signal_restores_the_terminal_and_a_resize_is_followed() {
    test(|| {
        let (_origins, names, proxy) = site();
        let mut terminal = Terminal::start(top(&proxy), 24, 80);
        terminal.await_text(&names[0]);
        assert!(!terminal.text().contains("WEIGHT"));
        terminal.resize(30, 130);
        terminal.await_text("WEIGHT");
        // Names and figures are there, side by side.
        terminal.resize(9, 50);
        let [port, _] = names.each_ref().map(|it| it.rsplit(':').next().unwrap());
        let row = || {
            let text = terminal.text();
            let row = text.lines().find(|it| it.contains(port));
            row.map(str::to_owned)
        };
        until("the row of an endpoint has its figures", || {
            row().is_some_and(|row| {
                let words: Vec<_> = row.split_whitespace().collect();
                row.starts_with(" 127.") && words[1..] == ["up", "0", "0", "0", "-"]
            })
        });
        let titles = ["STATE", "FLIGHT", "REQ/S", "ERR/S", "P99"];
        for shown in [&titles[..], &["evenkeel", "2/2 up", "q quit"]].concat() {
            terminal.await_text(shown);
        }
        terminal.resize(3, 10);
        terminal.await_text("too small");
        terminal.resize(24, 80);
        terminal.await_text("UPSTREAM, ENDPOINT");
        // The rest of a key may never come.
        terminal.press("\x1b[");
        terminal.resize(3, 10);
        terminal.await_text("too small");
        terminal.signal(Signal::TERM);
        assert!(terminal.await_end().success());
        terminal.assert_restored();
    });
}

/// The key itself, beside arrow keys, which begin with the same byte.
#[test]
fn esc_quits() {
    test(|| {
        let (_origins, names, proxy) = site();
        let mut terminal = Terminal::start(top(&proxy), 24, 80);
        terminal.await_text(&names[0]);
        terminal.press("\x1b[B\x1b[B\x1bOA");
        terminal.await_text(&format!("app/{}: weight", names[0]));
        // The key closes the open panel first.
        terminal.press("?");
        terminal.await_text("change the weight");
        terminal.press("\x1b");
        until("the help is closed", || {
            !terminal.text().contains("change the weight")
        });
        terminal.press("/");
        terminal.await_text("Enter keeps it");
        terminal.press("nothing\r");
        terminal.await_text("Esc shows all");
        // Two of them in one read are one key.
        until("the rows are hidden", || {
            !terminal.text().contains(&names[1])
        });
        terminal.press("\x1b");
        terminal.await_text(&names[1]);
        until("all of it is drawn", || {
            !terminal.text().contains("Esc shows all")
        });
        assert!(terminal.child.try_wait().unwrap().is_none());
        terminal.press("\x1b");
        assert!(terminal.await_end().success());
        terminal.assert_restored();
    });
}

#[test]
fn no_colour_where_none_is_wanted() {
    test(|| {
        let (_origins, names, proxy) = site();
        for (value, has_colour) in [("", true), ("1", false)] {
            let mut command = top(&proxy);
            command.env("NO_COLOR", value);
            let terminal = Terminal::start(command, 24, 80);
            terminal.await_text(&names[0]);
            let parser = terminal.screen.lock().unwrap();
            let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
            let coloured = cells
                .filter_map(|(row, column)| parser.screen().cell(row, column))
                .any(|cell| cell.fgcolor() != vt100::Color::Default);
            assert_eq!(coloured, has_colour, "NO_COLOR={value:?}");
        }
    });
}

#[test]
fn a_program_that_is_started_anew_is_found_again() {
    test(|| {
        let socket = evenkeel_testkit::TempDir::new().unwrap();
        let path = socket.join("control.sock");
        let server = format!("control = {path:?}");
        let origin = origin();
        let site = Site {
            server: &server,
            ..Site::default()
        };
        let start = || site.start(&[origin.address.to_string()]);
        let first = start();
        let mut terminal = Terminal::start(top_at(&path), 24, 100);
        terminal.await_text("1/1 up");
        drop(first);
        terminal.await_text("no answer, trying again");
        let _second = start();
        terminal.await_text("the program was restarted");
        terminal.press("\x03");
        assert!(terminal.await_end().success());
        terminal.assert_restored();
    });
}

#[test]
fn without_a_terminal_it_is_one_plain_picture() {
    test(|| {
        let (_origins, names, proxy) = site();
        let output = run(top(&proxy), Duration::from_secs(10)).unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("upstream app") && text.contains(&names[0]),
            "{text}"
        );
        assert!(!text.contains('\x1b'), "{text:?}");
        let mut command = Command::new(program());
        command.args(["top", "--socket", "/nowhere/control.sock"]);
        let output = run(command, Duration::from_secs(10)).unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("no such socket"), "{said}");
    });
}
