use super::*;
use std::io::Read;

use evenkeel_testkit::TempDir;

#[test]
fn no_line_is_cut_where_there_is_no_room_for_all_of_it() {
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("a pipe");
    let mut reader = File::from(reader);
    let mut sink = FileSink::new(File::from(writer), None);
    let line = [&[b'x'; 999][..], b"\n"].concat();
    let lines = line.repeat(100);
    let mut read = Vec::new();
    let mut lost = 0;
    let drain = |reader: &mut File, read: &mut Vec<u8>| {
        let mut buffer = vec![0; 1 << 20];
        if let Ok(len) = reader.read(&mut buffer) {
            read.extend_from_slice(&buffer[..len]);
        }
    };
    for _ in 0..10 {
        sink.lines().extend_from_slice(&lines);
        let written = sink.write(100, true, 0);
        assert!(written.lost > 0 && written.error.is_some());
        lost += written.lost;
        drain(&mut reader, &mut read);
    }
    assert_eq!(sink.finish_line(), 0);
    drain(&mut reader, &mut read);
    assert!(read.chunks(1000).all(|it| it == line), "a line was cut");
    assert_eq!(read.len() as u64 / 1000 + lost, 1000);
}

/// Length of lines that fill a buffer, in bytes.
const MANY: usize = 128 * 1024;
/// Length of lines that fill no buffer, and are worth a direct write.
const FEWER: usize = MANY - 999;

/// A sink in a folder of its own, and the lines that it was given.
struct Given {
    folder: TempDir,
    sink: FileSink,
    expected: Vec<u8>,
}

impl Given {
    fn new(text: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("access.log");
        fs::write(&path, text).expect("a file");
        Given {
            sink: FileSink::open(&path).expect("a log"),
            folder,
            expected: text.into(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }

    /// Gives it about `len` bytes of lines.
    fn write(&mut self, len: usize, waiting: usize) {
        let mut count = 0;
        let mut lines = Vec::new();
        while lines.len() < len {
            writeln!(lines, "line {} of many", self.expected.len()).expect("memory");
            count += 1;
        }
        self.expected.extend_from_slice(&lines);
        self.sink.lines().extend_from_slice(&lines);
        let written = self.sink.write(count, len >= MANY, waiting);
        assert_eq!((written.lost, written.error.map(|it| it.kind())), (0, None));
    }

    fn check(&mut self) {
        self.sink.flush();
        assert_eq!(self.sink.held(), 0);
        let found = fs::read(self.path()).expect("the log");
        assert!(found == self.expected, "{} bytes", found.len());
    }
}

#[test]
fn many_lines_arrive_whole_however_they_come() {
    let mut given = Given::new("what was there\n");
    for round in 0..40 {
        // Now and then a disk that is behind, a long line, a short buffer.
        let waiting = if round % 7 == 6 { 2 * BEHIND } else { 0 };
        let len = [MANY, MANY + 999, 5 * MANY, 300, FEWER][round % 5];
        given.write(len, waiting);
        if round % 11 == 10 {
            given.sink.flush();
        }
    }
    given.check();
}

#[test]
fn whole_blocks_are_written_and_what_follows_is_held() {
    let mut given = Given::new("what was there\n");
    for _ in 0..8 {
        assert_eq!(file_len(&given.sink.file), 15);
        given.write(MANY, 0);
    }
    assert_eq!(file_len(&given.sink.file) % BLOCK as u64, 0);
    assert!(given.sink.is_line_begun);
    assert!((1..BLOCK).contains(&given.sink.held.bytes().len()));
    given.check();
    assert!(!given.sink.is_line_begun);
}

#[test]
fn what_fills_no_buffer_is_written_at_once() {
    let mut given = Given::new("what was there\n");
    for len in [FEWER, 300, FEWER] {
        given.write(len, 0);
        assert_eq!(file_len(&given.sink.file), given.expected.len() as u64);
        assert_eq!(given.sink.held(), 0);
    }
    given.check();
}

#[test]
fn what_another_process_left_of_a_line_stays_alone() {
    let mut given = Given::new("a line\nhalf of o");
    given.expected.push(b'\n');
    given.write(300, 0);
    given.write(2 * MANY, 0);
    given.check();
}

#[test]
fn others_may_append_and_cut_off() {
    let mut given = Given::new("");
    let mut other = open(&given.path()).expect("the log");
    for round in 0..30 {
        if round % 5 == 4 {
            given.sink.flush();
            other.write_all(b"another's\n").expect("to append");
            given.expected.extend_from_slice(b"another's\n");
        }
        given.write(MANY, 0);
    }
    given.check();
    // As logrotate does with `copytruncate`.
    other.set_len(0).expect("to cut it off");
    given.expected.clear();
    for _ in 0..9 {
        given.write(MANY, 0);
    }
    given.check();
}

#[test]
fn one_that_appends_meanwhile_costs_no_line() {
    let mut given = Given::new("");
    let mut other = open(&given.path()).expect("the log");
    let mut others = 0;
    for round in 0..30 {
        given.write(MANY, 0);
        if round % 3 == 2 {
            // Within a line, perhaps: each is whole but for that.
            other.write_all(b"<another's>").expect("to append");
            others += 1;
        }
    }
    given.sink.flush();
    let found = fs::read_to_string(given.path()).expect("the log");
    assert_eq!(found.matches("<another's>").count(), others);
    assert!(found.replace("<another's>", "").as_bytes() == given.expected);
}
