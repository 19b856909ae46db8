//! `evenkeel-lab simulate`: the proxy's policy under virtual time.
//!
//! The dispatcher and the balancers are the ones that run in the proxy; what
//! is simulated are clients, origins and time. A run depends on its seed only.
//! Clients, then proxy, then origins: [`workload`], [`proxy`], [`origin`];
//! [`simulation`] joins them, [`measure`] counts, [`scenarios`] says what is
//! run and what is required of it.

pub mod clock;
pub mod measure;
pub mod origin;
pub mod proxy;
pub mod setting;
pub mod simulation;
#[cfg(test)]
mod validation;
pub mod watch;
pub mod workload;
