//! The folder of accounts, orders, answers and certificates. All of it blocks.
//!
//! ```text
//! STORAGE/                  0700
//!   accounts/DIRECTORY.json the account at an issuer, with its key
//!   accounts/ACCOUNT.json   one that gave way to the account of other machines
//!   certificates/NAME.pem   the certificate, its chain and its key
//!   challenges/             answers to challenges that are running
//!   failures/NAME.json      failures in a row
//!   leases/NAME.json        the process that orders now
//!   orders/NAME.json        an order that is not finished, with the key for it
//!   lock                    held while a lease changes
//! ```
//!
//! With a shared server, the server has the authoritative records. The folder has copies: of
//! certificates, which are served, of the account, and of orders.
//!
//! Invariant: a file appears whole or not at all. New content is written beside it, synced and
//! renamed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::changes::Sharing;
use crate::error::Error;
use crate::name::file_stem;
use crate::shared::Shared;

/// The most that is read of an account, an order or a record of failures, in bytes.
const MAX_RECORD: u64 = 64 << 10;

/// The age at which an answer or a half-written file is removed. No order takes as long.
pub(crate) const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// How long records last at a server. Accounts are stored there again from a copy.
const ACCOUNT_LASTS: Duration = Duration::from_secs(400 * 86_400);
const RECORD_LASTS: Duration = Duration::from_secs(30 * 86_400);

/// The folders of a storage, and the server that has its records too.
#[derive(Clone)]
pub(crate) struct Storage {
    root: PathBuf,
    pub(crate) sharing: Option<Arc<Sharing>>,
    /// Held while a certificate is compared with the installed one, and replaces it.
    installing: Arc<Mutex<()>>,
}

/// An order that is not finished.
#[derive(Serialize, Deserialize)]
pub(crate) struct PendingOrder {
    /// The directory of the issuer.
    pub(crate) directory: String,
    /// `None` where the order was about to be placed.
    pub(crate) url: Option<String>,
    /// The private key for the certificate, as PEM.
    pub(crate) key: String,
}

/// Failures in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failures {
    pub(crate) count: u32,
    /// When the last one happened, in seconds since 1970.
    pub(crate) at: u64,
    /// When the next attempt may begin, in seconds since 1970.
    pub(crate) next: u64,
    /// Why the last one happened.
    pub(crate) text: String,
}

const FOLDERS: [&str; 6] = [
    "accounts",
    "certificates",
    "challenges",
    "failures",
    "leases",
    "orders",
];

