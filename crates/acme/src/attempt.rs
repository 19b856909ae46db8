//! One look at a name: whether its certificate is due, who orders it, and from which issuer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use instant_acme::CertificateIdentifier;

use crate::certificate::StoredCertificate;
use crate::challenges::Challenges;
use crate::clock::Clock;
use crate::dns::Dns;
use crate::error::{Error, Failure, FailureKind};
use crate::issuer::{Issuer, blocking};
use crate::lease::{LASTS, Lease, Leases};
use crate::name::Name;
use crate::order::{CertificateRequest, Orders};
use crate::schedule;
use crate::settings::{ChallengeKind, Settings};
use crate::storage::{Failures, Storage, seconds, time};

/// A whole attempt at one issuer takes no longer.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(600);

/// The pause until an issuer that could not be asked is asked again for its suggestion.
const ASK_AGAIN: Duration = Duration::from_secs(6 * 3600);

/// A name to look at.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) name: Name,
    /// An operator wants it ordered now.
    pub(crate) asked_for: Option<AskedFor>,
    /// The issuer is asked for its suggestion.
    pub(crate) asks_issuer: bool,
    pub(crate) suggested: Option<SystemTime>,
    pub(crate) passed_over: usize,
    /// The failures so far, as far as this process knows.
    pub(crate) failures: Option<Failures>,
    /// When the pause after them is over.
    pub(crate) paused_until: Option<SystemTime>,
    /// The certificate at the last look; `None` before the first one.
    pub(crate) known: Option<Option<StoredCertificate>>,
}

/// An order that an operator has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskedFor {
    /// It replaces the certificate that is found now, which may be of another process.
    Now,
    /// The certificate of the last look is replaced. A different certificate is what was
    /// wanted: at that look another process was ordering it, or the shared server was
    /// unreachable.
    SinceLook,
}

/// The result of a look at a name.
#[derive(Debug)]
pub(crate) struct NameCheck {
    /// The current certificate; `None` if it was not read.
    pub(crate) held: Option<Option<StoredCertificate>>,
    /// When the issuer suggests a renewal, and when it is asked again.
    pub(crate) suggestion: Option<(Option<SystemTime>, Duration)>,
    pub(crate) outcome: Outcome,
}

/// How a look at a name ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The order is for later.
    NotDue {
        /// When.
        at: SystemTime,
    },
    /// A new certificate is in place.
    Obtained,
    /// Another process orders it.
    Busy,
    /// The server that machines share cannot be used.
    NoServer {
        /// Why.
        text: String,
    },
    /// It failed before: in another process, or before a start. The pause is not over.
    FailedBefore(Failures),
    /// It was not obtained.
    Failed {
        /// With this one.
        failures: Failures,
        kind: FailureKind,
    },
}

/// The parts that all attempts share.
pub(crate) struct Attempts {
    orders: Orders,
    issuers: Vec<Issuer>,
    /// Issuers that want to be left alone for a name, by directory and name, until when.
    left_alone: Mutex<HashMap<(String, Name), SystemTime>>,
}

impl Attempts {
    /// # Errors
    /// The settings cannot be used, or the storage cannot be opened.
    pub(crate) fn new(settings: Settings, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        if settings.issuers.is_empty() {
            return Err(Error::NoIssuer);
        }
        if settings.challenges.is_empty() {
            return Err(Error::NoChallenge);
        }
        let dns = settings.dns.map(|it| Dns::new(it, clock)).transpose()?;
        let dns = dns.map(Arc::new);
        if dns.is_none() && settings.challenges.contains(&ChallengeKind::Dns01) {
            return Err(Error::NoDns);
        }
        let storage = Storage::open(&settings.storage)?.shared_by(settings.shared);
        let issuers = settings.issuers.into_iter();
        let issuers = issuers.map(|it| Issuer::new(it, &storage));
        let issuers = issuers.collect::<Result<_, _>>()?;
        Ok(Self {
            orders: Orders {
                leases: Arc::new(Leases::new(&storage, Arc::clone(clock))),
                challenges: Arc::new(Challenges::new(&storage)),
                storage,
                kinds: settings.challenges,
                dns,
                clock: Arc::clone(clock),
                limit: Mutex::default(),
            },
            issuers,
            left_alone: Mutex::default(),
        })
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.orders.storage
    }

    pub(crate) fn challenges(&self) -> Arc<Challenges> {
        Arc::clone(&self.orders.challenges)
    }

