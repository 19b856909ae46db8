//! An issuer: its account, which is made once and found again.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_tls::Authorities;
use instant_acme::{
    Account, AccountCredentials, Error as AcmeError, ExternalAccountKey, NewAccount, Problem,
};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::{Error, Failure, FailureKind, with_causes};
use crate::http::{Https, Requests, ServerHints};
use crate::lease::Leases;
use crate::settings::{ExternalAccount, Issuer as Settings};
use crate::storage::{Storage, account_key};

/// The largest difference of clocks to ignore. Signatures of DNS allow for no more.
const TOLD_SKEW: Duration = Duration::from_secs(300);

/// An issuer, and how it is reached.
pub(crate) struct Issuer {
    pub(crate) settings: Settings,
    /// The HMAC key of the external account.
    hmac_key: Option<Vec<u8>>,
    https: Https,
    storage: Storage,
    /// The clocks were said to differ.
    skew_is_told: AtomicBool,
}

/// How long an order waits for another order, of any process, that creates the account; and the
/// time between two looks.
const ACCOUNT_WAIT: Duration = Duration::from_secs(30);
const ACCOUNT_PAUSE: Duration = Duration::from_millis(200);

/// The account at an issuer, for one attempt.
pub(crate) struct Session {
    pub(crate) account: Account,
    heard: Arc<Mutex<ServerHints>>,
}

/// The account in the form in which it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// The mail address that the issuer knows.
    email: Option<String>,
    credentials: AccountCredentials,
}

impl Issuer {
    /// # Errors
    /// The settings cannot be used.
    pub(crate) fn new(settings: Settings, storage: &Storage) -> Result<Self, Error> {
        let directory = &settings.directory;
        let uri = directory.parse::<http::Uri>().ok();
        if !uri.is_some_and(|it| it.scheme_str() == Some("https") && it.host().is_some()) {
            let directory = directory.clone();
            return Err(Error::Directory { directory });
        }
        let key = settings.external_account.as_ref().map(|it| &it.hmac_key);
        let decode = |key: &String| {
            let key = ExternalAccount::decode_key(key);
            let directory = directory.clone();
            key.map_err(|_| Error::HmacKey { directory })
        };
        let authorities = match &settings.ca {
            Some(ca) => {
                Authorities::read(std::slice::from_ref(ca), &[]).map_err(Error::Authorities)?
            }
            None => Authorities::system_once().map_err(Error::SystemAuthorities)?,
        };
        let https = Https::new(authorities).map_err(Error::Tls)?;
        Ok(Self {
            hmac_key: key.map(decode).transpose()?,
            https,
            storage: storage.clone(),
            skew_is_told: AtomicBool::new(false),
            settings,
        })
    }

