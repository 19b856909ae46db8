//! The folder of a store: its files, its lock, and the log of purges.
//!
//! | file | what it is |
//! |---|---|
//! | `store` | the head, which never changes |
//! | `lock` | locked by the process that has the store |
//! | `purges` | the log of purges |
//! | `shared` | up to where a log of purges was applied that machines share |
//! | `segment-…` | segments, by their numbers |

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use evenkeel_cache::Secret;
use evenkeel_cache::disk::layout::{self, read_shared_position, read_store_head, store_head};
use evenkeel_cache::disk::purge_log;
use evenkeel_cache::ledger;
use evenkeel_cache::purge::{Marked, Purges};
use evenkeel_cache::record::Damage;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const STORE: &str = "store";
const LOCK: &str = "lock";
const PURGES: &str = "purges";
const SHARED: &str = "shared";
const SEGMENT: &str = "segment-";
/// Of a file that gets its name when it is whole.
const UNFINISHED: &str = ".new";

/// Least length at which the log of purges is compacted.
const LONG_LOG_BYTES: u64 = 1 << 20;

/// Why a store can't be opened.
#[derive(Debug)]
pub enum CannotOpen {
    /// The folder has files and is no store.
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// A file in it.
        file: String,
    },
    /// Another version made the store.
    Version {
        /// The folder.
        folder: PathBuf,
    },
    /// The head of the store is damaged.
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// The damage.
        damage: Damage,
    },
    /// A system call failed.
    Io {
        /// The folder.
        folder: PathBuf,
        /// The action that failed.
        what: &'static str,
        /// The error of the system call.
        error: io::Error,
    },
}

impl CannotOpen {
    pub(super) fn io(folder: &Path, what: &'static str, error: io::Error) -> Self {
        CannotOpen::Io {
            folder: folder.into(),
            what,
            error,
        }
    }
}

impl fmt::Display for CannotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CannotOpen::Foreign { folder, file } => write!(
                f,
                "the folder {} is not a cache: it contains the file \"{file}\". Give the cache an \
                 empty folder, or one that does not exist yet",
                folder.display()
            ),
            CannotOpen::Version { folder } => write!(
                f,
                "the cache in {} was created by another version. Remove the folder, or give this \
                 version another one",
                folder.display()
            ),
            CannotOpen::Damaged { folder, damage } => write!(
                f,
                "the cache in {} is damaged: its file \"{STORE}\" is wrong ({}). Remove the folder",
                folder.display(),
                damage.word()
            ),
            CannotOpen::Io {
                folder,
                what,
                error,
            } => write!(f, "{what} the cache in {}: {error}", folder.display()),
        }
    }
}

impl std::error::Error for CannotOpen {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CannotOpen::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// The folder of a store.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Its lock goes with it.
    lock: File,
}

impl Folder {
    /// Opens a folder, or makes a store in it. Does not wait for its lock.
    pub fn open(path: &Path) -> Result<(Self, Secret), CannotOpen> {
        let io = |what| move |error| CannotOpen::io(path, what, error);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(io("make"))?;
        let is_new = match fs::metadata(path.join(STORE)) {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(io("open")(error)),
        };
        if is_new {
            check_is_empty(path)?;
        }
        let restricted = fs::set_permissions(path, Permissions::from_mode(0o700));
        restricted.map_err(io("restrict the permissions of"))?;
        let lock = options().create(true).truncate(false).open(path.join(LOCK));
        let lock = lock.map_err(io("open the lock of"))?;
        let folder = Folder {
            path: path.into(),
            lock,
        };
        if is_new {
            // Another process may be making it at this moment: it is waited for.
            flock(&folder.lock, FlockOperation::LockExclusive)
                .map_err(|error| io("lock")(error.into()))?;
            let made = folder.make();
            flock(&folder.lock, FlockOperation::Unlock)
                .map_err(|error| io("unlock")(error.into()))?;
            made.map_err(io("make"))?;
        }
        let head = fs::read(path.join(STORE)).map_err(io("read the head of"))?;
        match read_store_head(&head) {
            Ok(secret) => Ok((folder, secret)),
            Err(Damage::Version) => Err(CannotOpen::Version {
                folder: path.into(),
            }),
            Err(damage) => Err(CannotOpen::Damaged {
                folder: path.into(),
                damage,
            }),
        }
    }