    /// Removes files that a crash has left behind.
    pub(crate) async fn sweep(&self, now: SystemTime) {
        let storage = self.orders.storage.clone();
        // The next sweep tries again.
        let _ = blocking(move || {
            storage.sweep(now);
            Ok(())
        })
        .await;
    }

    /// Looks at a name, and orders its certificate where it is due. `ordering` is called once
    /// it is.
    pub(crate) async fn attend(&self, task: &Task, ordering: impl Fn()) -> NameCheck {
        let mut looked = NameCheck {
            held: None,
            suggestion: None,
            outcome: Outcome::Busy,
        };
        match self.look(task, &mut looked, ordering).await {
            Ok(outcome) => looked.outcome = outcome,
            Err(failure) if failure.kind == FailureKind::Busy => {}
            Err(Failure {
                kind: FailureKind::Server,
                text,
                ..
            }) => {
                looked.outcome = Outcome::NoServer { text };
            }
            Err(failure) => looked.outcome = self.failed(task, failure).await,
        }
        looked
    }

    async fn look(
        &self,
        task: &Task,
        looked: &mut NameCheck,
        ordering: impl Fn(),
    ) -> Result<Outcome, Failure> {
        let held = self.held(&task.name).await;
        looked.held = Some(held.clone());
        if task.asks_issuer
            && let Some(held) = &held
        {
            looked.suggestion = Some(self.suggestion(held).await);
        }
        let suggested = looked.suggestion.map_or(task.suggested, |it| it.0);
        let is_asked_for = match task.asked_for {
            None => false,
            Some(AskedFor::Now) => true,
            // Another process may have ordered it.
            Some(AskedFor::SinceLook) => task.known.as_ref().is_none_or(|it| *it == held),
        };
        if !is_asked_for
            && let Some(outcome) = self.reason_to_wait(task, held.as_ref(), suggested).await?
        {
            return Ok(outcome);
        }
        let (leases, key) = (Arc::clone(&self.orders.leases), task.name.to_string());
        let Some(lease) = blocking(move || leases.take(&key)).await? else {
            return Ok(Outcome::Busy);
        };
        let lease = Arc::new(lease);
        let done = async {
            // Another process may have ordered it, or failed, before the lease was ours.
            self.compare(&task.name).await?;
            let again = self.held(&task.name).await;
            let outcome = if again == held && is_asked_for {
                None
            } else if again == held {
                self.reason_to_wait(task, again.as_ref(), suggested).await?
            } else {
                looked.held = Some(again.clone());
                looked.suggestion = None;
                again.as_ref().map(|it| Outcome::NotDue {
                    at: schedule::by_fraction(it),
                })
            };
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            ordering();
            let replaced = again.as_ref().filter(|_| suggested.is_some());
            self.order(task, again.as_ref(), replaced, &lease).await?;
            let obtained = self.held(&task.name).await;
            // The event log says when it is renewed.
            looked.suggestion = match &obtained {
                Some(held) => Some(self.suggestion(held).await),
                None => None,
            };
            looked.held = Some(obtained);
            Ok(Outcome::Obtained)
        };
        let done = tokio::select! {
            done = done => done,
            lost = keep_lease(&lease, &self.orders.clock) => Err(lost),
        };
        blocking(move || {
            drop(lease);
            Ok(())
        })
        .await?;
        done
    }

    /// Why nothing is ordered now that no operator has asked for.
    async fn reason_to_wait(
        &self,
        task: &Task,
        held: Option<&StoredCertificate>,
        suggested: Option<SystemTime>,
    ) -> Result<Option<Outcome>, Failure> {
        let now = self.orders.clock.now();
        let due = held.map(|it| suggested.unwrap_or_else(|| schedule::by_fraction(it)));
        let due = due.max(task.paused_until);
        if let Some(at) = due.filter(|it| *it > now) {
            return Ok(Some(Outcome::NotDue { at }));
        }
        let (storage, name) = (self.orders.storage.clone(), task.name.to_string());
        let failures = blocking(move || storage.failures(&name)).await?;
        let is_news = failures != task.failures;
        let failures = failures.filter(|it| is_news && time(it.next) > now);
        Ok(failures.map(Outcome::FailedBefore))
    }

    /// Takes the certificate of a name from the server that machines share, if it is newer.
    async fn compare(&self, name: &Name) -> Result<(), Failure> {
        let (storage, name) = (self.orders.storage.clone(), name.clone());
        let now = self.orders.clock.now();
        blocking(move || storage.compare(&name, now).map(drop)).await
    }

