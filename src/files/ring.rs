//! Reads by io_uring. The worker starts them itself, many with one system call, and wakes no
//! thread.
//!
//! The ring takes only reads that start without the disk. The kernel looks up the file's place on
//! the disk before the call returns. For a short open file, ext4 and XFS have that place in
//! memory.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slab::Slab;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::direct::Way;
use super::io_queue::{StartedWork, Waiters, Work};
use super::part::Part;
use super::{DiskRequest, Fetched, FileBytes, OpenFile, WHOLE_LEN};
use crate::net::poller::{Interest, Side, Source};
use crate::net::tasks;
use crate::net::timer_fd::TimerFd;

/// Most reads that one turn of the event loop completes: hot requests wait for at most this many
/// cold ones.
const READ_PER_TURN: usize = 4;

/// Most calls in a row that bring no completion. The kernel reports pending work that another
/// call has already done, and does only a part of the work in each call.
const FRUITLESS_MAX: usize = 8;

/// Time until the kernel is asked again after it was out of memory.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// One worker's ring: takes reads whose turn has come, from any thread.
#[derive(Debug, Clone)]
pub(super) struct Ring(UnboundedSender<Read>);

/// A read, and its turn in the queue.
pub(super) type Read = (Part, StartedWork<DiskRequest, Fetched>);

impl Ring {
    /// Starts a ring for at most this many reads at once. It belongs to this thread and its
    /// tasks.
    ///
    /// # Errors
    /// The kernel has no such ring (it is older than Linux 6.1), or does not permit one.
    pub fn start(most: usize) -> io::Result<Self> {
        let entries = u32::try_from(most).map_err(io::Error::other)?;
        // The event loop asks for completions; they interrupt nothing.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .build(entries)?;
        // An eventfd wakes the event loop. A poll of the ring itself does not wake for deferred
        // completions.
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let (reads, wanted) = mpsc::unbounded_channel();
        let reader = Reader {
            ring,
            event: Source::new(event, Interest::Read)?,
            wanted,
            retry: TimerFd::new()?,
            most,
            readings: Slab::with_capacity(most),
            done: Vec::with_capacity(most),
        };
        tasks::spawn(reader.run());
        Ok(Ring(reads))
    }

    /// Whether the ring takes reads of this file. A read that waits for more than its own bytes
    /// would block the worker. A failed ring takes none.
    pub fn takes(&self, file: &OpenFile) -> bool {
        file.begins_at_once && file.id.len <= WHOLE_LEN && !self.0.is_closed()
    }

    /// A read as work for the queue of its disk.
    pub fn work(self, part: Part) -> Work<DiskRequest, Fetched> {
        Work::Prompt(Box::new(move |begun| match self.begin(part, begun) {
            Some((part, begun)) => Err((begun, Box::new(|begun| begun.finish(&part.fetch())))),
            None => Ok(()),
        }))
    }

    /// Starts a read soon. Returns it where a thread has to do it: because the kernel has to make
    /// room first, which would block the worker, or because the worker has ended.
    pub fn begin(&self, mut part: Part, begun: StartedWork<DiskRequest, Fetched>) -> Option<Read> {
        part.choose_way();
        match part.way {
            Way::Displacing => Some((part, begun)),
            Way::Cached | Way::Direct(_) => self.0.send((part, begun)).err().map(|it| it.0),
        }
    }
}

/// The task that starts reads and completes them.
struct Reader {
    ring: IoUring,
    /// Signalled when the ring has work. Never read: each signal is an event of its own.
    event: Source<OwnedFd>,
    wanted: UnboundedReceiver<Read>,
    /// Timer until the kernel is asked again.
    retry: TimerFd,
    /// Most reads in the kernel. A later configuration may allow more in flight at the disks; the
    /// rest wait in `wanted`.
    most: usize,
    /// Reads that the kernel has, or gets with the next system call.
    readings: Slab<Reading>,
    /// Completed reads whose waiters have no result yet.
    done: Vec<(Waiters<Fetched>, Fetched)>,
}

