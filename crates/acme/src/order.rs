//! One attempt at a certificate: the order, its challenge, and the certificate that comes.
//!
//! ```text
//!               ┌──────────── file of the order: issuer, key ──────────────┐
//!   place ──▶ pending ──▶ ready ──▶ processing ──▶ valid ──▶ checked ──▶ in place
//!               │ challenge  │ finalise                │ download
//!               ▼            ▼                         ▼
//!            refused: the file goes, a further attempt places another order
//! ```
//!
//! Invariant: the key and the issuer are in a file before an order is placed, and its URL as
//! soon as it is known. An attempt that finds the file continues that order.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use instant_acme::{
    AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeType, Error as AcmeError,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use crate::certificate;
use crate::challenges::{Challenges, Presented};
use crate::clock::Clock;
use crate::dns::{Dns, Record, clean_up};
use crate::error::{Failure, FailureKind};
use crate::issuer::{Issuer, Session, blocking, of_problem};
use crate::lease::{Lease, Leases};
use crate::name::Name;
use crate::schedule::OrderLimit;
use crate::settings::ChallengeKind;
use crate::storage::{PendingOrder, Staged, Storage};

/// How long the issuer may take to verify a challenge, and to sign.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// The parts that all orders share.
pub(crate) struct Orders {
    pub(crate) storage: Storage,
    pub(crate) leases: Arc<Leases>,
    pub(crate) challenges: Arc<Challenges>,
    /// The challenges that can be answered, in the order of preference.
    pub(crate) kinds: Vec<ChallengeKind>,
    pub(crate) dns: Option<Arc<Dns>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limit: Mutex<OrderLimit>,
}

/// The certificate that is ordered.
#[derive(Clone)]
pub(crate) struct CertificateRequest {
    pub(crate) name: Name,
    /// The certificate that the new one replaces, where its issuer knows it (RFC 9773).
    pub(crate) replaces: Option<CertificateIdentifier<'static>>,
    /// How many kinds of challenges are passed over: those have failed before.
    pub(crate) passed_over: usize,
    /// The lease: while it is held, no other process orders this name.
    pub(crate) lease: Arc<Lease>,
}

/// An answer to a challenge that is given while the issuer verifies it.
enum Answer {
    /// From memory and the storage.
    Presented(Presented),
    /// In DNS.
    Dns(Record),
}

/// The answers of an order. Dropping them removes records that are left, on a thread beside
/// this one. The lease is held meanwhile, as the next order would set the same record.
struct Answers<'a> {
    given: Vec<(ChallengeKind, Answer)>,
    dns: Option<&'a Arc<Dns>>,
    lease: &'a Arc<Lease>,
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        let Some(dns) = self.dns else {
            return;
        };
        for (_, answer) in self.given.drain(..) {
            if let Answer::Dns(record) = answer {
                clean_up::begin(Arc::clone(dns), record, Arc::clone(self.lease));
            }
        }
    }
}

impl Orders {
    /// Gets a certificate from an issuer, and installs it.
    ///
    /// # Cancellation
    /// Safe: a later attempt continues the order.
    pub(crate) async fn attempt(
        &self,
        wanted: &CertificateRequest,
        issuer: &Issuer,
    ) -> Result<(), Failure> {
        let session = issuer.session(&self.leases, &self.clock).await?;
        let done = self.attempt_with(&session, wanted, issuer).await;
        match done {
            Err(failure) if failure.kind == FailureKind::AccountGone => {
                let directory = &issuer.settings.directory;
                tracing::warn!(
                    "acme: {directory} has forgotten the account: {}",
                    failure.text
                );
                issuer.forget_account(&session).await?;
                self.forget(&wanted.name).await?;
                let session = issuer.session(&self.leases, &self.clock).await?;
                self.attempt_with(&session, wanted, issuer).await
            }
            done => done,
        }
    }

    async fn attempt_with(
        &self,
        session: &Session,
        wanted: &CertificateRequest,
        issuer: &Issuer,
    ) -> Result<(), Failure> {
        let (mut order, key) = self.order(session, wanted, issuer).await?;
        let got = self.get(session, wanted, &mut order, &key).await;
        let installed = match got {
            Ok(chain) => {
                let directory = &issuer.settings.directory;
                let file = certificate::file(directory, &chain, &key.serialize_pem());
                self.install(&wanted.name, file).await
            }
            Err(failure) => Err(failure),
        };
        match &installed {
            Err(failure) if !failure.ends_order() => {}
            _ => match self.forget(&wanted.name).await {
                // Its certificate is in place, which the next one to look sees.
                Err(failure) if failure.kind == FailureKind::Server && installed.is_ok() => {}
                forgotten => forgotten?,
            },
        }
        installed
    }