    /// The certificate of a name. A file that is broken counts as none.
    async fn held(&self, name: &Name) -> Option<StoredCertificate> {
        let path = self.orders.storage.certificate(&name.to_string());
        let of = name.clone();
        match blocking(move || Ok(StoredCertificate::read(&path, &of))).await {
            Ok(Ok(held)) => held,
            Ok(Err(text)) => {
                tracing::warn!(%name, "acme: certificate of {name}: {text}; a new one is ordered");
                None
            }
            Err(_) => None,
        }
    }

    /// Notes a failure, and how long the pause after it is.
    async fn failed(&self, task: &Task, failure: Failure) -> Outcome {
        let now = self.orders.clock.now();
        let (storage, name) = (self.orders.storage.clone(), task.name.to_string());
        let known = task.failures.as_ref().map_or(0, |it| it.count);
        let pause = |count| {
            let pause = schedule::pause(count, fastrand::f64());
            pause.max(failure.retry_after.unwrap_or_default())
        };
        let note = |before: Option<Failures>| {
            let count = before.map_or(0, |it| it.count).max(known).saturating_add(1);
            Failures {
                count,
                at: seconds(now),
                next: seconds(now + pause(count)),
                text: failure.text.clone(),
            }
        };
        let stored = {
            let (storage, name) = (storage.clone(), name.clone());
            blocking(move || storage.failures(&name)).await
        };
        let failures = note(stored.ok().flatten());
        let noted = failures.clone();
        // The storage itself may have failed. The pause is kept all the same.
        let _ = blocking(move || storage.keep_failures(&name, &noted)).await;
        Outcome::Failed {
            failures,
            kind: failure.kind,
        }
    }

    /// Orders a certificate from the first issuer that issues one. `replaced` is the current
    /// certificate, so that an issuer can be told what the new one replaces.
    async fn order(
        &self,
        task: &Task,
        held: Option<&StoredCertificate>,
        replaced: Option<&StoredCertificate>,
        lease: &Arc<Lease>,
    ) -> Result<(), Failure> {
        let mut failed: Option<Failure> = None;
        for issuer in self.issuers_for(&task.name).await? {
            let directory = &issuer.settings.directory;
            let of_issuer =
                |held: &&StoredCertificate| held.directory.as_deref() == Some(directory);
            let wanted = CertificateRequest {
                name: task.name.clone(),
                replaces: replaced.filter(of_issuer).and_then(|it| it.id.clone()),
                passed_over: task.passed_over,
                lease: Arc::clone(lease),
            };
            let attempt = self.orders.attempt(&wanted, issuer);
            let done = tokio::select! {
                done = attempt => done,
                () = self.orders.clock.sleep(LONGEST_ATTEMPT) => {
                    let minutes = LONGEST_ATTEMPT.as_secs() / 60;
                    let text = format!("it did not finish within {minutes} minutes");
                    Err(Failure::new(FailureKind::Issuer, text))
                }
            };
            let mut failure = match done {
                Ok(()) => {
                    let (storage, name) = (self.orders.storage.clone(), task.name.to_string());
                    let forgotten = blocking(move || storage.forget_failures(&name)).await;
                    // The certificate is in place all the same.
                    return forgotten.or_else(|it| match it.kind {
                        FailureKind::Server => Ok(()),
                        _ => Err(it),
                    });
                }
                Err(failure) => failure,
            };
            let is_ours = matches!(
                failure.kind,
                FailureKind::Local | FailureKind::Busy | FailureKind::Server
            );
            if is_ours {
                return Err(failure);
            }
            let now = self.orders.clock.now();
            let left_alone = |wanted| schedule::leave_alone(wanted, held, now);
            failure.retry_after = failure.retry_after.map(left_alone);
            self.leave_alone(&task.name, directory, failure.retry_after);
            let text = format!("{directory}: {}", failure.text);
            failed = Some(match failed {
                None => Failure { text, ..failure },
                Some(before) => Failure {
                    kind: failure.kind,
                    text: format!("{}; {text}", before.text),
                    retry_after: before.retry_after.min(failure.retry_after),
                },
            });
        }
        Err(failed.unwrap_or_else(|| {
            let text = "all issuers refuse requests for now";
            let mut failure = Failure::new(FailureKind::Issuer, text);
            failure.retry_after = self.left_alone_for(&task.name);
            failure
        }))
    }