#[derive(Debug)]
struct Reading {
    part: Part,
    begun: StartedWork<DiskRequest, Fetched>,
    /// Not shared: the kernel writes to it.
    bytes: FileBytes,
    filled: usize,
}

impl Reader {
    /// Runs until no more reads can come.
    ///
    /// Results go to their waiters after everything else that is ready in the event loop, and
    /// only a few in each turn. Where the processor is the bottleneck, hot answers do not wait
    /// for cold ones.
    async fn run(mut self) {
        loop {
            for (waiters, fetched) in self.done.drain(..) {
                waiters.give(&fetched);
            }
            tasks::deprioritise(1);
            match self.turn() {
                Ok(()) if !(self.done.is_empty() && self.wanted.is_empty()) => {
                    tokio::task::yield_now().await;
                }
                Ok(()) if self.wait().await => {}
                Ok(()) => return,
                // The kernel is out of memory for now.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                    if self.retry.set(RETRY_INTERVAL, Duration::ZERO).is_ok() {
                        self.retry.expired().await;
                    }
                }
                Err(error) => {
                    tracing::error!("files: io_uring: {error}: threads read files instead");
                    return;
                }
            }
        }
    }

    /// Starts one wanted read, and collects completions until there are none left, or enough. One
    /// submission of four reads takes 50 us and more, in which no other task runs, and is no
    /// cheaper.
    ///
    /// # Errors
    /// The error that kept the kernel from starting a read. The read stays for the next turn.
    fn turn(&mut self) -> Result<(), Errno> {
        if self.ring.submission().is_empty()
            && let Ok(read) = self.wanted.try_recv()
        {
            self.begin(read);
        }
        let mut fruitless = 0;
        while self.done.len() < READ_PER_TURN && fruitless < FRUITLESS_MAX {
            let submission = self.ring.submission();
            let is_new = !submission.is_empty();
            if self.readings.is_empty() || !(is_new || submission.taskrun()) {
                break;
            }
            drop(submission);
            let submitted = self.ring.submit();
            let is_any = self.reap();
            match submitted {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
                }
                _ if is_new || is_any => fruitless = 0,
                _ => fruitless += 1,
            }
        }
        Ok(())
    }

    /// Waits for work. Returns whether any can still come.
    async fn wait(&mut self) -> bool {
        let wait = |cx: &mut Context<'_>| {
            let wanted = if self.readings.len() < self.most {
                self.wanted.poll_recv(cx)
            } else {
                Poll::Pending
            };
            match wanted {
                Poll::Ready(Some(read)) => {
                    self.begin(read);
                    return Poll::Ready(true);
                }
                Poll::Ready(None) if self.readings.is_empty() => return Poll::Ready(false),
                Poll::Ready(None) | Poll::Pending => {}
            }
            std::task::ready!(self.event.poll_ready(cx, Side::Read));
            self.event.note_blocked(Side::Read);
            Poll::Ready(true)
        };
        poll_fn(wait).await
    }

    fn begin(&mut self, (part, begun): Read) {
        let key = self.readings.insert(Reading {
            bytes: part.room(),
            part,
            begun,
            filled: 0,
        });
        self.push(key);
    }

    /// Submits the rest of a read to the kernel.
    fn push(&mut self, key: usize) {
        let Reading {
            part,
            bytes,
            filled,
            ..
        } = &mut self.readings[key];
        let room = &mut bytes.room_mut()[*filled..];
        let fd = types::Fd(part.source().as_raw_fd());
        let entry = opcode::Read::new(fd, room.as_mut_ptr(), room.len() as u32)
            .offset(part.offset + *filled as u64)
            .build()
            .user_data(key as u64);
        // SAFETY: the file stays open, and the room stays where it is, until the read is reaped.
        // A read that is never reaped keeps both for good (`drop`).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "there are as many entries as places");
        if pushed.is_err() {
            self.readings.remove(key);
        }
    }

    /// Collects completions. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let mut is_any = false;
        while let Some(completion) = self.next_completion() {
            is_any = true;
            self.complete(completion.user_data() as usize, completion.result());
        }
        is_any
    }

    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Handles a result: a number of bytes, or a negative error.
    fn complete(&mut self, key: usize, result: i32) {
        let Some(reading) = self.readings.get_mut(key) else {
            return;
        };
        let error = match usize::try_from(result) {
            Ok(len) => {
                reading.filled += len;
                if len > 0 && reading.part.is_more(reading.filled) {
                    return self.push(key);
                }
                None
            }
            Err(_) if result == -libc::EINTR => return self.push(key),
            // The disk has longer blocks than we expect.
            Err(_) if result == -libc::EINVAL && reading.part.is_direct() => {
                reading.part.way = Way::Displacing;
                return self.push(key);
            }
            Err(_) => Some(Errno::from_raw_os_error(-result)),
        };
        let Reading {
            part,
            begun,
            mut bytes,
            filled,
        } = self.readings.remove(key);
        bytes.truncate(part.len.min(filled));
        let bytes = error.map_or(Ok(bytes), Err);
        self.done.push((begun.end(), part.end(bytes)));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The kernel may still write to these rooms.
        let readings = self.readings.iter_mut();
        let bytes: Vec<_> = readings
            .map(|(_, it)| std::mem::take(&mut it.bytes))
            .collect();
        std::mem::forget(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use evenkeel_policy::admission::Bounds;
    use evenkeel_testkit::TempDir;
    use rustix::io::pread;

    use super::*;
    use crate::files::direct::{DirectFile, DirectReads};
    use crate::files::io_queue::{IoQueue, WhenFull};
    use crate::files::memory::Memory;
    use crate::files::{Hot, root};

    /// A file with these bytes, in a folder of its own.
    fn file(bytes: &[u8]) -> (TempDir, Arc<OpenFile>) {
        let folder = TempDir::new().expect("a folder");
        std::fs::write(folder.join("file"), bytes).expect("a file");
        let root = root::Root::open(folder.path()).expect("the folder");
        let opened = root.open_from_disk(b"file").expect("the file");
        (folder, Arc::new(opened))
    }

    fn parts(file: &Arc<OpenFile>, parts: &[(u64, usize)]) -> Vec<Part> {
        let part = |&(offset, len)| Part::of(file.clone(), offset, len);
        parts.iter().map(part).collect()
    }

    fn queue(in_flight: usize, waiting: usize) -> IoQueue<DiskRequest, Fetched> {
        let bounds = Bounds {
            in_flight,
            waiting,
            wait: Duration::MAX,
        };
        IoQueue::start("test", bounds).expect("a thread starts")
    }

    /// Reads these parts of files at the same time, two in flight. `None` where the kernel
    /// permits no ring, as in many containers; there the program has none either.
    fn read(parts: Vec<Part>) -> Option<Vec<Vec<u8>>> {
        let queue = queue(2, parts.len());
        let tasks = tasks::Tasks::of_this_thread().expect("a set of tasks");
        let read = tasks.run_until(async move {
            let ring = match Ring::start(2) {
                Ok(ring) => ring,
                Err(error) => {
                    println!("no io_uring here: {error}");
                    return None;
                }
            };
            let reads = parts.into_iter().map(|part| {
                let wanted = DiskRequest::Bytes(part.file.id, part.offset, part.len as u64);
                queue.run(wanted, WhenFull::Admit, ring.clone().work(part))
            });
            let mut read = Vec::new();
            let mut reads: Vec<_> = reads.map(Box::pin).collect();
            // All reads start before the first await.
            for reading in &mut reads {
                let mut once = Context::from_waker(std::task::Waker::noop());
                assert!(reading.as_mut().poll(&mut once).is_pending());
            }
            for reading in reads {
                match reading.await {
                    Ok(Fetched::Bytes(Ok(bytes))) => read.push(bytes.to_vec()),
                    other => panic!("{other:?}"),
                }
            }
            Some(read)
        });
        read.expect("the event loop runs")
    }

    #[test]
    fn gives_to_each_the_part_that_it_asked_for() {
        let bytes: Vec<u8> = (0..40_000_u32).map(|it| (it / 7) as u8).collect();
        let (_folder, file) = file(&bytes);
        let asked: Vec<_> = (0..20)
            .map(|it| (it * 1_999, 1 + it as usize * 97))
            .collect();
        let Some(read) = read(parts(&file, &asked)) else {
            return;
        };
        for ((offset, len), read) in asked.into_iter().zip(read) {
            assert_eq!(read, bytes[offset as usize..][..len]);
        }
    }

    #[test]
    fn gives_what_there_is_of_a_file_that_was_cut_off() {
        let (folder, file) = file(&[7; 10_000]);
        let mut room = [0; 10_001];
        let whole = file.read_whole_in_memory(&mut room);
        assert_eq!(whole.ok(), Some(Hot::Read(10_000)));
        let cut = File::options().write(true).open(folder.join("file"));
        cut.and_then(|it| it.set_len(100)).expect("it is cut off");
        let asked = [(0, 10_000), (5_000, 100), (0, 0)];
        if let Some(read) = read(parts(&file, &asked)) {
            assert_eq!(read, [vec![7; 100], vec![], vec![]]);
        }
        let whole = file.read_whole_in_memory(&mut room);
        assert_eq!(whole.ok(), Some(Hot::Read(100)));
    }

    /// A whole file, read past the page cache where the file system has such reads.
    fn direct(file: &Arc<OpenFile>, is_only_here: bool) -> Part {
        let len = file.id.len as usize;
        Part {
            way: direct_way(file, is_only_here),
            ..Part::of(file.clone(), 0, len)
        }
    }

    fn direct_way(file: &Arc<OpenFile>, is_only_here: bool) -> Way {
        let direct = file.takes_direct_reads.then(|| {
            let direct = DirectFile::new(file, is_only_here);
            Way::Direct(direct.expect("its file system has such reads"))
        });
        direct.unwrap_or(Way::Cached)
    }

    #[test]
    fn what_is_read_directly_is_the_file_and_leaves_nothing_in_memory() {
        for len in [1, 511, 512, 4096, 4097, 12_288, 40_000] {
            for is_only_here in [true, false] {
                let bytes: Vec<u8> = (0..len).map(|it| (it / 7) as u8).collect();
                let (_folder, file) = file(&bytes);
                // Otherwise the write would leave the file in memory.
                rustix::fs::fsync(&file).expect("it is on the disk");
                let forget = || rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                forget().expect("it is forgotten");
                let mut part = direct(&file, is_only_here);
                let is_direct = part.is_direct();
                assert_eq!(is_direct, file.takes_direct_reads);
                assert_eq!(&*part.read().expect("it is read"), &bytes);
                drop(part);
                if let Some(read) = read(vec![direct(&file, is_only_here)]) {
                    assert_eq!(read, [bytes.as_slice()]);
                }
                let mut room = vec![0; len + 1];
                let in_memory = file.read_whole_in_memory(&mut room);
                if is_direct {
                    assert_eq!(in_memory.ok(), Some(Hot::Cold), "{len} bytes");
                }
                // From here on through the page cache: direct reads need aligned room.
                let read = pread(&file, &mut room[..len - 1], 1);
                assert_eq!(read, Ok(len - 1));
            }
        }
    }

    #[test]
    fn a_file_that_was_cut_off_is_read_directly_as_far_as_it_goes() {
        for len in [0, 100, 512, 4096, 5_000] {
            let (folder, file) = file(&[7; 10_000]);
            let mut by_thread = direct(&file, false);
            let by_ring = direct(&file, true);
            let cut = File::options().write(true).open(folder.join("file"));
            cut.and_then(|it| it.set_len(len)).expect("it is cut off");
            let expected = vec![7; len as usize];
            assert_eq!(&*by_thread.read().expect("it is read"), &expected);
            if let Some(read) = read(vec![by_ring]) {
                assert_eq!(read, [expected]);
            }
        }
    }

    #[test]
    fn what_can_not_be_read_directly_is_read_as_usual() {
        let bytes: Vec<u8> = (0..10_000).map(|it| (it / 7) as u8).collect();
        let (_folder, file) = file(&bytes);
        // No disk has a block that begins there, whatever its block length.
        let part = || Part {
            way: direct_way(&file, false),
            ..Part::of(file.clone(), 1, 9_999)
        };
        if let Way::Direct(direct) = part().way {
            let mut blocks = FileBytes::blocks(9_999);
            let read = pread(&direct, blocks.room_mut(), 1);
            assert_eq!(read, Err(Errno::INVAL));
        }
        let mut by_thread = part();
        assert_eq!(&*by_thread.read().expect("it is read"), &bytes[1..]);
        assert!(!by_thread.is_direct());
        if let Some(read) = read(vec![part()]) {
            assert_eq!(read, [&bytes[1..]]);
        }
    }

    /// No memory. Reads are not worth a place in the page cache, except the first one and a
    /// sample of the others.
    fn without_memory() -> Arc<DirectReads> {
        let reads = Arc::new(DirectReads::new(Arc::new(Memory::none())));
        let (_folder, file) = file(&[7]);
        let way = reads.way(&file, true, 0, 1);
        assert!(matches!(way, Way::Cached), "{way:?}");
        reads
    }

    #[test]
    fn whole_blocks_are_read_directly_and_counted_when_their_turn_comes() {
        let (_folder, file) = file(&[7; 100_000]);
        let reads = without_memory();
        for is_only_here in [true, false] {
            let is_direct = |offset, len| {
                let mut part = Part {
                    is_only_here,
                    direct_reads: Some(reads.clone()),
                    ..Part::of(file.clone(), offset, len)
                };
                part.choose_way();
                let bytes = part.room();
                let is_direct = part.is_direct();
                assert_eq!(bytes.len() > len, is_direct);
                part.end(Ok(bytes));
                is_direct
            };
            for _ in 0..100 {
                assert!(!is_direct(1, 9_999));
            }
            for (offset, len) in [(0, 10_000), (65_536, 34_464)] {
                let before = reads.count();
                let direct = (0..100).filter(|_| is_direct(offset, len)).count() as u64;
                assert_eq!(reads.count() - before, direct);
                assert_eq!(direct > 50, file.takes_direct_reads, "{direct}");
            }
        }
    }

    #[test]
    fn what_displaces_something_is_for_a_thread() {
        let (_folder, file) = file(&[7; 10_000]);
        let tasks = tasks::Tasks::of_this_thread().expect("a set of tasks");
        let ran = tasks.run_until(async move {
            let Ok(ring) = Ring::start(1) else {
                return;
            };
            let queue = queue(1, 1);
            for (way, is_for_thread) in [(Way::Cached, false), (Way::Displacing, true)] {
                let wanted = DiskRequest::Bytes(file.id, 0, 10_000);
                let (ring, part) = (
                    ring.clone(),
                    Part {
                        way,
                        ..Part::of(file.clone(), 0, 10_000)
                    },
                );
                let begin = move |begun| {
                    let given_back = ring.begin(part, begun);
                    assert_eq!(given_back.is_some(), is_for_thread);
                    if let Some((part, begun)) = given_back {
                        begun.finish(&part.fetch());
                    }
                    Ok(())
                };
                let work = Work::Prompt(Box::new(begin));
                match queue.run(wanted, WhenFull::Admit, work).await {
                    Ok(Fetched::Bytes(Ok(bytes))) => assert_eq!(&*bytes, [7; 10_000]),
                    other => panic!("{other:?}"),
                }
            }
        });
        ran.expect("the event loop runs");
    }
}