impl Storage {
    /// Opens a storage, and makes the folders that are missing.
    ///
    /// # Errors
    /// A folder cannot be made or looked into.
    pub(crate) fn open(root: &Path) -> Result<Self, Error> {
        let storage = Self {
            root: root.to_owned(),
            sharing: None,
            installing: Arc::default(),
        };
        make_folder(root, true)?;
        for folder in FOLDERS {
            make_folder(&root.join(folder), false)?;
        }
        let mode = fs::metadata(root).map_err(Error::storage(root))?;
        let mode = mode.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            tracing::warn!(
                "acme: other users can read the storage {}: its mode is {mode:03o}, but should be \
                 700",
                root.display()
            );
        }
        Ok(storage)
    }

    /// The same folder, with a server that machines without this folder share.
    pub(crate) fn shared_by(self, server: Option<Arc<dyn Shared>>) -> Self {
        Self {
            sharing: server.map(|it| Arc::new(Sharing::new(it))),
            ..self
        }
    }

    /// The server that machines share.
    pub(crate) fn server(&self) -> Option<&Arc<dyn Shared>> {
        self.sharing.as_ref().map(|it| &it.server)
    }

    /// Locks the certificates until the guard is dropped.
    pub(crate) fn installing(&self) -> MutexGuard<'_, ()> {
        self.installing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn challenges(&self) -> PathBuf {
        self.root.join("challenges")
    }

    pub(crate) fn leases(&self) -> PathBuf {
        self.root.join("leases")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The names of hosts that have a certificate. A folder that cannot be listed has none.
    pub(crate) fn certificate_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("certificates"));
        let entries = entries.into_iter().flatten().flatten();
        let stem = |it: fs::DirEntry| {
            let file = it.file_name().into_string().ok()?;
            file.strip_suffix(".pem").map(str::to_owned)
        };
        entries.filter_map(stem).collect()
    }

    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        certificate_path(&self.root, name)
    }

    /// The account at the issuer with this directory. A record that is broken counts as none.
    pub(crate) fn account<T: DeserializeOwned>(&self, directory: &str) -> io::Result<Option<T>> {
        let file = self.account_file(directory);
        let Some(server) = self.server() else {
            return read_record(&file);
        };
        let Some(bytes) = server.get(&account_record(directory))? else {
            return Ok(None);
        };
        let account = serde_json::from_slice(&bytes).ok();
        let copy = read(&file, MAX_RECORD).ok().flatten();
        if account.is_some() && copy.as_ref() != Some(&bytes) {
            if let Some(copy) = copy {
                self.set_aside(&copy, &bytes)?;
            }
            replace(&file, &bytes)?;
        }
        Ok(account)
    }

    /// Keeps a replaced copy of the account, under the name of its URL.
    fn set_aside(&self, copy: &[u8], other: &[u8]) -> io::Result<()> {
        let (Some(mine), Some(theirs)) = (account_url(copy), account_url(other)) else {
            return Ok(());
        };
        if mine == theirs {
            return Ok(());
        }
        let file = self.account_file(&mine);
        replace(&file, copy)?;
        tracing::info!(
            "acme: the account {theirs} of the other machines is now used here, too: the account \
             of this machine stays in {}",
            file.display()
        );
        Ok(())
    }

    pub(crate) fn keep_account(&self, directory: &str, account: &impl Serialize) -> io::Result<()> {
        let bytes = serde_json::to_vec(account)?;
        replace(&self.account_file(directory), &bytes)?;
        self.give_account(directory, &bytes)
    }

    /// Stores the copy of the account at a server that has lost it. Another machine may have
    /// done so, so call it only with the lease of the account.
    pub(crate) fn restore_account(&self, directory: &str) -> io::Result<()> {
        match read(&self.account_file(directory), MAX_RECORD)? {
            Some(bytes) => self.give_account(directory, &bytes),
            None => Ok(()),
        }
    }

    fn give_account(&self, directory: &str, bytes: &[u8]) -> io::Result<()> {
        if let Some(server) = self.server() {
            server.put(&account_record(directory), bytes, ACCOUNT_LASTS)?;
        }
        Ok(())
    }

    pub(crate) fn forget_account(&self, directory: &str) -> io::Result<()> {
        remove(&self.account_file(directory))?;
        if let Some(server) = self.server() {
            server.remove(&account_record(directory))?;
        }
        Ok(())
    }

    fn account_file(&self, directory: &str) -> PathBuf {
        let file = format!("{}.json", account_key(directory));
        self.root.join("accounts").join(file)
    }

    /// The order for a name that is not finished. A record that is broken counts as none.
    pub(crate) fn order(&self, name: &str) -> io::Result<Option<PendingOrder>> {
        let copy: Option<PendingOrder> = read_record(&self.record("orders", name))?;
        let Some(server) = self.server() else {
            return Ok(copy);
        };
        let theirs: Option<PendingOrder> = parsed(server.get(&order_record(name))?);
        // The server may have gone away after the order was placed.
        let is_further = |copy: &PendingOrder| {
            let same = theirs.as_ref().filter(|it| it.key == copy.key);
            same.is_some_and(|it| it.url.is_none())
        };
        match copy.filter(is_further) {
            Some(copy) => Ok(Some(copy)),
            None => Ok(theirs),
        }
    }

    pub(crate) fn keep_order(&self, name: &str, order: &PendingOrder) -> io::Result<()> {
        write_record(&self.record("orders", name), order)?;
        self.put(&order_record(name), order)
    }

    pub(crate) fn forget_order(&self, name: &str) -> io::Result<()> {
        remove(&self.record("orders", name))?;
        match self.server() {
            Some(server) => Ok(server.remove(&order_record(name))?),
            None => Ok(()),
        }
    }

    /// The failures of a name in a row. A record that is broken counts as none.
    pub(crate) fn failures(&self, name: &str) -> io::Result<Option<Failures>> {
        match self.server() {
            Some(server) => Ok(parsed(server.get(&failures_record(name))?)),
            None => read_record(&self.record("failures", name)),
        }
    }

    pub(crate) fn keep_failures(&self, name: &str, failures: &Failures) -> io::Result<()> {
        match self.server() {
            Some(_) => self.put(&failures_record(name), failures),
            None => write_record(&self.record("failures", name), failures),
        }
    }

    pub(crate) fn forget_failures(&self, name: &str) -> io::Result<()> {
        match self.server() {
            Some(server) => Ok(server.remove(&failures_record(name))?),
            None => remove(&self.record("failures", name)),
        }
    }

    /// Stores a record at the server, if there is one.
    fn put(&self, record: &str, value: &impl Serialize) -> io::Result<()> {
        if let Some(server) = self.server() {
            server.put(record, &serde_json::to_vec(value)?, RECORD_LASTS)?;
        }
        Ok(())
    }

    fn record(&self, folder: &str, name: &str) -> PathBuf {
        let file = format!("{}.json", file_stem(name));
        self.root.join(folder).join(file)
    }

    /// Removes answers and half-written files that a crash has left behind.
    pub(crate) fn sweep(&self, now: SystemTime) {
        for folder in FOLDERS {
            let Ok(entries) = fs::read_dir(self.root.join(folder)) else {
                continue;
            };
            for entry in entries.flatten() {
                let is_half_written = entry.file_name().as_encoded_bytes().starts_with(b".");
                let modified = entry.metadata().and_then(|it| it.modified());
                let age = modified.ok().and_then(|it| now.duration_since(it).ok());
                let is_old = age.is_some_and(|it| it > LEFT_BEHIND);
                if is_old && (is_half_written || folder == "challenges") {
                    // The next sweep tries again.
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }
}

/// The certificate of a name: one PEM file with the chain and the key.
pub(crate) fn certificate_path(root: &Path, name: &str) -> PathBuf {
    let file = format!("{}.pem", file_stem(name));
    root.join("certificates").join(file)
}

/// The URL of a stored account.
fn account_url(bytes: &[u8]) -> Option<String> {
    let account: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    Some(account["credentials"]["id"].as_str()?.to_owned())
}

fn account_record(directory: &str) -> String {
    format!("accounts/{}", account_key(directory))
}

fn order_record(name: &str) -> String {
    format!("orders/{name}")
}

fn failures_record(name: &str) -> String {
    format!("failures/{name}")
}

/// A directory as part of the name of a file: each byte outside letters, digits, `.` and `-`
/// is written as `%XX`.
pub(crate) fn account_key(directory: &str) -> String {
    let mut key = String::new();
    for byte in directory.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-') {
            key.push(byte.into());
        } else {
            key.push_str(&format!("%{byte:02X}"));
        }
    }
    key
}

