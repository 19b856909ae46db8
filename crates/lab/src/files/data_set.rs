//! A data set: its paths, lengths and contents, how it is written, and how it
//! gets into the page cache and out of it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::syncfs;
use serde::{Deserialize, Serialize};

/// The median of the lengths, in bytes; their mean is twice that.
const MEDIAN_LEN: f64 = 4_608.0;
/// Upper bound of the lengths, in bytes.
const LEN_MAX: f64 = 1_048_576.0;
/// Room for the first line of a file.
const LEN_MIN: f64 = 64.0;
/// Files that a few requests ask for again and again.
const HOT_COUNT: u32 = 200;
/// The file with the parameters, as JSON.
const STAMP: &str = ".evenkeel-lab";
/// Goes up when other files follow from the same parameters.
const FORMAT: u32 = 2;

/// The parameters that determine a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// The version of the rules that make the files.
    format: u32,
    /// How many files, without the hot ones.
    count: u32,
    /// Seed of lengths and contents.
    seed: u64,
}

impl Parameters {
    /// Of `count` files, drawn from `seed`.
    #[must_use]
    pub fn new(count: u32, seed: u64) -> Self {
        Self {
            format: FORMAT,
            count,
            seed,
        }
    }
}

/// A data set on the disk.
#[derive(Debug, Clone)]
pub struct DataSet {
    root: PathBuf,
    parameters: Parameters,
}

/// One of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSetEntry {
    /// From the root, with a slash in front.
    pub path: String,
    /// In bytes.
    pub len: u64,
}

impl DataSet {
    /// The one file that is in it by itself.
    pub const HOT_FILE: &str = "/hot.bin";
    /// How long that is, in bytes.
    pub const HOT_FILE_LEN: u64 = 44;

    /// Writes the files that follow from `parameters`, unless they are there.
    ///
    /// # Errors
    /// The disk's, or the folder has something else in it.
    pub fn make(root: &Path, parameters: Parameters) -> io::Result<Self> {
        match Self::open(root) {
            Ok(set) if set.parameters == parameters => return Ok(set),
            Ok(_) => fs::remove_dir_all(root)?,
            Err(_) if root.exists() => {
                let message = format!("{} has no data set in it", root.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            Err(_) => {}
        }
        fs::create_dir_all(root)?;
        let set = Self {
            root: root.canonicalize()?,
            parameters,
        };
        // A stamp that matches no parameters, so that an interrupted set is made again.
        let begun = Parameters {
            format: 0,
            ..parameters
        };
        set.stamp(begun)?;
        set.write()?;
        set.stamp(parameters)?;
        Ok(set)
    }

    /// A data set that is there.
    ///
    /// # Errors
    /// It isn't.
    pub fn open(root: &Path) -> io::Result<Self> {
        let stamp = fs::read(root.join(STAMP)).map_err(|error| {
            let root = root.display();
            io::Error::new(error.kind(), format!("data set in {root}: {error}"))
        })?;
        Ok(Self {
            root: root.canonicalize()?,
            parameters: serde_json::from_slice(&stamp)?,
        })
    }

    /// The same files in another folder, written unless they are there.
    ///
    /// # Errors
    /// The errors of [`make`](Self::make).
    pub fn copy(&self, root: &Path) -> io::Result<Self> {
        Self::make(root, self.parameters)
    }

    /// Its folder, as an absolute path.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How many files there are, without the hot ones.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.parameters.count
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{} files, {:.1} MB, seed {}, in {}",
            self.parameters.count,
            self.total_len() as f64 / 1e6,
            self.parameters.seed,
            self.root.display()
        )
    }

    /// All files but the hot ones.
    pub fn entries(&self) -> impl Iterator<Item = DataSetEntry> {
        (0..self.parameters.count).map(|index| self.entry(index))
    }

    /// The files that a few requests ask for again and again.
    pub fn hot_entries(&self) -> impl Iterator<Item = DataSetEntry> {
        (0..HOT_COUNT).map(|index| DataSetEntry {
            path: format!("/hotset/{index:06}.jpg"),
            len: self.draw_len(u64::from(u32::MAX) + u64::from(index)),
        })
    }

