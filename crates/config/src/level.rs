//! How severe an event is.

/// Which events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Only what keeps the program from its work.
    Error,
    /// What an operator should look at, too.
    Warn,
    /// Changes of state, too.
    #[default]
    Info,
    /// Single probes and the like, too.
    Debug,
    /// Everything: for a while, by the control socket.
    Trace,
}
