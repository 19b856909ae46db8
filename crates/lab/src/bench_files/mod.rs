//! `evenkeel-lab bench-files`: Evenkeel, nginx and lighttpd with small files.
//!
//! Servers run on one core with one worker each, the load on another. Files in the page cache
//! are compared by CPU time per request. Cold files are compared by requests per second, one
//! server after the other, in a memory control group with room for a quarter of the files. Only
//! ratios within one run count.

mod beside;
mod case;
mod cold;
mod control_group;
mod fio;
mod flood;
mod long;
mod overload;
mod server;
mod warm;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::bench::CommonOptions;
use crate::bench::install;
use crate::bench::kernel_threads::SentAway;
use crate::bench::machine::Machine;
use crate::bench::network;
use crate::bench::proxy::{Kind, Site};
use crate::bench::report::CaseReport;
use crate::bench::rounds::Effort;
use crate::files::{DataSet, Parameters};
use crate::slow_disk::{self, SlowDisk};
use case::{Case, Disk, Plan};

/// Options of `evenkeel-lab bench-files`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: CommonOptions,
    /// Servers to compare.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "evenkeel,nginx,nginx-aio,lighttpd,fio"
    )]
    proxies: Vec<Entrant>,
    /// How many files there are.
    #[arg(long, default_value_t = 200_000)]
    count: u32,
    /// Seed of the files' lengths.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the files; by default in the folder of the figures.
    #[arg(long)]
    files: Option<PathBuf>,
    /// Total length of the files in case `long`, in units of 10^9 bytes: 50, or 1 if quick.
    #[arg(long)]
    long_gb: Option<f64>,
}

/// Room for a file in the slow disk's image, in bytes. It includes the file of `fio`, with a
/// generous margin.
const IMAGE_FILE_LEN: u64 = 32 * 1024;
/// Least length of the image, in bytes.
const IMAGE_LEN_MIN: u64 = 1 << 30;

/// The servers that can take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Entrant {
    Evenkeel,
    Nginx,
    NginxAio,
    Lighttpd,
    Fio,
}

impl Entrant {
    fn kind(self) -> Kind {
        match self {
            Self::Evenkeel => Kind::Evenkeel,
            Self::Nginx => Kind::Nginx,
            Self::NginxAio => Kind::NginxThreads,
            Self::Lighttpd => Kind::Lighttpd,
            Self::Fio => Kind::Fio,
        }
    }
}

/// The common inputs of the cases.
#[derive(Clone)]
struct Setting {
    site: Site,
    set: DataSet,
    /// The slow disk with the files, if they are not on the machine's own.
    slow_disk: Option<Rc<SlowDisk>>,
    effort: Effort,
    kinds: Vec<Kind>,
    /// Total length of the files in case `long`, in bytes.
    long_len: u64,
}

impl Setting {
    fn of(options: &Options) -> io::Result<Self> {
        let common = &options.common;
        let long_gb = if common.quick { 1.0 } else { 50.0 };
        let root = options.files.clone();
        let root = root.unwrap_or_else(|| common.out.join("files"));
        Ok(Self {
            site: common.site()?,
            set: DataSet::make(&root, Parameters::new(options.count, options.seed))?,
            slow_disk: None,
            effort: common.effort((5, 4.0), (2, 1.0)),
            kinds: options.proxies.iter().map(|it| it.kind()).collect(),
            long_len: (options.long_gb.unwrap_or(long_gb) * 1e9) as u64,
        })
    }

    /// The same, with the files on a slow disk, which is there until it is dropped.
    fn on_slow_disk(&self) -> io::Result<Self> {
        let folder = self.set.root().with_extension("slow");
        let len = u64::from(self.set.count()) * IMAGE_FILE_LEN + IMAGE_LEN_MIN;
        let disk = SlowDisk::attach(&folder, len)?;
        let set = self.set.copy(&disk.root().join("files"))?;
        Ok(Self {
            set,
            slow_disk: Some(Rc::new(disk)),
            ..self.clone()
        })
    }

    /// Whether reads of a slow disk take their time.
    fn slow_down(&self, is_slow: bool) -> io::Result<()> {
        let time = if is_slow {
            slow_disk::READ_TIME
        } else {
            Duration::ZERO
        };
        self.slow_disk
            .as_ref()
            .map_or(Ok(()), |disk| disk.set_read_time(time))
    }

    /// The participants that are servers.
    fn servers(&self) -> Vec<Kind> {
        let mut kinds = self.kinds.clone();
        kinds.retain(|kind| *kind != Kind::Fio);
        kinds
    }

    /// The mean length of the files, in bytes.
    fn mean_len(&self) -> u64 {
        (self.set.total_len() / u64::from(self.set.count()).max(1)).max(1)
    }

    /// Arguments of a load that requests the files; `hot` is the share of requests for hot
    /// ones.
    fn asking(&self, connections: usize, hot: f64) -> Vec<String> {
        vec![
            format!("--files={}", self.set.root().display()),
            format!("--connections={connections}"),
            format!("--hot={hot}"),
        ]
    }
}

/// Runs the cases and returns whether everything required holds.
///
/// # Errors
/// Something can't be started or written.
pub fn run(options: &Options) -> io::Result<bool> {
    let common = &options.common;
    let cases = common.chosen(case::all(), |case| &case.name)?;
    install::ensure(&install::FOR_FILES)?;
    network::settle()?;
    let _sent_away = SentAway::memory_watchers();
    let machine = Machine::look(&["nginx", "lighttpd", "fio"]);
    println!("{}", machine.line());
    let setting = Setting::of(options)?;
    println!("{}", setting.set.line());
    let mut reports: Vec<CaseReport> = Vec::new();
    let mut slow = None;
    for case in &cases {
        let setting = match (case.disk, &slow) {
            (Disk::Own, _) => &setting,
            (Disk::Slow, Some(slow)) => slow,
            (Disk::Slow, None) => &*slow.insert(setting.on_slow_disk()?),
        };
        let report = run_case(setting, case)?;
        print!("{}", report.table());
        reports.push(report);
        // Written after each case, so that an interrupted run leaves its results.
        let figures = serde_json::json!({
            "machine": machine, "files": setting.set.line(), "cases": reports,
        });
        let path = common.out.join("bench-files.json");
        std::fs::write(path, serde_json::to_string(&figures)?)?;
        let tables: String = reports.iter().map(CaseReport::table).collect();
        let text = format!("{}\n{}\n{tables}", machine.line(), setting.set.line());
        std::fs::write(common.out.join("bench-files.txt"), text)?;
    }
    Ok(reports.iter().all(CaseReport::passes))
}

fn run_case(setting: &Setting, case: &Case) -> io::Result<CaseReport> {
    let mut report = CaseReport {
        name: case.name.clone(),
        title: case.title.clone(),
        rows: Vec::new(),
        verdicts: Vec::new(),
    };
    match case.plan {
        Plan::Memory { connections } => warm::memory(setting, connections, &mut report)?,
        Plan::HotFile { connections } => warm::hot_file(setting, connections, &mut report)?,
        Plan::Cold { connections } => cold::run(setting, connections, &mut report)?,
        Plan::Beside => beside::beside(setting, &mut report)?,
        Plan::Crowd => beside::crowd(setting, &mut report)?,
        Plan::Overload => overload::run(setting, &mut report)?,
        Plan::Long => long::run(setting, &mut report)?,
    }
    Ok(report)
}
