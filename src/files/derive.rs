//! Work of threads on files, besides reading: compression and listings.

use std::io;
use std::sync::Arc;

use evenkeel_proto::coding::Coding;
use rustix::io::Errno;

use super::folder::read_folder;
use super::held::{AnswerMemory, HeldBytes, HeldPage, Page};
use super::io_queue::Work;
use super::part::Part;
use super::{
    Compressed, Contents, DiskRequest, Fetched, Files, Missing, OpenFile, Opened, Refused, WhenFull,
};

/// Compresses bytes.
pub type Compressor = fn(&[u8], Coding) -> io::Result<Vec<u8>>;

impl Files {
    /// The compressed file, if it was compressed recently.
    pub fn compressed(&self, file: &OpenFile, coding: Coding) -> Option<Compressed> {
        let mut kept = self.caches.compressed.borrow_mut();
        kept.get(file.id, coding).cloned()
    }

    /// Has a thread compress a file, and keeps the result. While clients hold too much memory,
    /// the file counts as one that does not get smaller.
    ///
    /// # Errors
    /// The compression queue takes no more, or the disk has an error; [`Errno::STALE`] where the
    /// file has changed.
    ///
    /// # Cancellation
    /// As for [`fetch`](Self::fetch).
    pub async fn compress(
        &self,
        file: &Arc<OpenFile>,
        coding: Coding,
        compressor: Compressor,
    ) -> Result<Result<Compressed, Errno>, Refused> {
        let Some(queue) = &self.disks.compressing else {
            return Err(Refused);
        };
        let memory = self.disks.answer_memory.clone();
        if !memory.has_room_or_refuses(file.id.len) {
            return Ok(Ok(Compressed::NotSmaller));
        }
        let wanted = DiskRequest::Compressed(file.id, coding);
        let source = file.clone();
        let work = Work::blocking(move || {
            Fetched::Compressed(compress(&source, coding, compressor, &memory))
        });
        let fetched = queue.run(wanted, WhenFull::Refuse, work).await?;
        let Fetched::Compressed(compressed) = fetched else {
            return Ok(Err(Errno::IO));
        };
        if let Ok(compressed) = &compressed {
            let mut kept = self.caches.compressed.borrow_mut();
            kept.put(file.id, coding, compressed.clone());
        }
        Ok(compressed)
    }

    /// Has a thread of the disk read the folder at `path` of `route`, and `write` a listing of
    /// it, with the given nonce or a new one. `shown` is the path that clients see.
    ///
    /// # Errors
    /// The disk's queue takes no more, there is no such folder, or clients hold
    /// too much already.
    ///
    /// # Cancellation
    /// As for [`fetch`](Self::fetch).
    pub async fn list(
        &self,
        route: usize,
        path: &[u8],
        shown: Box<[u8]>,
        shows_hidden: bool,
        write: impl Fn(&Contents, Option<&str>) -> Result<Page, Missing> + Send + 'static,
    ) -> Result<Result<Arc<HeldPage>, Missing>, Refused> {
        let Opened { folder, root, disk } = match self.root(route).await? {
            Ok(found) => found,
            Err(missing) => return Ok(Err(missing)),
        };
        let path: Box<[u8]> = path.into();
        let wanted = DiskRequest::Page(folder, path.clone(), shown.clone());
        let disks = self.disks.clone();
        let work = Work::blocking(move || {
            let page = read_folder(&root, &path, shows_hidden).and_then(|contents| {
                let write = |nonce: Option<&str>| write(&contents, nonce);
                let key = (folder, path, shown);
                disks.pages.share(key, &disks.answer_memory, write)
            });
            Fetched::Page(page)
        });
        Ok(
            match disk.queue.run(wanted, WhenFull::Refuse, work).await? {
                Fetched::Page(page) => page,
                _ => Err(Missing::Absent),
            },
        )
    }
}

/// Compresses a whole file. Blocks.
fn compress(
    file: &Arc<OpenFile>,
    coding: Coding,
    compressor: Compressor,
    memory: &Arc<AnswerMemory>,
) -> Result<Compressed, Errno> {
    let bytes = Part::of(file.clone(), 0, file.id.len as usize).read()?;
    // The result is kept under the id of this version of the file.
    if bytes.len() as u64 != file.id.len || !file.has_same_contents() {
        return Err(Errno::STALE);
    }
    match compressor(&bytes, coding) {
        Ok(made) if made.len() < bytes.len() => {
            let made = Arc::new(HeldBytes::new(made, memory));
            Ok(Compressed::Smaller(made))
        }
        Ok(_) => Ok(Compressed::NotSmaller),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}
