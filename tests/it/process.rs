//! The process: ending, draining, running out of descriptors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::{OriginHandle, Proxy, ProxySetup, RawClient, TempDir};
use rustix::process::Signal;

use crate::setup::{
    Site, assert_logged, assert_refused, assert_serves, figures, get, origin, program, site, test,
};
use crate::words::STOPPED;

#[test]
fn term_without_work_ends_at_once_with_success() {
    test(|| {
        let (_origin, mut proxy) = site();
        let mut idle = proxy.client();
        assert_serves(&mut idle);
        let begun = Instant::now();
        proxy.terminate();
        let status = proxy.wait(STEP).expect("it ends");
        assert!(status.success(), "{status}");
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "took {:?}",
            begun.elapsed()
        );
        assert!(idle.is_closed());
    });
}

/// It waits for the first answer of a name server then.
#[test]
fn signals_during_the_start() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let path = dir.path().display().to_string();
        let started = || {
            let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
            let server = format!("resolvers = [\"{}\"]", silent.local_addr().unwrap());
            let site = Site {
                server: &server,
                ..Site::default()
            };
            let config = site.config(&["app.test:80".to_owned()]);
            std::fs::write(dir.join("evenkeel.toml"), config.replace("$DIR", &path)).unwrap();
            let mut command = Command::new(program());
            command
                .args(["run", "--config"])
                .arg(dir.join("evenkeel.toml"))
                .env_remove("container")
                .stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            silent.recv(&mut [0; 512]).unwrap();
            let process = Started {
                child,
                _name_server: silent,
            };
            (process, lines.map(Result::unwrap))
        };
        for (signal, name) in [
            (Signal::TERM, "TERM"),
            (Signal::QUIT, "QUIT"),
            (Signal::INT, "INT"),
        ] {
            let (mut process, mut lines) = started();
            process.signal(signal);
            let said = format!("{name} ended the process before it served");
            assert!(lines.any(|it| it.contains(&said)), "{name}");
            assert!(lines.all(|it| !it.contains("listening")), "{name}");
            assert!(process.child.wait().unwrap().success(), "{name}");
        }
        for (signals, said) in [
            (&[Signal::USR1, Signal::HUP][..], "reloaded: configuration"),
            (&[Signal::USR2], "upgrade: starting"),
        ] {
            let (mut process, mut lines) = started();
            signals.iter().for_each(|it| process.signal(*it));
            assert!(lines.any(|it| it.contains("listener web: listening")));
            assert!(lines.any(|it| it.contains(said)), "{said}");
            process.signal(Signal::TERM);
            assert!(process.child.wait().unwrap().success());
        }
    });
}

/// A process, killed on drop, and the name server that does not answer it.
struct Started {
    child: Child,
    _name_server: UdpSocket,
}

