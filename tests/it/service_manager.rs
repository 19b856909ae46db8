//! The service manager: notifications to it, and how long a stop waits.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::{Proxy, ProxySetup, TempDir};
use rustix::process::Signal;

use crate::process::Frozen;
use crate::setup::{Site, assert_serves, get, nobody, origin, test};

/// A service manager's socket.
pub struct Manager {
    socket: UnixDatagram,
    dir: TempDir,
}

impl Manager {
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let socket = UnixDatagram::bind(dir.join("notify.sock")).unwrap();
        Manager { socket, dir }
    }

    /// The environment of a service.
    pub fn env(&self) -> Vec<(String, String)> {
        let path = self.dir.join("notify.sock").display().to_string();
        vec![("NOTIFY_SOCKET".into(), path)]
    }

    /// The next message.
    pub fn told(&self) -> String {
        self.told_within(STEP).expect("a message")
    }

    fn told_within(&self, limit: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(limit)).unwrap();
        let mut message = [0; 4096];
        let len = self.socket.recv(&mut message).ok()?;
        Some(String::from_utf8_lossy(&message[..len]).into_owned())
    }
}

#[test]
fn the_service_manager_hears_of_the_start_and_of_the_stop() {
    test(|| {
        let (origin, manager) = (origin(), Manager::new());
        let setup = ProxySetup {
            env: manager.env(),
            ..ProxySetup::default()
        };
        let mut proxy = Site::default().start_with(&[origin.address.to_string()], &setup);
        let ready = manager.told();
        let expected = "READY=1\nSTATUS=serving on 1 listener with 1 worker, configuration ";
        assert!(ready.starts_with(expected), "{ready}");
        assert_serves(&mut proxy.client());
        proxy.terminate();
        assert_eq!(
            manager.told(),
            "STOPPING=1\nSTATUS=draining for at most 30s"
        );
        assert!(proxy.wait(STEP).expect("it ends").success());
    });
}

/// A service manager that takes nothing delays no start or stop.
#[test]
fn a_service_manager_that_is_not_there_is_a_warning() {
    test(|| {
        let origin = origin();
        let setup = ProxySetup {
            env: vec![("NOTIFY_SOCKET".into(), "/nowhere/notify.sock".into())],
            ..ProxySetup::default()
        };
        let proxy = Site::default().start_with(&[origin.address.to_string()], &setup);
        assert_serves(&mut proxy.client());
        let said = "service manager: NOTIFY_SOCKET is /nowhere/notify.sock: No such file";
        until("it is said", || proxy.stderr().contains(said));
    });
}

#[test]
fn the_watchdog_hears_only_of_workers_that_come_round() {
    test(|| {
        let (origin, manager) = (origin(), Manager::new());
        let mut env = manager.env();
        env.push(("WATCHDOG_USEC".into(), "2000000".into()));
        let setup = ProxySetup {
            env,
            args: vec!["--set".into(), "server.workers=2".into()],
            ..ProxySetup::default()
        };
        let proxy = Site::default().start_with(&[origin.address.to_string()], &setup);
        assert!(manager.told().starts_with("READY=1"));
        for _ in 0..3 {
            assert_eq!(manager.told(), "WATCHDOG=1");
        }
        let Some(frozen) = Frozen::thread(&proxy, "worker-1") else {
            eprintln!("skipped: this system lets nobody stop a thread");
            return;
        };
        until("the worker is missed", || {
            proxy.stderr().contains("worker 1 has been stuck for ")
        });
        // A sign of life from before may be there still.
        while manager.told_within(Duration::from_millis(50)).is_some() {}
        let silent = manager.told_within(Duration::from_millis(2500));
        assert_eq!(silent, None);
        frozen.thaw();
        assert_eq!(manager.told(), "WATCHDOG=1");
    });
}

/// A process with a deadline of half a second, while a request is in flight.
fn in_flight(
    path: &str,
) -> (
    evenkeel_testkit::OriginHandle,
    Proxy,
    evenkeel_testkit::RawClient,
) {
    let (origin, proxy) = Site {
        server: "drain_timeout = \"500ms\"",
        ..Site::default()
    }
    .with_origin();
    let mut busy = proxy.client();
    busy.send(get(path)).unwrap();
    until("the request is in flight", || origin.stats().in_flight == 1);
    (origin, proxy, busy)
}

#[test]
fn quit_waits_without_a_deadline() {
    test(|| {
        let (_origin, mut proxy, mut busy) = in_flight("/slow/2000");
        proxy.signal(Signal::QUIT);
        let said = "QUIT: accepting no more connections; exchanges in flight have no deadline";
        until("it is said", || proxy.stderr().contains(said));
        assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
        assert!(proxy.wait(STEP).expect("it ends").success());
    });
}

#[test]
fn term_after_quit_brings_the_deadline_and_then_cuts() {
    test(|| {
        let (_origin, mut proxy, _busy) = in_flight("/slow/60000");
        proxy.signal(Signal::QUIT);
        until("it drains", || proxy.stderr().contains("QUIT: accepting"));
        proxy.signal(Signal::QUIT);
        until("the second one is said", || {
            proxy
                .stderr()
                .contains("QUIT: the process is already draining")
                || proxy.stderr().contains("QUIT again, at once")
        });
        let begun = Instant::now();
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
        assert!(begun.elapsed() >= Duration::from_millis(450));
        let said = "TERM: exchanges in flight now have 500ms";
        assert!(proxy.stderr().contains(said), "{}", proxy.stderr());
    });
}