/// The bytes of a file; `None` if there is none.
///
/// # Errors
/// It cannot be read, or has more than `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(path)(error)),
    };
    let mut bytes = Vec::new();
    let read = file.take(max + 1).read_to_end(&mut bytes);
    read.map_err(at(path))?;
    if bytes.len() as u64 > max {
        return Err(at(path)(ErrorKind::FileTooLarge.into()));
    }
    Ok(Some(bytes))
}

/// Puts the path before the text of an error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Replaces a file by one of mode 0600.
///
/// # Errors
/// It cannot be written; the old file stays.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Staged::write(path, bytes)?.install()
}

/// A file that is written and synced, and not yet installed. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Staged {
    at: PathBuf,
    place: PathBuf,
}

impl Staged {
    /// Writes a file of mode 0600 beside its place.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(place: &Path, bytes: &[u8]) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let process = std::process::id();
        let count = COUNT.fetch_add(1, Relaxed);
        // Of several machines, processes may have the same id.
        let random = fastrand::u64(..);
        // Readers of folders pass over names that begin with a dot.
        let name = format!(".{process}-{count}-{random:016x}.new");
        let staged = Self {
            at: place.with_file_name(name),
            place: place.to_owned(),
        };
        staged.fill(bytes).map_err(at(place))?;
        Ok(staged)
    }

    fn fill(&self, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&self.at)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// The path of the file until it is installed.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Renames the file to its final path.
    ///
    /// # Errors
    /// It cannot be renamed; the old file stays.
    pub(crate) fn install(self) -> io::Result<()> {
        let installed = fs::rename(&self.at, &self.place);
        let synced = installed.and_then(|()| match self.place.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        });
        synced.map_err(at(&self.place))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // An installed file is not there any more.
        let _ = fs::remove_file(&self.at);
    }
}

