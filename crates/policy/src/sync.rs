//! Atomics and locks: loom's where the model checker runs, else std's.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Locks, also after a panic. A thread that panicked with the lock has left
/// whole values behind: nothing here is changed in two steps between which it
/// would be wrong.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Stands between two sequentially consistent accesses. They need no fence;
/// loom takes them for acquire and release only, so that its model gets one.
pub(crate) fn between_sequential() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
