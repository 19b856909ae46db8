//! The contents of a folder, as far as clients may see them.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, OFlags, ResolveFlags, Stat, fstat, statat};

use super::open::{Missing, missing, telling_time};
use super::root::Root;

/// Most entries that are read from a folder.
pub const MAX_ENTRIES: usize = 10_000;

/// The contents of a folder: folders first, then by name without regard to case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Folders and regular files. A link appears as its target.
    pub entries: Vec<FolderEntry>,
    /// Whether the list is complete: a folder with more than [`MAX_ENTRIES`] is cut off.
    pub is_all: bool,
}

/// A name in whatever character set.
type Name = Box<[u8]>;

/// A folder or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its name.
    pub name: Name,
    /// Folder or file.
    pub kind: Kind,
    /// Last change of the contents, in seconds since 1970; `None` where that says
    /// nothing.
    pub modified: Option<u64>,
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A folder, with entries of its own.
    Folder,
    /// A regular file.
    File {
        /// In bytes.
        len: u64,
    },
}

/// Reads the folder at `path` beneath `root`. Leaves out links that lead out of `root` or
/// nowhere, and anything that is neither folder nor file. Blocks.
///
/// # Errors
/// The path is not a folder, or may not be read.
pub(super) fn read_folder(
    root: &Root,
    path: &[u8],
    shows_hidden: bool,
) -> Result<Contents, Missing> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = root.open_beneath(path, flags, ResolveFlags::empty())?;
    let (names, is_all) = read_names(&folder, shows_hidden)?;
    let mut entries: Vec<FolderEntry> = names
        .into_iter()
        .filter_map(|name| {
            let status = status(root, path, &folder, &name)?;
            let kind = match FileType::from_raw_mode(status.st_mode) {
                FileType::Directory => Kind::Folder,
                FileType::RegularFile => Kind::File {
                    len: status.st_size as u64,
                },
                _ => return None,
            };
            let modified = telling_time(status.st_mtime);
            Some(FolderEntry {
                name,
                kind,
                modified,
            })
        })
        .collect();
    entries.sort_by_cached_key(|entry| {
        let lower = String::from_utf8_lossy(&entry.name).to_lowercase();
        (entry.kind != Kind::Folder, lower, entry.name.clone())
    });
    Ok(Contents { entries, is_all })
}

/// The names that may be shown, and whether the list is complete.
fn read_names(folder: &OwnedFd, shows_hidden: bool) -> Result<(Vec<Name>, bool), Missing> {
    let mut names: Vec<Name> = Vec::new();
    for entry in Dir::read_from(folder).map_err(missing)? {
        let entry = entry.map_err(missing)?;
        let name = entry.file_name().to_bytes();
        let is_hidden = name.starts_with(b".") && !shows_hidden;
        if is_hidden || matches!(name, b"." | b"..") {
            continue;
        }
        if names.len() == MAX_ENTRIES {
            return Ok((names, false));
        }
        names.push(name.into());
    }
    Ok((names, true))
}

/// The status of the file with this name; `None` where that can't be read.
fn status(root: &Root, path: &[u8], folder: &OwnedFd, name: &[u8]) -> Option<Stat> {
    let status = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Symlink {
        return Some(status);
    }
    // A link may lead anywhere in the root, not only in this folder.
    let path = [path, name].concat();
    let target = root
        .open_beneath(&path, OFlags::PATH, ResolveFlags::empty())
        .ok()?;
    fstat(target).ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use evenkeel_testkit::TempDir;

    use super::*;

    /// A folder, with one in it that is served and has another in it.
    fn scratch() -> (TempDir, PathBuf) {
        let folder = TempDir::new().expect("a folder");
        let root = folder.join("root");
        std::fs::create_dir_all(root.join("sub")).expect("folders");
        (folder, root)
    }

    fn read(root: &Path, path: &str, shows_hidden: bool) -> Result<Contents, Missing> {
        let root = Root::open(root).expect("the folder");
        read_folder(&root, path.as_bytes(), shows_hidden)
    }

    fn names(contents: &Contents) -> Vec<String> {
        let names = contents.entries.iter();
        names
            .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
            .collect()
    }

    #[test]
    fn sorts_folders_first_and_hides_what_is_hidden() {
        let (_scratch, root) = scratch();
        for name in ["b", "A", "c", ".hidden"] {
            std::fs::write(root.join(name), name).expect("a file");
        }
        std::fs::write(root.join(OsStr::from_bytes(b"\xff")), "").expect("a file");
        std::fs::create_dir(root.join("Zoo")).expect("a folder");
        let contents = read(&root, "", false).expect("the folder");
        assert!(contents.is_all);
        assert_eq!(names(&contents), ["sub", "Zoo", "A", "b", "c", "\u{fffd}"]);
        assert_eq!(contents.entries[0].kind, Kind::Folder);
        assert_eq!(contents.entries[2].kind, Kind::File { len: 1 });
        let hidden = read(&root, "", true).expect("the folder");
        assert!(names(&hidden).contains(&".hidden".to_owned()));
    }

    #[test]
    fn leaves_out_links_that_lead_out_or_nowhere() {
        let (scratch, root) = scratch();
        std::fs::write(scratch.join("secret"), "a secret").expect("a file");
        std::fs::write(root.join("file"), "12345").expect("a file");
        symlink("../file", root.join("sub/within")).expect("a link");
        symlink("../../secret", root.join("sub/out")).expect("a link");
        symlink(scratch.join("secret"), root.join("sub/absolute")).expect("a link");
        symlink("nothing", root.join("sub/dangling")).expect("a link");
        symlink("circle", root.join("sub/circle")).expect("a link");
        symlink("/proc/self/fd", root.join("sub/magic")).expect("a link");
        let contents = read(&root, "sub/", false).expect("the folder");
        assert_eq!(names(&contents), ["within"]);
        assert_eq!(contents.entries[0].kind, Kind::File { len: 5 });
        for path in ["sub/out", "../", "sub/../../root", "file", "absent"] {
            assert!(read(&root, path, false).is_err(), "{path}");
        }
    }

    #[test]
    fn stops_at_its_bound() {
        let (_scratch, root) = scratch();
        let root = root.join("sub");
        for index in 0..MAX_ENTRIES {
            std::fs::write(root.join(index.to_string()), "").expect("a file");
        }
        let contents = read(&root, "", false).expect("the folder");
        assert_eq!(
            (contents.entries.len(), contents.is_all),
            (MAX_ENTRIES, true)
        );
        std::fs::write(root.join("more"), "").expect("a file");
        let contents = read(&root, "", false).expect("the folder");
        assert_eq!(
            (contents.entries.len(), contents.is_all),
            (MAX_ENTRIES, false)
        );
    }
}
