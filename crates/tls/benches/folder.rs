//! The costs of a folder of certificates: `cargo bench -p evenkeel-tls`, with `-- NUMBER` for
//! another number of them. Beside each figure is its limit; the program fails if one is
//! exceeded.
//!
//! Each certificate is a bundle of ECDSA P-256 with one issuer above it, and has two names.
//! Times are CPU time of one thread, with the files in the page cache.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use evenkeel_testkit::TempDir;
use evenkeel_tls::reading::read;
use evenkeel_tls::{Certificates, Source};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::time::{ClockId, clock_gettime};
use rustls::SignatureScheme;
use rustls_pki_types::UnixTime;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Names the folder to the process that writes the certificates.
const FOLDER: &str = "EVENKEEL_TLS_BENCH_FOLDER";

const LOOKUPS: usize = 1_000_000;

fn main() -> ExitCode {
    let number = std::env::args().find_map(|it| it.parse().ok());
    let number: usize = number.unwrap_or(100_000);
    // Another process writes them: memory that it frees would be used again here.
    if let Some(folder) = std::env::var_os(FOLDER) {
        write_bundles(Path::new(&folder), number);
        return ExitCode::SUCCESS;
    }
    let temp = TempDir::new().expect("a folder can be made");
    let own = std::env::current_exe().expect("Linux tells it");
    let mut writer = Command::new(own);
    let written = writer
        .arg(number.to_string())
        .env(FOLDER, temp.path())
        .status();
    assert!(written.is_ok_and(|it| it.success()));
    let sources = [Source::Folder(temp.path().to_owned())];
    let per = |took: Duration| took.as_nanos() as f64 / number as f64 / 1e3;

    let memory = resident();
    let (took, (certificates, troubles)) = timed(|| read(&sources, None));
    assert_eq!(troubles, []);
    assert_eq!(certificates.all().len(), number);
    let bytes = (resident() - memory) as f64 / number as f64;
    let limit = Duration::from_secs_f64(5.0 * number as f64 / 100_000.0);
    let mut is_within = true;
    let mut show = |what: &str, figure: f64, limit: f64, unit: &str| {
        println!("{what:34} {figure:9.2} {unit:6} (limit {limit})");
        is_within &= figure <= limit;
    };
    println!("{number} certificates");
    show("read", took.as_secs_f64(), limit.as_secs_f64(), "s");
    show("read, each", per(took), 50.0, "µs");
    show("memory, each", bytes, 4000.0, "bytes");

    let (took, (again, _)) = timed(|| read(&sources, Some(&certificates)));
    show("read again, unchanged, each", per(took), 10.0, "µs");
    drop(again);

    let names: Vec<String> = (0..number).map(|it| format!("WWW.{}", name(it))).collect();
    for (what, prefix) in [("lookup, exact name", 4), ("lookup, wildcard", 0)] {
        let (took, found) = timed(|| look_up(&certificates, &names, prefix));
        assert_eq!(found, LOOKUPS);
        show(
            what,
            took.as_nanos() as f64 / LOOKUPS as f64 / 1e3,
            1.0,
            "µs",
        );
    }

    let some = number.min(1000);
    let (took, loaded) = timed(|| {
        let some = certificates.all().iter().take(some);
        some.filter(|it| it.certified_key(UnixTime::now()).is_some())
            .count()
    });
    assert_eq!(loaded, some);
    show(
        "key, at its first handshake",
        took.as_nanos() as f64 / some as f64 / 1e3,
        200.0,
        "µs",
    );
    if is_within {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn name(number: usize) -> String {
    format!("site-{number}.customers.example")
}

fn look_up(certificates: &Certificates, names: &[String], prefix: usize) -> usize {
    let now = UnixTime::now();
    let is_usable = |it| it == SignatureScheme::ECDSA_NISTP256_SHA256;
    // A step that is prime to most numbers: neighbours are far apart in memory.
    let names = (0..LOOKUPS).map(|it| &names[it * 7919 % names.len()][prefix..]);
    names
        .filter(|name| black_box(certificates.find(name, now, is_usable)).is_some())
        .count()
}

fn write_bundles(folder: &Path, number: usize) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("there are random bytes");
    let issuer = CertifiedIssuer::self_signed(params, key).expect("it is well formed");
    // All have the same key, since nothing compares keys.
    let key = KeyPair::generate().expect("there are random bytes");
    for number in 0..number {
        let name = name(number);
        let names = vec![name.clone(), format!("*.{name}")];
        let params = CertificateParams::new(names).expect("these are names");
        let certificate = params.signed_by(&key, &issuer).expect("it is well formed");
        let bundle = certificate.pem() + &issuer.pem() + &key.serialize_pem();
        fs::write(folder.join(format!("{name}.pem")), bundle).expect("there is room");
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let start = now();
    let done = work();
    (now() - start, done)
}

/// The bytes of memory that the process has.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = text.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok());
    pages.expect("its second number is that of pages") * rustix::param::page_size() as u64
}
