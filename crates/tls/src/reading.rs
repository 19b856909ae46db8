//! Reads certificates from their sources, and later reads changed ones again.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::certificate::{Certificate, Files, Issuers};
use crate::error::{Error, Fault};
use crate::store::Certificates;

/// A source of certificates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// Two PEM files: the certificate with its chain, and its private key. They may be the
    /// same one.
    Pair {
        /// The certificate, followed by its issuers.
        chain: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// A PEM file with a certificate, its chain and its private key, which may not be there
    /// yet.
    Expected(PathBuf),
    /// A folder with, in the order of their names:
    ///
    /// * `NAME.pem` or `NAME.crt`: the certificate with its chain. The private key is in the
    ///   same file, in `NAME.pem.key`, or in `NAME.key`.
    /// * folders with `fullchain.pem` and `privkey.pem`, as certbot makes them. The folder
    ///   itself may be one of these.
    ///
    /// Beside each there may be an OCSP response, such as `NAME.pem.ocsp`. Names that begin
    /// with a dot are ignored.
    Folder(PathBuf),
}

/// Something in a source that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The file or the folder.
    pub path: PathBuf,
    /// The fault, beginning with the path.
    pub text: String,
    /// Whether an earlier certificate is still served in its place.
    pub is_kept: bool,
}

/// Files, and folders to which further ones may come, whose changes matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watched {
    /// The files.
    pub files: Vec<PathBuf>,
    /// The folders.
    pub folders: Vec<PathBuf>,
}

/// Reads the certificates of all sources.
///
/// Files that have not changed since `before` are not read again. A pair of files that is
/// broken, half written or mismatched keeps its certificate of `before`. A folder that cannot
/// be listed keeps all of its certificates. A file that was removed from a folder takes its
/// certificate with it.
///
/// Reading takes about 30 µs for each certificate that is new.
#[must_use]
pub fn read(sources: &[Source], before: Option<&Certificates>) -> (Certificates, Vec<Trouble>) {
    let mut reading = Reading::new(before);
    for source in sources {
        match source {
            Source::Pair { chain, key } => {
                let ocsp = with_extension(chain, "ocsp");
                reading.add(Files {
                    chain: chain.clone(),
                    keys: if key == chain {
                        Vec::new()
                    } else {
                        vec![key.clone()]
                    },
                    ocsp: ocsp.exists().then_some(ocsp),
                });
            }
            Source::Expected(path) => {
                if path.exists() {
                    reading.add(Files {
                        chain: path.clone(),
                        keys: Vec::new(),
                        ocsp: None,
                    });
                }
            }
            Source::Folder(folder) => reading.add_folder(folder),
        }
    }
    (Certificates::new(reading.certificates), reading.troubles)
}

/// The current files and folders of these sources.
#[must_use]
pub fn watched(sources: &[Source]) -> Watched {
    let mut watched = Watched::default();
    for source in sources {
        match source {
            Source::Pair { chain, key } => {
                let ocsp = with_extension(chain, "ocsp");
                watched.files.extend([chain.clone(), key.clone(), ocsp]);
            }
            Source::Expected(path) => {
                let folder = path.parent().map(Path::to_owned);
                watched.folders.extend(folder);
            }
            Source::Folder(folder) => {
                watched.folders.push(folder.clone());
                if let Ok(listed) = Listed::read(folder) {
                    watched.folders.extend(listed.folders);
                }
            }
        }
    }
    watched.folders.sort_unstable();
    watched.folders.dedup();
    watched
}

struct Reading<'a> {
    certificates: Vec<Arc<Certificate>>,
    troubles: Vec<Trouble>,
    before: &'a [Arc<Certificate>],
    before_by_path: HashMap<&'a Path, &'a Arc<Certificate>>,
    issuers: HashSet<Issuers>,
}

impl<'a> Reading<'a> {
    fn new(before: Option<&'a Certificates>) -> Self {
        let before = before.map_or(&[][..], Certificates::all);
        let mut seen = HashSet::new();
        let issuers = before.iter().map(|it| it.issuers());
        let issuers = issuers.filter(|it| seen.insert(it.as_ptr()));
        Self {
            certificates: Vec::with_capacity(before.len()),
            troubles: Vec::new(),
            before_by_path: before.iter().map(|it| (it.path(), it)).collect(),
            issuers: issuers.cloned().collect(),
            before,
        }
    }

