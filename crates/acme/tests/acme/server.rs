//! A server in memory that machines share, as [`Shared`] describes it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use evenkeel_acme::Shared;
use evenkeel_acme::shared::{
    Changes, Fingerprint, NewCertificate, Point, SharedCertificate, Unusable,
};

/// A server whose leases end on command.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    is_down: bool,
    epoch: u32,
    revision: u64,
    records: BTreeMap<String, Vec<u8>>,
    certificates: BTreeMap<String, (u64, SharedCertificate)>,
    leases: HashMap<String, String>,
    /// Calls of `certificate` and `changes`.
    asked: [usize; 2],
}

impl Memory {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap()
    }

    fn up(&self) -> Result<MutexGuard<'_, Kept>, Unusable> {
        let kept = self.kept();
        if kept.is_down {
            return Err(Unusable("the server of the test is down".to_owned()));
        }
        Ok(kept)
    }

    /// Whether the server can be used.
    pub fn set_up(&self, is_up: bool) {
        self.kept().is_down = !is_up;
    }

    /// Loses everything.
    pub fn flush(&self) {
        let mut kept = self.kept();
        *kept = Kept {
            epoch: kept.epoch + 1,
            asked: kept.asked,
            ..Kept::default()
        };
    }

    /// All leases run out.
    pub fn end_leases(&self) {
        self.kept().leases.clear();
    }

    /// The records of a kind, without those of certificates.
    pub fn records(&self, kind: &str) -> Vec<String> {
        let kept = self.kept();
        let records = kept.records.keys().filter(|it| it.starts_with(kind));
        records.cloned().collect()
    }

    /// How often a certificate was read, and how often changes were.
    pub fn asked(&self) -> [usize; 2] {
        self.kept().asked
    }

    /// The certificate of a name.
    pub fn held(&self, name: &str) -> Option<SharedCertificate> {
        self.kept().certificates.get(name).map(|it| it.1.clone())
    }

    /// Puts a certificate there, whatever is there.
    pub fn place(&self, name: &str, certificate: SharedCertificate) {
        let mut kept = self.kept();
        kept.revision += 1;
        let revision = kept.revision;
        kept.certificates
            .insert(name.to_owned(), (revision, certificate));
    }
}

impl Shared for Memory {
    fn get(&self, record: &str) -> Result<Option<Vec<u8>>, Unusable> {
        Ok(self.up()?.records.get(record).cloned())
    }

    fn put(&self, record: &str, value: &[u8], _: Duration) -> Result<(), Unusable> {
        self.up()?.records.insert(record.to_owned(), value.to_vec());
        Ok(())
    }

    fn remove(&self, record: &str) -> Result<(), Unusable> {
        self.up()?.records.remove(record);
        Ok(())
    }

    fn certificate(&self, name: &str) -> Result<Option<SharedCertificate>, Unusable> {
        let mut kept = self.up()?;
        kept.asked[0] += 1;
        Ok(kept.certificates.get(name).map(|it| it.1.clone()))
    }

    fn put_certificate(
        &self,
        name: &str,
        certificate: &NewCertificate<'_>,
        replaces: Option<Fingerprint>,
    ) -> Result<bool, Unusable> {
        drop(self.up()?);
        if self.held(name).map(|it| it.fingerprint) != replaces {
            return Ok(false);
        }
        let NewCertificate {
            fingerprint, pem, ..
        } = *certificate;
        let pem = Some(pem.to_vec());
        self.place(name, SharedCertificate { fingerprint, pem });
        Ok(true)
    }

    fn changes(&self, after: Option<&Point>) -> Result<Changes, Unusable> {
        let mut kept = self.up()?;
        kept.asked[1] += 1;
        let epoch = kept.epoch.to_string();
        let after = after
            .filter(|it| it.epoch == epoch)
            .map_or(0, |it| it.revision);
        let all = kept.certificates.iter();
        let mut changed: Vec<_> = all
            .filter(|(_, it)| it.0 > after)
            .map(|(name, it)| (it.0, name.clone(), it.1.fingerprint))
            .collect();
        changed.sort();
        // Pages of one show that they are put together.
        let has_more = changed.len() > 1;
        changed.truncate(1);
        let revision = changed.first().map_or(after, |it| it.0);
        Ok(Changes {
            until: Point { epoch, revision },
            certificates: changed.into_iter().map(|it| (it.1, it.2)).collect(),
            has_more,
        })
    }

    fn take(&self, lease: &str, holder: &str, _: Duration) -> Result<bool, Unusable> {
        let mut kept = self.up()?;
        let is_free = !kept.leases.contains_key(lease);
        if is_free {
            kept.leases.insert(lease.to_owned(), holder.to_owned());
        }
        Ok(is_free)
    }

    fn renew(&self, lease: &str, holder: &str, _: Duration) -> Result<bool, Unusable> {
        Ok(self.up()?.leases.get(lease).is_some_and(|it| it == holder))
    }

    fn release(&self, lease: &str, holder: &str) {
        if let Ok(mut kept) = self.up() {
            let is_its = kept.leases.get(lease).is_some_and(|it| it == holder);
            if is_its {
                kept.leases.remove(lease);
            }
        }
    }
}
