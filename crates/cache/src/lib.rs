//! An HTTP cache without I/O: what may be stored, for how long, and where.
//!
//! The rules are those of RFC 9111 for a shared cache. A request and a response
//! come in as heads of `evenkeel-proto`, with the present time; decisions and
//! bytes come out. Nothing here opens a socket, reads a clock or knows an async
//! runtime.
//!
//! | module | content |
//! |---|---|
//! | [`control`] | the directives of `Cache-Control` and its relatives |
//! | [`rules`] | the rules of a route for its cache |
//! | [`key`], [`vary`] | which requests have the same answer |
//! | [`storing`] | whether a response may be stored |
//! | [`freshness`] | whether a stored response may be served |
//! | [`validate`] | validation of stored responses |
//! | [`invalidate`] | invalidation by unsafe requests |
//! | [`report`] | `Age` and `Cache-Status` |
//! | [`object`], [`incoming`] | a stored response; an incoming one |
//! | [`record`] | an object as bytes, on a disk or at another server |
//! | [`recent`] | short-term memory about keys, without stored responses |
//! | [`memory`], [`purge`] | the store in memory, and its purges |
//! | [`disk`] | layout and index of a store on a disk, without its I/O |
//! | [`ledger`] | purges that machines with a shared store exchange |
#![forbid(unsafe_code)]

pub mod control;
pub mod disk;
pub mod freshness;
pub mod incoming;
pub mod invalidate;
pub mod key;
pub mod ledger;
pub mod memory;
pub mod message;
pub mod object;
pub mod purge;
pub mod recent;
pub mod record;
pub mod report;
pub mod rules;
pub mod storing;
pub mod validate;
pub mod vary;

pub use control::{Directives, RequestDirectives};
pub use freshness::{Lifetime, Usable};
pub use key::{Key, Secret};
pub use memory::Memory;
pub use message::{Request, Response};
pub use object::Object;
pub use rules::Rules;