impl Started {
    fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn term_lets_exchanges_finish_and_accepts_no_more() {
    test(|| {
        let (origin, mut proxy) = site();
        let mut busy = proxy.client();
        busy.send(get("/slow/1000")).unwrap();
        until("the request is in flight", || origin.stats().in_flight == 1);
        proxy.terminate();
        let address = proxy.socket_addr("web");
        until("connections are refused", || {
            RawClient::connect(address).is_err()
        });
        let response = busy.read_response("GET").unwrap();
        assert_eq!(response.text(), "pong");
        assert_eq!(response.field("connection"), Some("close"));
        assert!(proxy.wait(STEP).expect("it ends").success());
    });
}

#[test]
fn requests_that_were_sent_before_term_are_answered() {
    test(|| {
        let (_origin, mut proxy) = site();
        let mut idle: Vec<RawClient> = (0..5).map(|_| proxy.client()).collect();
        idle.iter_mut().for_each(assert_serves);
        proxy.signal(Signal::STOP);
        // These are in the accept queue.
        let new = (0..20).map(|_| proxy.client());
        let mut clients: Vec<RawClient> = idle.into_iter().chain(new).collect();
        for client in &mut clients {
            client.send(get("/ping")).unwrap();
        }
        proxy.terminate();
        proxy.signal(Signal::CONT);
        for client in &mut clients {
            let response = client.read_response("GET").unwrap();
            assert_eq!(response.text(), "pong");
            assert!(client.is_closed());
        }
        assert!(proxy.wait(STEP).expect("it ends").success());
    });
}

#[test]
fn draining_has_a_deadline() {
    test(|| {
        let server = "drain_timeout = \"500ms\"";
        let (origin, mut proxy) = Site {
            server,
            ..Site::default()
        }
        .with_origin();
        let mut busy = proxy.client();
        busy.send(get("/slow/60000")).unwrap();
        let mut half = proxy.client();
        half.send(get("/drip/10/60000")).unwrap();
        until("the requests are in flight", || {
            origin.stats().in_flight == 2
        });
        let begun = Instant::now();
        proxy.terminate();
        assert!(proxy.wait(STEP).is_some(), "it waits for ever");
        assert!(
            begun.elapsed() >= Duration::from_millis(450),
            "it did not wait at all"
        );
        let response = busy.read_response("GET").unwrap();
        assert_refused(&response, STOPPED);
        assert_logged(&proxy, STOPPED);
        // This exchange had begun.
        assert!(half.read_response("GET").is_err());
        assert_eq!(proxy.access_log().len(), 2);
        assert!(proxy.stderr().contains("stopped 2"), "{}", proxy.stderr());
    });
}

/// A process that drains, while a request for this path is in flight.
fn draining(path: &str) -> (OriginHandle, Proxy, RawClient) {
    let (origin, proxy) = Site::default().with_origin();
    let mut busy = proxy.client();
    busy.send(get(path)).unwrap();
    until("the request is in flight", || origin.stats().in_flight == 1);
    proxy.terminate();
    until("it drains", || proxy.stderr().contains("TERM: accepting"));
    (origin, proxy, busy)
}

/// Asks the control socket at a path.
fn control(path: &Path, command: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.write_all(format!("{command}\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The configuration of a process that another one with the same configuration can replace.
fn succeeded(dir: &TempDir, status: &str, origin: &OriginHandle) -> String {
    let control = dir.join("control.sock");
    let web = format!("unix:{}", dir.join("web.sock").display());
    let server = format!("control = {control:?}\n[status]\nbind = \"{status}\"");
    let site = Site {
        bind: &web,
        server: &server,
        ..Site::default()
    };
    site.config(&[origin.address.to_string()])
}

#[test]
fn a_successor_starts_while_it_drains_and_keeps_its_sockets() {
    test(|| {
        let (origin, dir) = (origin(), TempDir::new().unwrap());
        let (web, socket) = (dir.join("web.sock"), dir.join("control.sock"));
        let config = succeeded(&dir, "127.0.0.1:0", &origin);
        let mut old = Proxy::start(program(), &config).unwrap();
        let mut busy = RawClient::connect_unix(&web).unwrap();
        busy.send(get("/slow/60000")).unwrap();
        until("the request is in flight", || origin.stats().in_flight == 1);
        let status = old.status_address();
        old.terminate();
        until("the addresses are free", || {
            !web.exists() && !socket.exists() && RawClient::connect(status).is_err()
        });
        let config = succeeded(&dir, &status.to_string(), &origin);
        let new = Proxy::start(program(), &config).unwrap();
        assert_serves(&mut RawClient::connect_unix(&web).unwrap());
        assert_eq!(figures(&new)["draining"], false);
        // The old process still reports what it waits for.
        let aside = dir.join(&format!("control.sock.{}", old.pid()));
        let shown = control(&aside, "show sessions").unwrap();
        assert!(shown.contains("GET /slow/60000"), "{shown}");
        assert!(old.stderr().contains(&aside.display().to_string()));
        until("the second signal is another wish", || {
            old.terminate();
            old.has_ended()
        });
        assert_refused(&busy.read_response("GET").unwrap(), STOPPED);
        assert!(!aside.exists());
        assert_serves(&mut RawClient::connect_unix(&web).unwrap());
        let shown = control(&socket, "show queue").unwrap();
        assert!(!shown.starts_with("error"), "{shown}");
    });
}

#[test]
fn sockets_that_a_successor_put_in_their_place_stay() {
    test(|| {
        let (origin, dir) = (origin(), TempDir::new().unwrap());
        let config = succeeded(&dir, "127.0.0.1:0", &origin)
            .replace(
                "[status]\nbind = \"127.0.0.1:0\"",
                "[status]\nbind = \"unix:$HERE/status.sock\"",
            )
            .replace("$HERE", &dir.path().display().to_string());
        let mut proxy = Proxy::start(program(), &config).unwrap();
        let names = ["web.sock", "control.sock", "status.sock"];
        let successors = names.map(|name| {
            let aside = dir.join("new");
            let listener = UnixListener::bind(&aside).unwrap();
            std::fs::rename(&aside, dir.join(name)).unwrap();
            listener
        });
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
        for name in names {
            assert!(UnixStream::connect(dir.join(name)).is_ok(), "{name}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        drop(successors);
    });
}

#[test]
fn a_start_that_fails_leaves_no_socket_behind() {
    test(|| {
        let (origin, dir) = (origin(), TempDir::new().unwrap());
        let taken = origin.address.to_string();
        let config = succeeded(&dir, &taken, &origin);
        let error = Proxy::start(program(), &config).unwrap_err().to_string();
        assert!(error.contains("status page: bind"), "{error}");
        assert!(!dir.join("web.sock").exists());
    });
}

#[test]
fn quit_drains() {
    test(|| {
        let (_origin, mut proxy) = Site::default().with_origin();
        assert_serves(&mut proxy.client());
        proxy.signal(Signal::QUIT);
        assert!(proxy.wait(STEP).expect("it ends").success());
        assert!(
            proxy
                .stderr()
                .contains("QUIT: accepting no more connections")
        );
    });
}

/// A fixed answer that is longer than the kernel's buffers.
#[test]
fn an_answer_that_the_stop_cuts_was_not_stalled_by_its_client() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let web = dir.join("web.sock");
        let config = format!(
            "[server]\nworkers = 1\ndrain_timeout = \"300ms\"\n\
             [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\
             [[listener]]\nname = \"web\"\nbind = \"unix:{}\"\n\
             [[route]]\nanswer = {{ status = 503, body = \"{}\" }}\n",
            web.display(),
            "x".repeat(4 << 20)
        );
        let mut proxy = Proxy::start(program(), &config).unwrap();
        let mut client = RawClient::connect_unix(&web).unwrap();
        client.send(get("/")).unwrap();
        client.read_head().unwrap();
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
        assert_logged(&proxy, STOPPED);
    });
}

#[test]
fn a_second_term_cuts_what_is_open() {
    test(|| {
        let (_origin, mut proxy, mut busy) = draining("/slow/60000");
        // At once, as `timeout` does it, it is the same wish.
        proxy.terminate();
        assert!(proxy.wait(Duration::from_millis(600)).is_none());
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
        let response = busy.read_response("GET").unwrap();
        assert_refused(&response, STOPPED);
        let said = proxy.stderr();
        assert!(
            said.contains("TERM again: open connections are cut"),
            "{said}"
        );
    });
}

#[test]
fn files_are_opened_anew_while_it_drains() {
    test(|| {
        let (_origin, mut proxy, mut busy) = draining("/slow/1500");
        let log = proxy.path("access.log");
        std::fs::rename(&log, proxy.path("access.log.1")).unwrap();
        proxy.signal(Signal::USR1);
        until("it is opened anew", || log.exists());
        assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
        assert!(proxy.wait(STEP).expect("it ends").success());
        assert_eq!(proxy.access_log().len(), 1);
    });
}

#[test]
fn a_log_that_nobody_reads_does_not_keep_the_process() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let path = dir.join("log");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        // Holds it open without reading.
        let mut options = std::fs::OpenOptions::new();
        let _pipe = options.read(true).write(true).open(&path).unwrap();
        let origin = origin();
        let config = Site::default()
            .config(&[origin.address.to_string()])
            .replace("$DIR/access.log", path.to_str().unwrap());
        let mut proxy = Proxy::start(program(), &config).unwrap();
        let mut client = proxy.client();
        // More than the pipe holds.
        let target = format!("/ping?{}", "x".repeat(7_000));
        for _ in 0..20 {
            assert_eq!(client.get(&target).unwrap().text(), "pong");
        }
        proxy.terminate();
        assert!(proxy.wait(STEP).is_some(), "it waits for the log");
    });
}