    /// The account; it is created if there is none yet.
    pub(crate) async fn session(
        &self,
        leases: &Arc<Leases>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Session, Failure> {
        let given_up = clock.now() + ACCOUNT_WAIT;
        let _lease = loop {
            if let Some(session) = self.known_session(clock).await? {
                return Ok(session);
            }
            let key = format!("account-{}", account_key(&self.settings.directory));
            let leases = Arc::clone(leases);
            if let Some(lease) = blocking(move || leases.take(&key)).await? {
                break lease;
            }
            if clock.now() > given_up {
                let text = "another order is creating the account";
                return Err(Failure::new(FailureKind::Busy, text));
            }
            clock.sleep(ACCOUNT_PAUSE).await;
        };
        let (storage, directory) = self.records();
        blocking(move || storage.restore_account(&directory)).await?;
        // Another order may have made it by now.
        match self.known_session(clock).await? {
            Some(session) => Ok(session),
            None => self.make_account(clock).await,
        }
    }

    /// The stored account; `None` if there is none. A broken file counts as none.
    pub(crate) async fn known_session(
        &self,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Session>, Failure> {
        let (storage, directory) = self.records();
        let stored = blocking(move || storage.account::<Stored>(&directory)).await?;
        let Some(Stored { email, credentials }) = stored else {
            return Ok(None);
        };
        let (requests, heard) = Requests::new(self.https.clone(), Arc::clone(clock));
        let builder = Account::builder_with_http(Box::new(requests));
        let account = builder.from_credentials(credentials).await;
        let account = account.map_err(|it| failure(it, &heard))?;
        let session = Session { account, heard };
        self.tell_skew(&session);
        if email != self.settings.email {
            self.change_email(&session).await?;
        }
        Ok(Some(session))
    }

    async fn make_account(&self, clock: &Arc<dyn Clock>) -> Result<Session, Failure> {
        let (requests, heard) = Requests::new(self.https.clone(), Arc::clone(clock));
        let contact = self.contact();
        let contact: Vec<_> = contact.iter().map(String::as_str).collect();
        let account = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let external = self.settings.external_account.as_ref();
        let external = external.zip(self.hmac_key.as_ref());
        let external =
            external.map(|(account, key)| ExternalAccountKey::new(account.key_id.clone(), key));
        let directory = &self.settings.directory;
        let made = Account::builder_with_http(Box::new(requests))
            .create(&account, directory.clone(), external.as_ref())
            .await;
        let (account, credentials) = made.map_err(|it| failure(it, &heard))?;
        self.store(credentials).await?;
        tracing::info!(
            "acme: an account was created at {directory}: {}",
            account.id()
        );
        let session = Session { account, heard };
        self.tell_skew(&session);
        Ok(session)
    }

    /// Says once that the clock of this machine looks wrong, compared with the issuer's.
    fn tell_skew(&self, session: &Session) {
        let skew = session.heard().clock_skew();
        let skew = skew.filter(|(difference, _)| *difference > TOLD_SKEW);
        let was_told = self.skew_is_told.swap(skew.is_some(), Relaxed);
        if let (Some((difference, is_ahead)), false) = (skew, was_told) {
            let (directory, seconds) = (&self.settings.directory, difference.as_secs());
            let where_to = if is_ahead { "behind" } else { "ahead of" };
            tracing::warn!(
                "acme: the clock of this machine looks wrong: it is {seconds} s {where_to} the \
                 clock of {directory}"
            );
        }
    }

    /// Tells the issuer another mail address.
    async fn change_email(&self, session: &Session) -> Result<(), Failure> {
        let contact = self.contact();
        let contact: Vec<_> = contact.iter().map(String::as_str).collect();
        let changed = session.account.update_contacts(&contact).await;
        changed.map_err(|it| session.failure(it))?;
        let (storage, directory) = self.records();
        let email = self.settings.email.clone();
        blocking(move || {
            let Some(stored) = storage.account::<Stored>(&directory)? else {
                return Ok(());
            };
            storage.keep_account(&directory, &Stored { email, ..stored })
        })
        .await
    }

    /// Forgets an account that the issuer has forgotten. The next attempt makes a new one,
    /// unless another machine has.
    pub(crate) async fn forget_account(&self, forgotten: &Session) -> Result<(), Failure> {
        let (storage, directory) = self.records();
        let id = forgotten.account.id().to_owned();
        blocking(move || {
            let known: Option<serde_json::Value> = storage.account(&directory)?;
            let is_same = known.is_none_or(|it| it["credentials"]["id"] == *id);
            if is_same {
                storage.forget_account(&directory)?;
            }
            Ok(())
        })
        .await
    }

    async fn store(&self, credentials: AccountCredentials) -> Result<(), Failure> {
        let email = self.settings.email.clone();
        let stored = Stored { email, credentials };
        let (storage, directory) = self.records();
        blocking(move || storage.keep_account(&directory, &stored)).await
    }

    /// The storage of the account, and its name there.
    fn records(&self) -> (Storage, String) {
        (self.storage.clone(), self.settings.directory.clone())
    }

    fn contact(&self) -> Option<String> {
        let email = self.settings.email.as_ref();
        email.map(|it| format!("mailto:{it}"))
    }
}

impl Session {
    /// The failure that an error of the client means.
    pub(crate) fn failure(&self, error: AcmeError) -> Failure {
        failure(error, &self.heard)
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, ServerHints> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work on files, which may wait for a disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|it| Failure::storage(&it)),
        Err(error) => Err(Failure::new(FailureKind::Local, error.to_string())),
    }
}

fn failure(error: AcmeError, heard: &Mutex<ServerHints>) -> Failure {
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    let mut failure = match error {
        AcmeError::Api(problem) => of_problem(&problem),
        AcmeError::Other(error) => Failure::new(FailureKind::Issuer, with_causes(error.as_ref())),
        AcmeError::Json(error) => {
            let text = format!(
                "it does not answer like an ACME server ({error}): check the URL of its directory"
            );
            Failure::new(FailureKind::Issuer, text)
        }
        error => Failure::new(FailureKind::Issuer, with_causes(&error)),
    };
    failure.retry_after = heard.retry_after();
    failure
}

/// The failure that a problem of the server means (RFC 8555, section 6.7).
pub(crate) fn of_problem(problem: &Problem) -> Failure {
    let name = problem.r#type.as_deref().unwrap_or("about:blank");
    let name = name
        .strip_prefix("urn:ietf:params:acme:error:")
        .unwrap_or(name);
    let kind = match name {
        "accountDoesNotExist" => FailureKind::AccountGone,
        "rateLimited"
        | "serverInternal"
        | "badNonce"
        | "userActionRequired"
        | "externalAccountRequired" => FailureKind::Issuer,
        _ => FailureKind::Refused,
    };
    let mut text = name.to_owned();
    let mut add = |detail: Option<&str>| {
        if let Some(detail) = detail.filter(|it| !it.is_empty()) {
            text.push_str(": ");
            // A server's text ends in logs.
            text.extend(
                detail
                    .chars()
                    .map(|it| if it.is_control() { ' ' } else { it }),
            );
        }
    };
    add(problem.detail.as_deref());
    for part in &problem.subproblems {
        add(Some(&part.to_string()));
    }
    Failure::new(kind, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_told_in_full() {
        let problem = r#"{
            "type": "urn:ietf:params:acme:error:malformed",
            "detail": "Some of the identifiers\nwere rejected",
            "subproblems": [{
                "type": "urn:ietf:params:acme:error:rejectedIdentifier",
                "detail": "no names of example.net",
                "identifier": { "type": "dns", "value": "a.example.net" }
            }]
        }"#;
        let failure = of_problem(&serde_json::from_str(problem).unwrap());
        assert_eq!(failure.kind, FailureKind::Refused);
        assert_eq!(
            failure.text,
            "malformed: Some of the identifiers were rejected: for \"a.example.net\": no names \
             of example.net (urn:ietf:params:acme:error:rejectedIdentifier)"
        );
        for (name, kind) in [
            ("accountDoesNotExist", FailureKind::AccountGone),
            ("rateLimited", FailureKind::Issuer),
            ("unauthorized", FailureKind::Refused),
        ] {
            let json = format!("{{\"type\":\"urn:ietf:params:acme:error:{name}\"}}");
            let failure = of_problem(&serde_json::from_str(&json).unwrap());
            assert_eq!((failure.kind, &*failure.text), (kind, name));
        }
    }
}
