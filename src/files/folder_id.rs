//! What a folder is known by, in every configuration.

/// A folder, with what is served of it and how.
///
/// Invariant: it names one folder for as long as the process lives. The queues are those
/// of all configurations that are in use, and share what is asked for under one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FolderId(u32);

impl FolderId {
    pub(super) const fn new(number: u32) -> Self {
        FolderId(number)
    }

    /// What keys begin with that are of the folder.
    pub(super) fn to_bytes(self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }
}