    /// The length of all but the hot ones, in bytes.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.entries().map(|entry| entry.len).sum()
    }

    /// Reads everything, so that all of it is in the page cache where there is
    /// room.
    ///
    /// # Errors
    /// The disk's, and of a file that does not begin with its name and length.
    pub fn read_all(&self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for entry in self.everything() {
            bytes.clear();
            File::open(self.place(&entry))?.read_to_end(&mut bytes)?;
            if bytes.len() as u64 != entry.len || !bytes.starts_with(first_line(&entry).as_bytes())
            {
                let message = format!("{} is not what was written", entry.path);
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        Ok(())
    }

    fn everything(&self) -> impl Iterator<Item = DataSetEntry> {
        let hot = DataSetEntry {
            path: Self::HOT_FILE.to_owned(),
            len: Self::HOT_FILE_LEN,
        };
        self.entries()
            .chain(self.hot_entries())
            .chain(std::iter::once(hot))
    }

    /// In one of 4,096 folders, as nginx lays out a cache (`levels=1:2`): some
    /// fifty files in each, as with millions of files in 65,536 folders.
    fn entry(&self, index: u32) -> DataSetEntry {
        let folder = self.random(u64::from(index)).u16(..) >> 4;
        DataSetEntry {
            path: format!("/{:x}/{:02x}/{index:06}.jpg", folder >> 8, folder & 0xff),
            len: self.draw_len(u64::from(index)),
        }
    }

    /// Log-normal, by the Box-Muller transform.
    fn draw_len(&self, index: u64) -> u64 {
        // In a log-normal distribution, mean / median = exp(sigma² / 2).
        let sigma = (2.0 * std::f64::consts::LN_2).sqrt();
        let mut random = self.random(index);
        // The first draw says in which folder it is.
        let _ = random.u16(..);
        let (radius, angle) = (1.0 - random.f64(), random.f64());
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        let len = MEDIAN_LEN * (sigma * normal).exp();
        len.clamp(LEN_MIN, LEN_MAX).round() as u64
    }

    fn random(&self, index: u64) -> fastrand::Rng {
        // Neighbouring seeds give alike first draws; the odd factor parts them.
        let seed = self.parameters.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = fastrand::Rng::with_seed(seed);
        random.fork()
    }

    fn place(&self, entry: &DataSetEntry) -> PathBuf {
        self.root.join(&entry.path[1..])
    }

    fn write(&self) -> io::Result<()> {
        let mut filler = vec![0; LEN_MAX as usize];
        fastrand::Rng::with_seed(self.parameters.seed).fill(&mut filler);
        fs::create_dir_all(self.root.join("hotset"))?;
        for entry in self.everything() {
            let path = self.place(&entry);
            let mut file = match File::create(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    path.parent().map_or(Ok(()), fs::create_dir_all)?;
                    File::create(&path)?
                }
                other => other?,
            };
            file.write_all(&content(&entry, &filler))?;
        }
        // Pages that are not on the disk yet can't be dropped from the page cache.
        Ok(syncfs(File::open(&self.root)?)?)
    }

    fn stamp(&self, parameters: Parameters) -> io::Result<()> {
        fs::write(self.root.join(STAMP), serde_json::to_string(&parameters)?)
    }
}

fn first_line(entry: &DataSetEntry) -> String {
    format!("{} {}\n", entry.path, entry.len)
}

/// The first line names the file and its length; what follows does not shrink
/// when it is compressed.
fn content(entry: &DataSetEntry, filler: &[u8]) -> Vec<u8> {
    let mut bytes = first_line(entry).into_bytes();
    let rest = entry.len as usize - bytes.len();
    bytes.extend_from_slice(&filler[..rest]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(count: u32, seed: u64) -> DataSet {
        DataSet {
            root: PathBuf::new(),
            parameters: Parameters::new(count, seed),
        }
    }

    #[test]
    fn lengths_have_the_median_and_the_mean_of_an_image_server() {
        let mut lens: Vec<u64> = set(100_000, 1).entries().map(|entry| entry.len).collect();
        lens.sort_unstable();
        let median = lens[lens.len() / 2] as f64;
        let mean = lens.iter().sum::<u64>() as f64 / lens.len() as f64;
        assert!((median / 4_608.0 - 1.0).abs() < 0.03, "{median}");
        assert!((mean / 9_216.0 - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn files_follow_from_the_seed() {
        let of = |seed| set(50, seed).entries().collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!(of(1)[7].path.ends_with("/000007.jpg"));
        assert_eq!(of(1)[7].path.len(), "/3/a7/000007.jpg".len());
    }

    #[test]
    fn a_data_set_is_written_once_and_reads_back() -> io::Result<()> {
        let root = std::env::temp_dir().join(format!("evenkeel-lab-files-{}", std::process::id()));
        let made = DataSet::make(&root, Parameters::new(20, 3))?;
        made.read_all()?;
        let written = |set: &DataSet| fs::metadata(set.place(&set.entry(0)))?.modified();
        let before = written(&made)?;
        let again = DataSet::make(&root, Parameters::new(20, 3))?;
        assert_eq!(before, written(&again)?);
        let other = DataSet::make(&root, Parameters::new(10, 3))?;
        assert!(!other.place(&made.entry(15)).exists());
        made.read_all().expect_err("half of its files are gone");
        fs::remove_dir_all(&root)
    }
}
