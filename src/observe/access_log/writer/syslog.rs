//! Sends lines to a syslog daemon. Each is a message (RFC 5424) in a datagram, over UDP
//! (RFC 5426) or a Unix socket.

use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant, SystemTime};

use super::Written;
use crate::config::access_log::{Syslog, SyslogTarget};
use crate::observe::calendar::{Moment, unix_time};

/// Time between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for a daemon that accepts nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// A syslog destination, connected or not.
#[derive(Debug)]
pub(super) struct SyslogSink {
    target: SyslogTarget,
    /// `<PRI>1 `.
    priority: String,
    /// ` HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA `.
    origin: String,
    socket: Option<Socket>,
    /// Earliest time of the next attempt to connect.
    pause_until: Option<Instant>,
    /// Lines to send.
    lines: Vec<u8>,
    message: Vec<u8>,
}

#[derive(Debug)]
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Socket {
    fn connect(target: &SyslogTarget) -> io::Result<Self> {
        match target {
            SyslogTarget::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                socket.connect(path)?;
                Ok(Socket::Unix(socket))
            }
            SyslogTarget::Udp { host, port } => {
                let target = (host.as_str(), *port);
                let addresses = std::net::ToSocketAddrs::to_socket_addrs(&target)?;
                let mut failure = io::Error::other(format!("{host} has no address"));
                for address in addresses {
                    let any = if address.is_ipv4() {
                        "0.0.0.0:0"
                    } else {
                        "[::]:0"
                    };
                    let socket = UdpSocket::bind(any);
                    match socket.and_then(|socket| socket.connect(address).map(|()| socket)) {
                        Ok(socket) => {
                            socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                            return Ok(Socket::Udp(socket));
                        }
                        Err(error) => failure = error,
                    }
                }
                Err(failure)
            }
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        match self {
            Socket::Udp(socket) => socket.send(message),
            Socket::Unix(socket) => socket.send(message),
        }
        .map(|_| ())
    }
}

impl SyslogSink {
    pub fn new(syslog: &Syslog) -> Self {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let is_name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        let host = if is_name { &*host } else { "-" };
        SyslogSink {
            target: syslog.target.clone(),
            priority: format!("<{}>1 ", syslog.facility * 8 + syslog.severity),
            origin: format!(" {host} {} {} - - ", syslog.app_name, std::process::id()),
            socket: None,
            pause_until: None,
            lines: Vec::new(),
            message: Vec::new(),
        }
    }

    /// The buffer for new lines.
    pub fn lines(&mut self) -> &mut Vec<u8> {
        self.lines.clear();
        &mut self.lines
    }

    /// Sends `count` lines of the buffer.
    pub fn write(&mut self, count: u64) -> Written {
        let lines = std::mem::take(&mut self.lines);
        let written = self.send_all(&lines, count);
        self.lines = lines;
        written
    }

    fn send_all(&mut self, lines: &[u8], count: u64) -> Written {
        let time = now();
        let mut written = Written::default();
        let mut rest = count;
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            rest -= 1;
            let mut message = std::mem::take(&mut self.message);
            message.clear();
            message.extend_from_slice(self.priority.as_bytes());
            message.extend_from_slice(time.as_bytes());
            message.extend_from_slice(self.origin.as_bytes());
            message.extend_from_slice(line.trim_ascii_end());
            let sent = self.send(&message, &mut written);
            self.message = message;
            if let Err(error) = sent {
                written.lost += 1;
                // A too long line says nothing of the next one.
                let is_too_long =
                    error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error());
                written.error = Some(error);
                if !is_too_long {
                    written.lost += rest;
                    break;
                }
            }
        }
        written
    }

    /// Sends one message; connects first if needed.
    fn send(&mut self, message: &[u8], written: &mut Written) -> io::Result<()> {
        let is_fresh = self.socket.is_none();
        let error = match self.connected()?.send(message) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        use io::ErrorKind as Kind;
        match (&self.socket, error.kind()) {
            // The error is of the message before this one; this one was not sent.
            (Some(Socket::Udp(socket)), Kind::ConnectionRefused) => {
                let sent = socket.send(message).map(|_| ());
                written.lost += 1;
                written.error = Some(error);
                sent
            }
            // The daemon was restarted.
            (
                Some(Socket::Unix(_)),
                Kind::ConnectionRefused | Kind::NotConnected | Kind::ConnectionReset,
            ) if !is_fresh => {
                self.socket = None;
                self.connected()?.send(message)
            }
            _ => Err(error),
        }
    }

    fn connected(&mut self) -> io::Result<&Socket> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let now = Instant::now();
                if self.pause_until.is_some_and(|until| now < until) {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                self.pause_until = Some(now + RETRY_PAUSE);
                let socket = Socket::connect(&self.target)?;
                self.pause_until = None;
                socket
            }
        };
        Ok(self.socket.insert(socket))
    }

    /// Drops the connection; the next line connects again.
    pub fn reconnect(&mut self) {
        self.socket = None;
        self.pause_until = None;
    }
}

/// The present time, in the form of messages.
fn now() -> String {
    let unix = unix_time(SystemTime::now());
    let second = Moment::from_unix(unix.as_secs()).rfc3339();
    format!("{second}.{:06}Z", unix.subsec_micros())
}
