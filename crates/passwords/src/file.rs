//! A file of users that is read again when it changes.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::users::Users;

/// A file of users, with the users of its last read without a mistake.
///
/// All workers read it without a lock, while another thread may replace the users.
#[derive(Debug)]
pub struct UserFile {
    name: String,
    users: ArcSwap<Users>,
    mistake: ArcSwapOption<String>,
}

impl UserFile {
    /// The file of this name, as written in the configuration.
    pub fn new(name: String, users: Users) -> Self {
        UserFile {
            name,
            users: ArcSwap::from_pointee(users),
            mistake: ArcSwapOption::empty(),
        }
    }

    /// Its name, as written in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The current users.
    pub fn users(&self) -> Arc<Users> {
        self.users.load_full()
    }

    /// Why the current content of the file was rejected; `None` if it was accepted.
    pub fn mistake(&self) -> Option<Arc<String>> {
        self.mistake.load_full()
    }

    /// Sets why the current content of the file was rejected.
    pub fn set_mistake(&self, mistake: Option<String>) {
        self.mistake.store(mistake.map(Arc::new));
    }

    /// Replaces who is in it, for all who look at it.
    pub fn replace(&self, users: Users) {
        self.users.store(Arc::new(users));
    }
}