    /// The order of an earlier attempt, or else a new one, with the key for it.
    async fn order(
        &self,
        session: &Session,
        wanted: &CertificateRequest,
        issuer: &Issuer,
    ) -> Result<(Order, KeyPair), Failure> {
        if let Some((url, key)) = self.pending(&wanted.name, issuer).await? {
            match session.account.order(url).await {
                Ok(mut order) => {
                    if order.state().status != OrderStatus::Invalid {
                        return Ok((order, key));
                    }
                }
                Err(error) => {
                    let failure = session.failure(error);
                    // It has expired, or is another account's.
                    if failure.kind != FailureKind::Refused {
                        return Err(failure);
                    }
                }
            }
        }
        self.place(session, wanted, issuer).await
    }

    /// The order of an earlier attempt at this issuer. One whose certificate is in place was
    /// left behind by a crash.
    async fn pending(
        &self,
        name: &Name,
        issuer: &Issuer,
    ) -> Result<Option<(String, KeyPair)>, Failure> {
        let (storage, name) = (self.storage.clone(), name.to_string());
        let directory = issuer.settings.directory.clone();
        let pending = blocking(move || {
            let pending = storage.order(&name)?.filter(|it| it.directory == directory);
            let place = storage.certificate(&name);
            Ok(pending.filter(|it| !certificate::has_key(&place, &it.key)))
        });
        let pending = pending.await?;
        let key = pending.as_ref().map(|it| KeyPair::from_pem(&it.key));
        let key = key.and_then(Result::ok);
        Ok(pending.and_then(|it| it.url).zip(key))
    }

    async fn place(
        &self,
        session: &Session,
        wanted: &CertificateRequest,
        issuer: &Issuer,
    ) -> Result<(Order, KeyPair), Failure> {
        let directory = &issuer.settings.directory;
        let key = KeyPair::generate().map_err(|it| local(&it))?;
        // A storage that is full or read-only shows before an order is wasted.
        self.keep(&wanted.name, directory, None, &key).await?;
        self.wait_for_turn().await;
        let identifiers = [wanted.name.identifier()];
        let new = || {
            let order = NewOrder::new(&identifiers);
            match &issuer.settings.profile {
                Some(profile) => order.profile(profile),
                None => order,
            }
        };
        let placed = match wanted.replaces.clone() {
            Some(replaces) => match session.account.new_order(&new().replaces(replaces)).await {
                // Replaced before, or of another account: it is no reason to go without.
                Err(AcmeError::Api(problem)) if replaces_is_refused(&problem) => {
                    session.account.new_order(&new()).await
                }
                Err(AcmeError::Unsupported(_)) => session.account.new_order(&new()).await,
                placed => placed,
            },
            None => session.account.new_order(&new()).await,
        };
        let order = placed.map_err(|it| session.failure(it))?;
        self.keep(&wanted.name, directory, Some(order.url()), &key)
            .await?;
        tracing::info!(
            name = %wanted.name,
            "acme: certificate of {}: ordered from {directory}",
            wanted.name
        );
        Ok((order, key))
    }

    /// Brings an order to its end: the chain, as PEM.
    async fn get(
        &self,
        session: &Session,
        wanted: &CertificateRequest,
        order: &mut Order,
        key: &KeyPair,
    ) -> Result<String, Failure> {
        if order.state().status == OrderStatus::Pending {
            self.authorize(session, wanted, order).await?;
        }
        if order.state().status == OrderStatus::Ready {
            let params = CertificateParams::new([wanted.name.to_string()]);
            let mut params = params.map_err(|it| local(&it))?;
            params.distinguished_name = DistinguishedName::new();
            let request = params.serialize_request(key).map_err(|it| local(&it))?;
            let finalised = order.finalize_csr(request.der()).await;
            finalised.map_err(|it| session.failure(it))?;
        }
        let chain = order.poll_certificate(&POLLING).await;
        chain.map_err(|it| match it {
            AcmeError::Str(_) if order.state().status == OrderStatus::Invalid => {
                Failure::new(FailureKind::Refused, "the order became invalid")
            }
            error => session.failure(error),
        })
    }

