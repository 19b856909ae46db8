//! The reader of standard output: whether requests are logged there by default.

use std::ffi::OsStr;
use std::io::IsTerminal;

/// The presumed reader of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// A person: it is a terminal.
    Terminal,
    /// The logs of a container, whose first process this is.
    FirstProcess,
    /// The logs of a container, which says so in the environment, as podman, LXC
    /// and systemd-nspawn do.
    Container,
    /// Nobody that is known of.
    Unknown,
}

impl Audience {
    /// The reader of this process's output.
    pub fn of_this_process() -> Self {
        let container = std::env::var_os("container");
        Self::of(
            std::io::stdout().is_terminal(),
            std::process::id(),
            container.as_deref(),
        )
    }

    fn of(is_terminal: bool, pid: u32, container: Option<&OsStr>) -> Self {
        if is_terminal {
            Audience::Terminal
        } else if pid == 1 {
            Audience::FirstProcess
        } else if container.is_some_and(|it| !it.is_empty()) {
            Audience::Container
        } else {
            Audience::Unknown
        }
    }

    /// Why it is believed to read; `None` where it is not.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Audience::Terminal => Some("that is a terminal"),
            Audience::FirstProcess => Some("this is process 1"),
            Audience::Container => Some("the environment has `container`"),
            Audience::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_and_containers_are_read() {
        use Audience::{Container, FirstProcess, Terminal, Unknown};
        for (is_terminal, pid, container, expected) in [
            (true, 4711, None, Terminal),
            (true, 1, Some("podman"), Terminal),
            (false, 1, None, FirstProcess),
            (false, 4711, Some("podman"), Container),
            (false, 4711, Some(""), Unknown),
            (false, 4711, None, Unknown),
        ] {
            let audience = Audience::of(is_terminal, pid, container.map(OsStr::new));
            assert_eq!(audience, expected, "{is_terminal} {pid} {container:?}");
            assert_eq!(audience.reason().is_some(), expected != Unknown);
        }
    }
}