/// A time in whole seconds since 1970, as records have it.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// The time of a record. One that no calendar knows counts as 1970.
pub(crate) fn time(seconds: u64) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

pub(crate) fn read_record<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    Ok(parsed(read(path, MAX_RECORD)?))
}

fn parsed<T: DeserializeOwned>(bytes: Option<Vec<u8>>) -> Option<T> {
    bytes.and_then(|it| serde_json::from_slice(&it).ok())
}

pub(crate) fn write_record(path: &Path, record: &impl Serialize) -> io::Result<()> {
    replace(path, &serde_json::to_vec(record)?)
}

/// Makes a folder with mode 0700, unless it is there.
fn make_folder(path: &Path, with_parents: bool) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    if let (true, Some(parent)) = (with_parents, path.parent()) {
        fs::create_dir_all(parent).map_err(Error::storage(path))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        // Another process was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.map_err(Error::storage(path)),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn folders_and_files_are_private() {
        let dir = TempDir::new().unwrap();
        let root = dir.join("a/acme");
        let storage = Storage::open(&root).unwrap();
        assert_eq!(mode(&root), 0o700);
        assert_eq!(mode(&storage.challenges()), 0o700);
        let path = storage.certificate("*.example.com");
        assert_eq!(path, root.join("certificates/_.example.com.pem"));
        replace(&path, b"1").unwrap();
        replace(&path, b"2").unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(read(&path, 1).unwrap().unwrap(), b"2");
        assert!(read(&path, 0).is_err());
        let files = fs::read_dir(root.join("certificates")).unwrap().count();
        assert_eq!(files, 1, "nothing is left beside it");
    }

    #[test]
    fn directories_have_files_of_their_own() {
        assert_eq!(
            account_key("https://acme.example:14000/dir_1"),
            "https%3A%2F%2Facme.example%3A14000%2Fdir%5F1"
        );
    }

    #[test]
    fn broken_records_count_as_none() {
        let dir = TempDir::new().unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        assert!(storage.order("a.example").unwrap().is_none());
        fs::write(dir.join("orders/a.example.json"), "{\"dir").unwrap();
        assert!(storage.order("a.example").unwrap().is_none());
    }

    #[test]
    fn a_sweep_removes_what_was_left_behind() {
        let dir = TempDir::new().unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        for file in [
            "challenges/token",
            "certificates/.a.pem.1",
            "certificates/a.pem",
        ] {
            fs::write(dir.join(file), "x").unwrap();
        }
        let exists = |file: &str| dir.join(file).exists();
        storage.sweep(SystemTime::now());
        assert!(exists("challenges/token") && exists("certificates/.a.pem.1"));
        storage.sweep(SystemTime::now() + LEFT_BEHIND + Duration::from_secs(1));
        assert!(!exists("challenges/token") && !exists("certificates/.a.pem.1"));
        assert!(exists("certificates/a.pem"));
    }
}