    /// Answers the challenges of an order until it is ready.
    async fn authorize(
        &self,
        session: &Session,
        wanted: &CertificateRequest,
        order: &mut Order,
    ) -> Result<(), Failure> {
        let mut answers = Answers {
            given: Vec::new(),
            dns: self.dns.as_ref(),
            lease: &wanted.lease,
        };
        let done = self
            .answer(session, wanted, order, &mut answers.given)
            .await;
        let mut left = Vec::new();
        // A record that is being removed is still there for the next try.
        while let Some((_, answer)) = answers.given.last() {
            if let (Answer::Dns(record), Some(dns)) = (answer, &self.dns)
                && let Err(text) = dns.clean_up(record, &wanted.lease).await
            {
                left.push(format!(
                    "the record {} was not removed: {text}",
                    record.name
                ));
            }
            if let Some((_, Answer::Presented(presented))) = answers.given.pop() {
                blocking(move || {
                    presented.withdraw();
                    Ok(())
                })
                .await?;
            }
        }
        match done {
            Ok(()) => {
                for text in left {
                    tracing::warn!("acme: {text}");
                }
                Ok(())
            }
            // The failure comes first, as it happened.
            Err(mut failure) => {
                for text in left {
                    failure.text = format!("{}; {text}", failure.text);
                }
                Err(failure)
            }
        }
    }

