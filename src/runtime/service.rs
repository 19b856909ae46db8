//! Messages to the service manager about the process: sd_notify(3).
//!
//! The control thread's. A datagram is sent without waiting: a service manager that
//! takes none costs a line in the event log, and no request.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::heartbeat::LOOK_INTERVAL;

/// Names the socket of the service manager.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// The time within which a sign of life must come, in microseconds.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";
/// The process that must give it; any where it is not set.
pub(super) const WATCHDOG_PID_VARIABLE: &str = "WATCHDOG_PID";

/// The service manager, as far as there is one.
#[derive(Debug, Default)]
pub(super) struct ServiceManager {
    /// `None` once another process is the service, too.
    socket: Option<UnixDatagram>,
    /// Whether another process was said to be the service.
    is_succeeded: bool,
    /// Time from one sign of life to the next; `None` where none is wanted.
    every: Option<Duration>,
    last_sign: Option<Instant>,
    has_failed: bool,
}

impl ServiceManager {
    /// The one that the environment names.
    pub fn of_environment() -> Self {
        let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|it| !it.is_empty()) else {
            return ServiceManager::default();
        };
        let socket = match connect(&path) {
            Ok(socket) => socket,
            Err(error) => {
                let path = path.display();
                tracing::warn!("service manager: {SOCKET_VARIABLE} is {path}: {error}");
                return ServiceManager::default();
            }
        };
        let variable = |name| std::env::var(name).ok();
        let limit = watchdog(
            variable(WATCHDOG_VARIABLE).as_deref(),
            variable(WATCHDOG_PID_VARIABLE).as_deref(),
            std::process::id(),
        );
        if limit.is_some_and(|it| it < 2 * LOOK_INTERVAL) {
            tracing::warn!(
                "service manager: a watchdog of {limit:?} is too short: workers are checked every \
                 {LOOK_INTERVAL:?}"
            );
        }
        ServiceManager {
            socket: Some(socket),
            is_succeeded: false,
            every: limit.map(|it| it / 2),
            last_sign: None,
            has_failed: false,
        }
    }

    /// The process serves, as this line says.
    pub fn ready(&mut self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// Another configuration is being loaded; [`ready`](Self::ready) follows, whether
    /// it came into force or not.
    pub fn reloading(&mut self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The process ends once it has drained, as this line says.
    pub fn stopping(&mut self, status: &str) {
        self.tell(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Another process gets the service's place: the service manager is to know of it
    /// before it hears of it. This one gives signs of life until that one serves.
    pub fn succeeded_by(&mut self, pid: u32) {
        self.tell(&format!("MAINPID={pid}"));
        self.is_succeeded = true;
    }

    /// The other process did not take it: this one is the service again.
    pub fn goes_on(&mut self) {
        if std::mem::take(&mut self.is_succeeded) {
            self.tell(&format!("MAINPID={}", std::process::id()));
        }
    }

    /// The other process has taken it: this one says no more.
    pub fn leave(&mut self) {
        self.socket = None;
    }

    /// Gives the sign of life, where it is time. To be called after each look at the
    /// workers that found all of them come round.
    pub fn all_come_round(&mut self, now: Instant) {
        let is_due = |last: Instant, every| now.duration_since(last) + LOOK_INTERVAL > every;
        if let Some(every) = self.every
            && self.last_sign.is_none_or(|last| is_due(last, every))
        {
            self.last_sign = Some(now);
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&mut self, state: &str) {
        let Some(socket) = &self.socket else {
            return;
        };
        if let Err(error) = socket.send(state.as_bytes())
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::warn!("service manager: no state can be reported: {error}");
        }
    }
}

/// A socket to the one at this path, or under this abstract name.
fn connect(path: &OsStr) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// The time within which this process must give a sign of life.
fn watchdog(limit: Option<&str>, of: Option<&str>, pid: u32) -> Option<Duration> {
    let is_ours = of.is_none_or(|it| it.parse() == Ok(pid));
    let micros = limit?.parse().ok().filter(|it| *it > 0 && is_ours)?;
    Some(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_of_the_process_that_is_named() {
        for (limit, of, seconds) in [
            (None, None, None),
            (Some("3000000"), None, Some(3)),
            (Some("3000000"), Some("7"), Some(3)),
            (Some("3000000"), Some("8"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(watchdog(limit, of, 7), expected, "{limit:?} {of:?}");
        }
    }

    #[test]
    fn a_sign_of_life_comes_in_time() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut service = ServiceManager {
            socket: Some(ours),
            is_succeeded: false,
            every: Some(Duration::from_secs(5)),
            ..ServiceManager::default()
        };
        let begun = Instant::now();
        let mut signs = Vec::new();
        for second in 0..12 {
            service.all_come_round(begun + Duration::from_secs(second));
            let mut heard = [0; 64];
            if let Ok(len) = theirs.recv(&mut heard) {
                assert_eq!(&heard[..len], b"WATCHDOG=1");
                signs.push(second);
            }
        }
        assert_eq!(signs, [0, 5, 10]);
    }
}
