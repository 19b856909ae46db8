//! How severe an event is.

/// Which events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Only what keeps the program from its work.
    Error,
    /// Also events that an operator should look at.
    Warn,
    /// Changes of state, too.
    #[default]
    Info,
    /// Also details such as single probes.
    Debug,
    /// Everything: for a while, by the control socket.
    Trace,
}
