//! A file of users that is read again when it changes.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::users::Users;

/// A file of users: those that it held when it was last read without a mistake.
///
/// All workers look at it without a lock, while another thread puts new users there.
#[derive(Debug)]
pub struct UserFile {
    name: String,
    users: ArcSwap<Users>,
    mistake: ArcSwapOption<String>,
}

impl UserFile {
    /// The file of this name, as the configuration has it.
    pub fn new(name: String, users: Users) -> Self {
        UserFile {
            name,
            users: ArcSwap::from_pointee(users),
            mistake: ArcSwapOption::empty(),
        }
    }

    /// Its name, as the configuration has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who is in it now.
    pub fn users(&self) -> Arc<Users> {
        self.users.load_full()
    }

    /// Why what the file says now is not taken; `None` where it is.
    pub fn mistake(&self) -> Option<Arc<String>> {
        self.mistake.load_full()
    }

    /// Says why what the file says now is not taken.
    pub fn set_mistake(&self, mistake: Option<String>) {
        self.mistake.store(mistake.map(Arc::new));
    }

    /// Replaces who is in it, for all who look at it.
    pub fn replace(&self, users: Users) {
        self.users.store(Arc::new(users));
    }
}