    async fn answer(
        &self,
        session: &Session,
        wanted: &CertificateRequest,
        order: &mut Order,
        answers: &mut Vec<(ChallengeKind, Answer)>,
    ) -> Result<(), Failure> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|it| session.failure(it))?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => {
                    let text = format!("the authorization is {status:?}").to_lowercase();
                    return Err(Failure::new(FailureKind::Refused, text));
                }
            }
            let offered = authorization.challenges.iter();
            let offered: Vec<_> = offered.filter_map(|it| kind_of(&it.r#type)).collect();
            let kind = self.kind(wanted, &offered)?;
            let Some(mut challenge) = authorization.challenge(type_of(kind)) else {
                continue;
            };
            self.present(kind, &wanted.name, &challenge, answers)
                .await?;
            challenge
                .set_ready()
                .await
                .map_err(|it| session.failure(it))?;
        }
        let ready = order.poll_ready(&POLLING).await;
        match ready {
            Ok(OrderStatus::Ready) => Ok(()),
            Err(error @ AcmeError::Timeout(_)) => Err(session.failure(error)),
            _ if order.state().status == OrderStatus::Valid => Ok(()),
            Err(error) if order.state().status != OrderStatus::Invalid => {
                Err(session.failure(error))
            }
            _ => Err(self.why_invalid(session, order, answers).await),
        }
    }

    /// Answers a challenge from now on.
    async fn present(
        &self,
        kind: ChallengeKind,
        name: &Name,
        challenge: &ChallengeHandle<'_>,
        answers: &mut Vec<(ChallengeKind, Answer)>,
    ) -> Result<(), Failure> {
        let challenges = Arc::clone(&self.challenges);
        let key_authorization = challenge.key_authorization();
        let text = key_authorization.as_str().to_owned();
        let presented = match kind {
            ChallengeKind::Dns01 => {
                let record = Record {
                    name: name.challenge_record(),
                    value: key_authorization.dns_value(),
                };
                // The clean-up removes it even where it was not seen to come.
                answers.push((kind, Answer::Dns(record.clone())));
                return match &self.dns {
                    Some(dns) => dns.present(&record).await,
                    None => Ok(()),
                };
            }
            ChallengeKind::Http01 => {
                let token = challenge.token.clone();
                blocking(move || challenges.present_http(&token, &text)).await?
            }
            ChallengeKind::TlsAlpn01 => {
                let name = name.clone();
                blocking(move || challenges.present_tls_alpn(&name, &text)).await?
            }
        };
        answers.push((kind, Answer::Presented(presented)));
        Ok(())
    }

    /// The kind of challenge that is answered.
    fn kind(
        &self,
        wanted: &CertificateRequest,
        offered: &[ChallengeKind],
    ) -> Result<ChallengeKind, Failure> {
        let both: Vec<_> = self
            .kinds
            .iter()
            .filter(|it| offered.contains(it))
            .collect();
        if both.is_empty() {
            let list = |kinds: &[ChallengeKind]| {
                let kinds: Vec<_> = kinds.iter().map(|it| it.as_str()).collect();
                kinds.join(", ")
            };
            let text = format!(
                "the issuer offers {} for {}, but only {} can be answered",
                list(offered),
                wanted.name,
                list(&self.kinds)
            );
            return Err(Failure::new(FailureKind::Refused, text));
        }
        Ok(*both[wanted.passed_over % both.len()])
    }

    /// The issuer's reason for a failed challenge.
    async fn why_invalid(
        &self,
        session: &Session,
        order: &mut Order,
        answers: &[(ChallengeKind, Answer)],
    ) -> Failure {
        let of_order = order.state().error.as_ref().map(of_problem);
        let mut authorizations = order.authorizations();
        let mut of_challenge = None;
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            let state = match authorization.refresh().await {
                Ok(state) => state,
                Err(error) => {
                    of_challenge = Some(session.failure(error));
                    continue;
                }
            };
            let mut problems = state.challenges.iter().filter_map(|it| it.error.as_ref());
            if let Some(problem) = problems.next() {
                of_challenge = Some(of_problem(problem));
                break;
            }
        }
        let mut failure = of_challenge
            .or(of_order)
            .unwrap_or_else(|| Failure::new(FailureKind::Refused, "the order became invalid"));
        failure.kind = FailureKind::Refused;
        if let Some((kind, _)) = answers.last() {
            failure.kind = FailureKind::Challenge(*kind);
            failure.text = format!("{kind}: {}", failure.text);
        }
        failure
    }

    /// Checks a new certificate, and installs it.
    async fn install(&self, name: &Name, file: String) -> Result<(), Failure> {
        let place = self.storage.certificate(&name.to_string());
        let staged = blocking(move || Staged::write(&place, file.as_bytes())).await?;
        let (name, now) = (name.clone(), self.clock.now());
        let of = name.clone();
        let checked = blocking(move || {
            let checked = certificate::check(staged.path(), &of, now);
            Ok(checked.map(|()| staged))
        });
        let staged = checked.await??;
        let storage = self.storage.clone();
        blocking(move || {
            let installing = storage.installing();
            staged.install()?;
            drop(installing);
            storage.compare_or_later(&name, now);
            Ok(())
        })
        .await
    }

    /// Waits until a further order may be placed.
    async fn wait_for_turn(&self) {
        loop {
            let placed = {
                let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
                limit.place(Instant::now())
            };
            match placed {
                Ok(()) => return,
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    async fn keep(
        &self,
        name: &Name,
        directory: &str,
        url: Option<&str>,
        key: &KeyPair,
    ) -> Result<(), Failure> {
        let (storage, name) = (self.storage.clone(), name.to_string());
        let order = PendingOrder {
            directory: directory.to_owned(),
            url: url.map(str::to_owned),
            key: key.serialize_pem(),
        };
        blocking(move || storage.keep_order(&name, &order)).await
    }

    async fn forget(&self, name: &Name) -> Result<(), Failure> {
        let (storage, name) = (self.storage.clone(), name.to_string());
        blocking(move || storage.forget_order(&name)).await
    }
}

/// Whether an order was refused because of the certificate that it replaces.
fn replaces_is_refused(problem: &instant_acme::Problem) -> bool {
    let is = |name| problem.r#type.as_deref() == Some(name);
    is("urn:ietf:params:acme:error:alreadyReplaced")
        || is("urn:ietf:params:acme:error:malformed")
        // Of another account.
        || is("urn:ietf:params:acme:error:unauthorized")
        || problem.status == Some(409)
}

fn kind_of(challenge: &ChallengeType) -> Option<ChallengeKind> {
    match challenge {
        ChallengeType::Http01 => Some(ChallengeKind::Http01),
        ChallengeType::TlsAlpn01 => Some(ChallengeKind::TlsAlpn01),
        ChallengeType::Dns01 => Some(ChallengeKind::Dns01),
        _ => None,
    }
}

fn type_of(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        ChallengeKind::Dns01 => ChallengeType::Dns01,
    }
}

fn local(error: &rcgen::Error) -> Failure {
    Failure::new(FailureKind::Local, error.to_string())
}