    /// Makes an empty store, unless another process has.
    fn make(&self) -> io::Result<()> {
        if self.path.join(STORE).exists() {
            return Ok(());
        }
        // The log is there before the store is.
        self.put(PURGES, &purge_log::head(0))?;
        let mut secret = [0; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        self.put(STORE, &store_head(&Secret(secret)))
    }

    /// Writes a file, which is there with all of its bytes or not at all.
    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let unfinished = self.path.join(format!("{name}{UNFINISHED}"));
        let file = options().create(true).truncate(true).open(&unfinished)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        fs::rename(&unfinished, self.path.join(name))?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Takes the lock; whether it has it. It goes with the last descriptor of the file,
    /// whatever ends the process.
    pub fn try_lock(&self) -> io::Result<bool> {
        match flock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub fn unlock(&self) -> io::Result<()> {
        Ok(flock(&self.lock, FlockOperation::Unlock)?)
    }

    /// Numbers of all segments and lengths of their files, the oldest first.
    pub fn segments(&self) -> io::Result<Vec<(u32, u64)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(SEGMENT));
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                found.push((number, entry.metadata()?.len()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn segment_path(&self, segment: u32) -> PathBuf {
        self.path.join(format!("{SEGMENT}{segment:010}"))
    }

    /// Opens a segment that is there, to be read, and written if possible.
    pub fn open_segment(&self, segment: u32) -> io::Result<File> {
        let path = self.segment_path(segment);
        options().open(&path).or_else(|_| File::open(&path))
    }

    /// Makes the file of a segment, with its head.
    pub fn make_segment(&self, segment: u32, head: &[u8]) -> io::Result<File> {
        let path = self.segment_path(segment);
        let file = options().create(true).truncate(true).open(&path)?;
        let written = file.write_all_at(head, 0).and_then(|()| self.sync());
        if written.is_err() {
            // An empty file says nothing, and would be found at each start.
            let _ = fs::remove_file(&path);
        }
        written.map(|()| file)
    }

    /// Removes the file of a segment. Readers that have it open go on.
    pub fn remove_segment(&self, segment: u32) -> io::Result<()> {
        fs::remove_file(self.segment_path(segment))
    }

    /// The log of purges. If it is damaged, purges may be missing: all segments are removed, and
    /// the log begins again, empty.
    ///
    /// # Errors
    /// If it can't be read, or segments can't be removed.
    pub fn purge_log(&self, purges: &Purges) -> io::Result<PurgeLog> {
        let path = self.path.join(PURGES);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let log = match purge_log::read(&bytes) {
            Ok(log) => log,
            Err(damage) => {
                tracing::warn!(
                    "cache: the log of purges in {} is damaged ({}): all stored responses are \
                     removed",
                    self.path.display(),
                    damage.word()
                );
                for (segment, _) in self.segments()? {
                    self.remove_segment(segment)?;
                }
                self.sync()?;
                let head = purge_log::head(0);
                self.put(PURGES, &head)?;
                purge_log::Log {
                    count: 0,
                    entries: Vec::new(),
                    len: head.len(),
                }
            }
        };
        // Purges that were made while another process had the folder come after these.
        let early = purges.marked();
        purges.count_from(log.count);
        for marked in log.entries {
            purges.apply(marked);
        }
        let len = log.len as u64;
        let mut log = PurgeLog {
            path: self.path.clone(),
            file: options().open(&path).or_else(|_| File::open(&path))?,
            len,
            compact_at: LONG_LOG_BYTES.max(2 * len),
        };
        let early: Vec<Marked> = std::iter::zip(purges.count() + 1.., early)
            .map(|(count, marked)| Marked { count, ..marked })
            .collect();
        if !early.is_empty() {
            log.append(&early, purges)?;
        }
        for marked in early {
            purges.apply(marked);
        }
        Ok(log)
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store in {}", self.path.display())
    }
}

/// For files that nobody else may read.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Whether a folder is empty. Files of a store whose making was broken off do not count.
fn check_is_empty(path: &Path) -> Result<(), CannotOpen> {
    let read = fs::read_dir(path).map_err(|error| CannotOpen::io(path, "open", error))?;
    for entry in read {
        let entry = entry.map_err(|error| CannotOpen::io(path, "open", error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if ![LOCK, PURGES].contains(&name.strip_suffix(UNFINISHED).unwrap_or(&name))
            && name != format!("{STORE}{UNFINISHED}")
        {
            return Err(CannotOpen::Foreign {
                folder: path.into(),
                file: name,
            });
        }
    }
    Ok(())
}

/// The place up to which the shared log of purges was applied to the store in a folder. `None` if
/// it is not known.
pub(super) fn shared_position(folder: &Path) -> Option<ledger::Position> {
    let bytes = fs::read(folder.join(SHARED)).ok()?;
    read_shared_position(&bytes).ok()
}

/// The log of purges, to be written.
#[derive(Debug)]
pub(super) struct PurgeLog {
    path: PathBuf,
    file: File,
    /// Length up to the end of the last purge.
    len: u64,
    /// Length at which it is compacted.
    compact_at: u64,
}

impl PurgeLog {
    /// Notes the place up to which the shared log of purges was applied. All purges up to there
    /// are on the disk already. So this need not be synced: an older place has some purges
    /// applied twice.
    pub fn note_shared(&self, position: ledger::Position) -> io::Result<()> {
        let path = self.path.join(SHARED);
        let file = options().create(true).truncate(false).open(path)?;
        file.write_all_at(&layout::shared_position(position), 0)
    }

    /// Appends purges, which are on the disk when this returns without error. `purges` are the
    /// earlier ones.
    pub fn append(&mut self, marked: &[Marked], purges: &Purges) -> io::Result<()> {
        if self.len >= self.compact_at {
            self.compact(purges)?;
        }
        let mut bytes = Vec::new();
        for marked in marked {
            purge_log::push(&mut bytes, marked);
        }
        // This overwrites the rest of a write that failed.
        self.file.write_all_at(&bytes, self.len)?;
        self.file.set_len(self.len + bytes.len() as u64)?;
        self.file.sync_data()?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Writes the log again, with only the purges that still count.
    fn compact(&mut self, purges: &Purges) -> io::Result<()> {
        let mut bytes = purge_log::head(purges.count());
        for marked in purges.marked() {
            purge_log::push(&mut bytes, &marked);
        }
        let path = self.path.join(PURGES);
        let unfinished = self.path.join(format!("{PURGES}{UNFINISHED}"));
        let file = options().create(true).truncate(true).open(&unfinished)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        fs::rename(&unfinished, &path)?;
        self.file = file;
        self.len = bytes.len() as u64;
        self.compact_at = LONG_LOG_BYTES.max(2 * self.len);
        File::open(&self.path)?.sync_all()
    }
}
