//! What the tests, the demo and the measurements need around the program.
//!
//! * [`origin`]: an HTTP/1 server with a shape: service times, limited
//!   concurrency and faults. `evenkeel origin` runs it from the command line.

pub mod origin;

pub use origin::{Origin, OriginHandle, OriginListener, OriginOptions, OriginStats};
