//! Removal of the records of dropped orders, each on its own thread. Process-wide.
//!
//! The code that drops an order does not wait, such as a reload. The end of the process waits
//! in [`finish_clean_ups`].

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Dns, Record};
use crate::lease::Lease;

/// How long the removal of a record may take. The lease lasts longer without being renewed.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// The threads that have not been waited for.
static RUNNING: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Removes a record, and releases the lease then.
pub(crate) fn begin(dns: Arc<Dns>, record: Record, lease: Arc<Lease>) {
    let name = record.name.clone();
    let remove = move || {
        if let Err(text) = remove(&dns, &record, &lease) {
            let name = &record.name;
            tracing::warn!("acme: the record {name} was not removed: {text}");
        }
        drop(lease);
    };
    let thread = thread::Builder::new().name("acme-clean-up".to_owned());
    match thread.spawn(remove) {
        Ok(thread) => {
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            running.retain(|it| !it.is_finished());
            running.push(thread);
        }
        Err(error) => tracing::warn!("acme: the record {name} was not removed: {error}"),
    }
}

/// Waits until the records are removed whose orders were given up. Blocks, for 10 s at most.
pub fn finish_clean_ups() {
    let running = std::mem::take(&mut *RUNNING.lock().unwrap_or_else(PoisonError::into_inner));
    for thread in running {
        // A thread that has panicked has said so.
        let _ = thread.join();
    }
}

fn remove(dns: &Dns, record: &Record, lease: &Lease) -> Result<(), String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().map_err(|it| it.to_string())?;
    runtime.block_on(async {
        // The clock of a test does not go on by itself.
        match tokio::time::timeout(DEADLINE, dns.clean_up(record, lease)).await {
            Ok(removed) => removed,
            Err(_) => Err(format!("it took longer than {} s", DEADLINE.as_secs())),
        }
    })
}