#[test]
fn as_many_descriptors_are_used_as_are_granted_to_who_asks() {
    test(|| {
        let origin = origin();
        let limits = ["prlimit", "--nofile=40:1000"];
        let setup = ProxySetup {
            through: limits.map(str::to_owned).to_vec(),
            ..ProxySetup::default()
        };
        let proxy = Site::default().start_with(&[origin.address.to_string()], &setup);
        let mut crowd: Vec<RawClient> = (0..100).map(|_| proxy.client()).collect();
        crowd.iter_mut().for_each(assert_serves);
    });
}

#[test]
fn who_comes_while_it_starts_takes_no_descriptor_that_it_needs() {
    test(|| {
        let origin = origin();
        // A connect to a port that is not yet bound could take that port.
        let folder = TempDir::new().unwrap();
        let socket = folder.join("web.sock");
        // There before the program is.
        let connecting: Vec<_> = (0..60)
            .map(|_| {
                let socket = socket.clone();
                std::thread::spawn(move || {
                    let mut client = None;
                    until("it listens", || {
                        client = RawClient::connect_unix(&socket).ok();
                        client.is_some()
                    });
                    client
                })
            })
            .collect();
        let setup = ProxySetup {
            open_files: Some(40),
            ..ProxySetup::default()
        };
        let site = Site {
            bind: &format!("unix:{}", socket.display()),
            ..Site::default()
        };
        let _proxy = site.start_with(&[origin.address.to_string()], &setup);
        let crowd: Vec<_> = connecting
            .into_iter()
            .map(|it| it.join().unwrap())
            .collect();
        drop(crowd);
        until("it serves", || {
            let client = RawClient::connect_unix(&socket);
            client.is_ok_and(|mut client| {
                client.set_step(Duration::from_millis(500));
                client.get("/ping").is_ok_and(|it| it.status == 200)
            })
        });
    });
}