    fn add(&mut self, files: Files) {
        let before = self.before_by_path.get(&*files.chain).copied();
        if let Some(before) = before.filter(|it| it.is_of(&files)) {
            self.certificates.push(before.clone());
            return;
        }
        match Certificate::read(files, &mut self.issuers) {
            Ok((certificate, fault)) => {
                self.certificates.push(Arc::new(certificate));
                self.troubles.extend(fault.map(|it| trouble(&it, false)));
            }
            Err(error) => {
                self.troubles.push(trouble(&error, before.is_some()));
                self.certificates.extend(before.cloned());
            }
        }
    }

    fn add_folder(&mut self, folder: &Path) {
        match Listed::read(folder) {
            Ok(listed) => listed.certificates.into_iter().for_each(|it| self.add(it)),
            Err(error) => {
                let of_folder = self
                    .before
                    .iter()
                    .filter(|it| it.path().starts_with(folder));
                let kept = self.certificates.len();
                self.certificates.extend(of_folder.cloned());
                let is_kept = self.certificates.len() > kept;
                let error = Error::new(folder, Fault::Unreadable(error));
                self.troubles.push(trouble(&error, is_kept));
            }
        }
    }
}

fn trouble(error: &Error, is_kept: bool) -> Trouble {
    let path = error.path.clone();
    let text = error.to_string();
    Trouble {
        path,
        text,
        is_kept,
    }
}

/// The content of a folder of certificates.
struct Listed {
    certificates: Vec<Files>,
    folders: Vec<PathBuf>,
}

/// The file names of certbot for one certificate.
const CERTBOT: [&str; 4] = ["fullchain.pem", "privkey.pem", "cert.pem", "chain.pem"];

impl Listed {
    fn read(folder: &Path) -> io::Result<Self> {
        let mut listed = Self {
            certificates: Vec::new(),
            folders: Vec::new(),
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // A name that is not UTF-8 is neither of the forms.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            if is_certificate(&name) || !is_folder(&entry) {
                names.push(name);
            } else {
                listed.folders.push(folder.join(name));
            }
        }
        names.sort_unstable();
        listed.folders.sort_unstable();
        let exists = |name: &str| names.binary_search_by(|it| (**it).cmp(name)).is_ok();
        let is_certbot = exists(CERTBOT[0]) && exists(CERTBOT[1]);
        for name in names.iter().filter(|it| is_certificate(it)) {
            let is_of_certbot = is_certbot && CERTBOT.contains(&&**name);
            if is_of_certbot && *name != CERTBOT[0] {
                continue;
            }
            let stem = &name[..name.len() - ".pem".len()];
            let keys = if is_of_certbot {
                vec![CERTBOT[1].to_owned()]
            } else {
                vec![format!("{name}.key"), format!("{stem}.key")]
            };
            let ocsp = format!("{name}.ocsp");
            listed.certificates.push(Files {
                chain: folder.join(name),
                keys: keys
                    .iter()
                    .filter(|it| exists(it))
                    .map(|it| folder.join(it))
                    .collect(),
                ocsp: exists(&ocsp).then(|| folder.join(ocsp)),
            });
        }
        for folder in &listed.folders {
            let chain = folder.join(CERTBOT[0]);
            if chain.exists() {
                let key = folder.join(CERTBOT[1]);
                let ocsp = with_extension(&chain, "ocsp");
                listed.certificates.push(Files {
                    chain,
                    keys: key.exists().then_some(key).into_iter().collect(),
                    ocsp: ocsp.exists().then_some(ocsp),
                });
            }
        }
        Ok(listed)
    }
}

fn is_certificate(name: &str) -> bool {
    [".pem", ".crt"]
        .iter()
        .any(|it| name.len() > it.len() && name.ends_with(it))
}

/// Whether it is a folder, or a link to one.
fn is_folder(entry: &DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
        Ok(kind) => kind.is_dir(),
        Err(_) => false,
    }
}

/// The path with a further extension at its end.
fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".");
    path.push(extension);
    path.into()
}
