//! Ids of folders, over all configurations.

/// A folder with the settings that it is served with.
///
/// Invariant: an id names one folder for as long as the process lives. Configurations that are in
/// use share the disks' queues, and with them the results of requests under one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FolderId(u32);

impl FolderId {
    pub(super) const fn new(number: u32) -> Self {
        FolderId(number)
    }

    /// The first bytes of all keys of the folder.
    pub(super) fn to_bytes(self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }
}