#[test]
fn out_of_descriptors_it_waits_without_spinning_and_recovers() {
    test(|| {
        let origin = origin();
        let setup = ProxySetup {
            open_files: Some(40),
            ..ProxySetup::default()
        };
        let proxy = Site::default().start_with(&[origin.address.to_string()], &setup);
        let mut first = proxy.client();
        assert_serves(&mut first);
        // The kernel completes these connections whether accepted or not.
        let crowd: Vec<RawClient> = (0..60).map(|_| proxy.client()).collect();
        until("clients have to leave", || {
            let said = proxy.stderr();
            said.contains("idle client connections are closed to make room")
        });
        let used = cpu_time_of_a_second(&proxy);
        assert!(
            used < Duration::from_millis(300),
            "{used:?} of CPU in a second of waiting"
        );
        assert_serves(&mut first);
        drop(crowd);
        until("it serves new connections again", || {
            let mut client = proxy.client();
            client.set_step(Duration::from_millis(500));
            client
                .get("/ping")
                .is_ok_and(|response| response.status == 200)
        });
    });
}

#[test]
fn a_configuration_with_a_mistake_is_refused_with_its_place() {
    test(|| {
        let config = Site {
            listener: "no_such_key = 1",
            ..Site::default()
        }
        .config(&[]);
        let error = evenkeel_testkit::Proxy::start(crate::setup::program(), &config).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("no_such_key"), "{said}");
        assert!(said.contains("evenkeel.toml"), "{said}");
    });
}