    /// The issuers that are tried, in order. One at which an order is pending comes first.
    async fn issuers_for(&self, name: &Name) -> Result<Vec<&Issuer>, Failure> {
        let (storage, text) = (self.orders.storage.clone(), name.to_string());
        let pending = blocking(move || storage.order(&text)).await?;
        let pending = pending.filter(|it| it.url.is_some());
        let now = self.orders.clock.now();
        let left_alone = self
            .left_alone
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_free = |issuer: &&Issuer| {
            let key = (issuer.settings.directory.clone(), name.clone());
            left_alone.get(&key).is_none_or(|until| *until <= now)
        };
        let mut issuers: Vec<_> = self.issuers.iter().filter(is_free).collect();
        let is_pending = |it: &&Issuer| {
            let directory = &it.settings.directory;
            pending
                .as_ref()
                .is_some_and(|it| it.directory == *directory)
        };
        issuers.sort_by_key(|it| !is_pending(it));
        Ok(issuers)
    }

    fn leave_alone(&self, name: &Name, directory: &str, retry_after: Option<Duration>) {
        let key = (directory.to_owned(), name.clone());
        let mut left_alone = self
            .left_alone
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match retry_after {
            Some(after) => left_alone.insert(key, self.orders.clock.now() + after),
            None => left_alone.remove(&key),
        };
    }

    /// Leaves issuers alone that `before` has left alone.
    pub(crate) fn take_over(&self, before: &Self) {
        let of = |it: &Self| {
            it.left_alone
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
        };
        let before = of(before);
        let mut left_alone = self
            .left_alone
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        left_alone.extend(before);
    }

    /// How long it takes until an issuer may be asked again.
    fn left_alone_for(&self, name: &Name) -> Option<Duration> {
        let now = self.orders.clock.now();
        let left_alone = self
            .left_alone
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let of_name = left_alone.iter().filter(|((_, of), _)| of == name);
        let until = of_name.map(|(_, until)| *until).min()?;
        until.duration_since(now).ok()
    }

    /// When the issuer suggests a renewal (RFC 9773), and when it is asked again.
    async fn suggestion(&self, held: &StoredCertificate) -> (Option<SystemTime>, Duration) {
        let mut issuers = self.issuers.iter();
        let of = |it: &&Issuer| Some(&it.settings.directory) == held.directory.as_ref();
        let (Some(issuer), Some(id)) = (issuers.find(of), &held.id) else {
            return (None, ASK_AGAIN);
        };
        match self.asked(issuer, id).await {
            Ok(Some((window, again))) => (Some(schedule::in_window(held, window)), again),
            Ok(None) => (None, ASK_AGAIN),
            Err(failure) => {
                let directory = &issuer.settings.directory;
                tracing::debug!("acme: {directory} suggests no renewal: {}", failure.text);
                (None, failure.retry_after.unwrap_or(ASK_AGAIN))
            }
        }
    }

    async fn asked(
        &self,
        issuer: &Issuer,
        id: &CertificateIdentifier<'static>,
    ) -> Result<Option<((SystemTime, SystemTime), Duration)>, Failure> {
        let clock = &self.orders.clock;
        let Some(session) = issuer.known_session(clock).await? else {
            return Ok(None);
        };
        let (info, again) = match session.account.renewal_info(id).await {
            Ok(info) => info,
            Err(instant_acme::Error::Unsupported(_)) => return Ok(None),
            Err(error) => return Err(session.failure(error)),
        };
        let window = info.suggested_window;
        let seconds = |it: i64| time(u64::try_from(it).unwrap_or(0));
        let start = seconds(window.start.unix_timestamp());
        let end = seconds(window.end.unix_timestamp());
        Ok(Some(((start, end), again)))
    }
}

/// Renews a lease until another process has taken it over, or may have done so.
async fn keep_lease(lease: &Arc<Lease>, clock: &Arc<dyn Clock>) -> Failure {
    let mut renewed = clock.now();
    loop {
        clock.sleep(LASTS / 3).await;
        let (lease, now) = (Arc::clone(lease), clock.now());
        match blocking(move || lease.renew()).await {
            Ok(true) => renewed = now,
            Ok(false) => {
                let text = "another process has taken over the lease";
                return Failure::new(FailureKind::Busy, text);
            }
            Err(failure) if now.duration_since(renewed).is_ok_and(|it| it >= LASTS) => {
                return failure;
            }
            Err(_) => {}
        }
    }
}