/// The program that real units use to say that they are ready.
#[test]
fn the_socket_of_the_tests_is_one_that_systemd_notify_takes() {
    test(|| {
        let manager = Manager::new();
        let mut command = std::process::Command::new("systemd-notify");
        command.arg("--ready").arg("--no-block").envs(manager.env());
        let done = evenkeel_testkit::process::run(command, STEP).unwrap();
        assert!(done.status.success(), "{done:?}");
        assert!(manager.told().contains("READY=1"));
    });
}

/// The program with sockets that `systemd-socket-activate` has opened.
#[test]
fn listeners_take_the_sockets_of_the_service_manager() {
    test(|| {
        let (origin, dir) = (origin(), TempDir::new().unwrap());
        let by_path = dir.join("by-path.sock");
        let [by_name, unwanted] = [nobody(), nobody()];
        let config = format!(
            "[server]\nworkers = 2\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:1\"\n\
             [[listener]]\nname = \"path\"\nbind = \"unix:{}\"\n\
             [[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{}\"]\n",
            by_path.display(),
            origin.address
        );
        let file = dir.join("evenkeel.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = std::process::Command::new("systemd-socket-activate");
        command
            .args(["--fdname=web:other:path"])
            .args([
                format!("--listen={by_name}"),
                format!("--listen={unwanted}"),
            ])
            .arg(format!("--listen={}", by_path.display()))
            .arg(crate::setup::program())
            .args(["run", "--config"])
            .arg(file);
        let _running = evenkeel_testkit::process::Running::start(command).unwrap();
        until("the socket by name is served", || {
            evenkeel_testkit::RawClient::connect(&by_name)
                .is_ok_and(|mut it| it.get("/ping").is_ok_and(|it| it.status == 200))
        });
        for _ in 0..20 {
            assert_serves(&mut evenkeel_testkit::RawClient::connect(&by_name).unwrap());
            assert_serves(&mut evenkeel_testkit::RawClient::connect_unix(&by_path).unwrap());
        }
    });
}

/// A socket that another process holds as well, as the service manager holds those that it
/// passes.
#[test]
fn a_listener_with_a_socket_of_the_service_manager_may_go_and_come_back() {
    test(|| {
        let (origin, dir) = (origin(), TempDir::new().unwrap());
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let web = held.local_addr().unwrap();
        let config = |listener: &str| {
            format!(
                "[server]\nworkers = 2\ncontrol = \"{}\"\n{listener}\
                 [[listener]]\nname = \"other\"\nbind = \"127.0.0.1:0\"\n\
                 [[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{}\"]\n",
                dir.join("control.sock").display(),
                origin.address
            )
        };
        let listener = format!("[[listener]]\nname = \"web\"\nbind = \"{web}\"\n");
        let file = dir.join("evenkeel.toml");
        std::fs::write(&file, config(&listener)).unwrap();
        let mut command = std::process::Command::new("sh");
        let give =
            "exec 3<&2 2>/dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web exec \"$@\"";
        command.args(["-c", give, "sh"]);
        command
            .arg(crate::setup::program())
            .args(["run", "--config"])
            .arg(&file);
        command.stderr(std::os::fd::OwnedFd::from(held.try_clone().unwrap()));
        let _running = evenkeel_testkit::process::Running::start(command).unwrap();
        let reload = |args: &[&str]| {
            let mut command = std::process::Command::new(crate::setup::program());
            command.args(["reload", "--config"]).arg(&file).args(args);
            let done = evenkeel_testkit::process::run(command, STEP).unwrap();
            assert!(done.status.success(), "{done:?}");
        };
        let serves = || {
            evenkeel_testkit::RawClient::connect(web)
                .is_ok_and(|mut it| it.get("/ping").is_ok_and(|it| it.status == 200))
        };
        until("it is served", serves);
        for args in [&[][..], &["--confirm", "1s"]] {
            std::fs::write(&file, config("")).unwrap();
            reload(args);
            std::fs::write(&file, config(&listener)).unwrap();
            if args.is_empty() {
                reload(args);
            }
            // A connection that came meanwhile is served as well.
            until("it is served again", serves);
        }
    });
}

/// Without names, a socket that is left over is not the status page's.
#[test]
fn the_status_page_takes_a_socket_at_its_own_address_alone() {
    test(|| {
        let (origin, dir) = (origin(), TempDir::new().unwrap());
        let [web, unwanted, status] = [nobody(), nobody(), nobody()];
        let config = format!(
            "[server]\nworkers = 1\n[status]\nbind = \"{status}\"\n\
             [[listener]]\nname = \"web\"\nbind = \"{web}\"\n\
             [[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{}\"]\n",
            origin.address
        );
        let file = dir.join("evenkeel.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = std::process::Command::new("systemd-socket-activate");
        command
            .args([format!("--listen={web}"), format!("--listen={unwanted}")])
            .arg(crate::setup::program())
            .args(["run", "--config"])
            .arg(file);
        let _running = evenkeel_testkit::process::Running::start(command).unwrap();
        until("the listener is served", || {
            evenkeel_testkit::RawClient::connect(&web)
                .is_ok_and(|mut it| it.get("/ping").is_ok_and(|it| it.status == 200))
        });
        let mut page = evenkeel_testkit::RawClient::connect(status).unwrap();
        let request = "GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
        assert_eq!(page.ask(request).unwrap().status, 200);
        assert!(std::net::TcpStream::connect(unwanted).is_err());
    });
}