#[test]
fn it_uses_no_cpu_when_there_is_nothing_to_do() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        assert_serves(&mut client);
        let used = cpu_time_of_a_second(&proxy);
        assert!(
            used < Duration::from_millis(100),
            "{used:?} of CPU in an idle second"
        );
    });
}

/// The CPU time that the program uses in the next second.
fn cpu_time_of_a_second(proxy: &Proxy) -> Duration {
    let before = proxy.cpu_time().unwrap();
    let pause = Instant::now();
    until("a second has passed", || {
        pause.elapsed() >= Duration::from_secs(1)
    });
    proxy.cpu_time().unwrap() - before
}

/// A thread of the program that does not run, as one that is caught in a loop
/// does nothing else.
pub struct Frozen(Child);

/// Stops one thread of another process until standard input ends; fails where
/// that is not permitted.
const FREEZE: &str = "
import ctypes, os, sys
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
thread = int(sys.argv[1])
if ptrace(SEIZE, thread, None, None) or ptrace(INTERRUPT, thread, None, None):
    sys.exit('ptrace is not permitted')
os.waitpid(thread, WALL)
print('frozen', flush=True)
sys.stdin.read()
";

impl Frozen {
    /// `None` if this process may not stop threads of other processes.
    pub fn thread(proxy: &Proxy, name: &str) -> Option<Self> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", proxy.pid())).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let is_it = |name_file: std::io::Result<String>| name_file.unwrap().trim_end() == name;
        let task = tasks.find(|task| is_it(std::fs::read_to_string(task.join("comm"))));
        let thread = task.unwrap().file_name().unwrap().to_owned();
        let child = Command::new("python3")
            .args(["-c", FREEZE])
            .arg(thread)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut frozen = Frozen(child.ok()?);
        let mut line = String::new();
        let stdout = frozen.0.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        (line == "frozen\n").then_some(frozen)
    }

    pub fn thaw(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// A stuck worker is reported, and its return too. A stop of the whole process is not reported
/// as a stuck worker.
#[test]
fn a_worker_that_does_not_come_round_is_seen() {
    test(|| {
        let origin = origin();
        let proxy = Proxy::start(
            program(),
            &format!(
                "[server]\nworkers = 2\n[status]\nbind = \"127.0.0.1:0\"\n\
                 [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n[[route]]\nupstream = \"app\"\n\
                 [upstream.app]\nendpoints = [\"{}\"]\n",
                origin.address
            ),
        )
        .unwrap();
        assert_serves(&mut proxy.client());
        proxy.signal(Signal::STOP);
        let begun = Instant::now();
        until("it stood still", || {
            begun.elapsed() >= Duration::from_secs(3)
        });
        proxy.signal(Signal::CONT);
        assert_serves(&mut proxy.client());
        let Some(frozen) = Frozen::thread(&proxy, "worker-1") else {
            eprintln!("skipped: this system lets nobody stop a thread");
            return;
        };
        until("the worker is missed", || {
            proxy.stderr().contains("worker 1 has been stuck for ")
        });
        let stalls = |key: &str| figures(&proxy)[key].clone();
        assert_eq!(
            (stalls("workers_stalled"), stalls("worker_stalls")),
            (1.into(), 1.into())
        );
        frozen.thaw();
        until("the worker is back", || {
            proxy.stderr().contains("worker 1 runs again, after ")
        });
        until("none is stalled", || stalls("workers_stalled") == 0);
        assert_eq!(stalls("worker_stalls"), 1);
        assert!(!proxy.stderr().contains("worker 0 "), "{}", proxy.stderr());
    });
}
