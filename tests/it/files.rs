//! Files of a folder: what requests get, and what becomes of them when the
//! folder changes or the disk is slow.

mod answers;
mod changes;
mod conditions;
mod disk;
mod paths;

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use evenkeel_testkit::{Proxy, ProxySetup, RawClient, Response, TempDir};

use crate::setup::program;

/// When the files of these tests were last changed.
const MODIFIED: &str = "Sun, 09 Sep 2001 01:46:40 GMT";

fn modified() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

/// The further lines of a configuration with files, in TOML.
#[derive(Debug, Clone, Copy, Default)]
struct FileConfig<'a> {
    /// Further keys of `[server]`.
    server: &'a str,
    /// Further keys of `[disk]`.
    disk: &'a str,
    /// Further keys of the listener.
    listener: &'a str,
    /// Further keys of the route, such as `match`.
    route: &'a str,
    /// Further keys of the route's `files`.
    files: &'a str,
    /// Further tables, such as upstreams and routes.
    tables: &'a str,
}

impl FileConfig<'_> {
    /// The configuration, with this folder.
    fn text(&self, root: &str) -> String {
        format!(
            "[server]\nworkers = 1\n{}\n\n[access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
             [disk]\n{}\n\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n{}\n\n\
             [[route]]\n{}\n[route.files]\nroot = {root:?}\n{}\n\n{}\n",
            self.server, self.disk, self.listener, self.route, self.files, self.tables
        )
    }

    /// Starts the program with an empty folder.
    fn start(&self) -> FileSite {
        self.start_with(&ProxySetup::default())
    }

    /// Starts the program in a given way, with an empty folder.
    fn start_with(&self, setup: &ProxySetup) -> FileSite {
        let folder = TempDir::new().unwrap();
        let text = self.text(folder.path().to_str().unwrap());
        let proxy = Proxy::start_with(program(), &text, setup).unwrap();
        FileSite { proxy, folder }
    }
}

/// Number of requests after which a file is kept open, and its contents if it is short, even if
/// a new second begins meanwhile.
const OFTEN: usize = 8;

/// A folder of files, and the program that answers with them.
#[derive(Debug)]
struct FileSite {
    proxy: Proxy,
    folder: TempDir,
}

impl FileSite {
    /// One with an empty folder, and further keys of the route's `files`.
    fn serving(files: &str) -> Self {
        FileConfig {
            files,
            ..FileConfig::default()
        }
        .start()
    }

    /// One with nothing special, and these files.
    fn with(files: &[&str]) -> Self {
        let site = FileConfig::default().start();
        for name in files {
            site.write(name, name);
        }
        site
    }

    /// Writes a file, and the folders that it is in.
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(modified())
            .unwrap();
        path
    }

    /// The answer to a GET.
    #[track_caller]
    fn get(&self, path: &str) -> Response {
        self.proxy.client().get(path).unwrap()
    }

    /// Asks so often that the file is kept open, and its contents if it is short.
    #[track_caller]
    fn keep_open(&self, path: &str) {
        self.ask_so_often(path, OFTEN);
    }

    #[track_caller]
    fn ask_so_often(&self, path: &str, count: usize) {
        for _ in 0..count {
            assert_eq!(self.get(path).status, 200);
        }
    }

    /// The answer to a GET with further fields.
    #[track_caller]
    fn get_with(&self, path: &str, fields: &str) -> Response {
        ask(&mut self.proxy.client(), "GET", path, fields)
    }
}

/// The answer to a request with further fields, each with its CRLF.
#[track_caller]
fn ask(client: &mut RawClient, method: &str, path: &str, fields: &str) -> Response {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: test.example\r\n{fields}\r\n");
    client.ask(request).unwrap()
}

/// Bytes in which the content of each place identifies the place.
fn bytes_of(len: usize) -> Vec<u8> {
    let numbers =
        (0_u64..).flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    numbers.take(len).collect()
}
