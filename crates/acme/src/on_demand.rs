//! Names that are not known beforehand: a client asks for one in a handshake, and its
//! certificate is ordered then.
//!
//! ```text
//!             in the list, or the answer is yes
//!   unknown ───────────────────────────────────▶ allowed ──▶ forgotten: nobody asked for
//!      │ ▲                                                    an hour, and no certificate
//!      │ └─────────┐ after a minute                           came, or the answer is no
//!      └──────▶ refused                                       a day later
//!   the answer is no
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use evenkeel_tls::Authorities;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::error::{Error, with_causes};
use crate::http::{Schemes, connector};
use crate::issuer::blocking;
use crate::name::Name;
use crate::settings::OnDemand;
use crate::storage::Storage;

/// Most questions at once, and most that wait for their turn. Beyond that, a client that asks
/// for another name is refused.
const ASKS_AT_ONCE: usize = 16;
const ASKS_WAITING: usize = 1_000;

/// How long an answer may take.
const ASK_DEADLINE: Duration = Duration::from_secs(5);

/// How long a refusal holds, and one for want of an answer.
const REFUSED_FOR: Duration = Duration::from_secs(60);
const UNANSWERED_FOR: Duration = Duration::from_secs(5);

/// Refusals that are remembered.
const REFUSED_MAX: usize = 10_000;

/// How long a permission holds before it is asked for again.
const ALLOWED_FOR: Duration = Duration::from_secs(86_400);

/// Allowed names: those without a certificate yet, and all.
const LACKING_MAX: usize = 1_000;
const ALLOWED_MAX: usize = 100_000;

/// How long to remember a name without a certificate that no client asks for.
const REMEMBERED_FOR: Duration = Duration::from_secs(3_600);

/// Time between two searches for expired entries.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The names that clients have asked for.
pub(crate) struct Demands {
    names: Vec<String>,
    ask: Option<Ask>,
    storage: Storage,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Told when there is a name to ask about.
    queued: Notify,
    /// Told when other names are allowed than before.
    allowed: watch::Sender<()>,
    /// Told when a name is allowed or refused.
    decided: watch::Sender<()>,
}

/// The server that is asked.
struct Ask {
    uri: Uri,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

#[derive(Default)]
struct State {
    /// Names that are being asked about, or wait for that.
    asked: HashSet<String>,
    queue: VecDeque<String>,
    /// Names that had a certificate in the storage at the start, and were not refused since.
    stored: HashSet<String>,
    /// Until when each name is refused.
    refused: HashMap<String, SystemTime>,
    allowed: HashMap<String, Allowed>,
    /// The allowed names that have no certificate.
    lacking: usize,
    /// The last question was not answered.
    is_unanswered: bool,
    /// It was said that there are too many names.
    is_full: bool,
}

struct Allowed {
    /// When its permission is asked for again; `None` for a name of the list.
    ask_at: Option<SystemTime>,
    /// When a client wanted it last, while there was no certificate.
    wanted_at: SystemTime,
    has_certificate: bool,
}

/// Why there is no answer.
#[derive(Debug)]
struct Unanswered {
    why: String,
    /// The name was allowed before: its certificate is in the storage.
    has_certificate: bool,
}

/// Whether a name may have a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    Refused,
    Undecided,
    Allowed,
}

impl Demands {
    /// # Errors
    /// The URL is malformed, or the system has no authorities for it.
    pub(crate) fn new(
        settings: OnDemand,
        storage: Storage,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let state = State {
            stored: storage.certificate_names().into_iter().collect(),
            ..State::default()
        };
        Ok(Self {
            storage,
            names: settings.names,
            ask: settings.ask.map(Ask::new).transpose()?,
            clock: Arc::clone(clock),
            state: Mutex::new(state),
            queued: Notify::new(),
            allowed: watch::Sender::new(()),
            decided: watch::Sender::new(()),
        })
    }

    /// Goes on with the names that were allowed before, as far as these settings may allow
    /// them.
    pub(crate) fn take_over(&self, before: &Self) {
        let url = |it: &Self| it.ask.as_ref().map(|it| it.uri.clone());
        let is_asked = self.ask.is_some() && url(self) == url(before);
        let (before, now) = (before.state(), self.clock.now());
        let state = &mut *self.state();
        if is_asked {
            state.asked.extend(before.asked.iter().cloned());
        }
        for (name, allowed) in &before.allowed {
            let ask_at = match self.is_listed(name) {
                true => None,
                false if is_asked => Some(allowed.ask_at.unwrap_or(now)),
                false => continue,
            };
            let allowed = Allowed { ask_at, ..*allowed };
            state.allowed.insert(name.clone(), allowed);
        }
        state.count_lacking();
    }

    fn is_listed(&self, name: &str) -> bool {
        self.names.iter().any(|it| covers(it, name))
    }

    /// A client wants a certificate for this name.
    pub(crate) fn want(&self, server_name: &str) -> Permission {
        let Some(Name::Host(name)) = Name::parse(server_name) else {
            return Permission::Refused;
        };
        let now = self.clock.now();
        let mut state = self.state();
        if let Some(allowed) = state.allowed.get_mut(&name) {
            allowed.wanted_at = now;
            return Permission::Allowed;
        }
        if state.asked.contains(&name) {
            return Permission::Undecided;
        }
        if state.refused.get(&name).is_some_and(|until| *until > now) {
            return Permission::Refused;
        }
        let is_stored = state.stored.contains(&name);
        let ask_at = if self.is_listed(&name) {
            None
        } else {
            let is_full = state.queue.len() >= ASKS_WAITING || !state.has_room();
            if self.ask.is_none() || (is_full && !is_stored) {
                return Permission::Refused;
            }
            state.asked.insert(name.clone());
            if is_stored {
                // In front of names that may be anyone's.
                state.queue.push_front(name.clone());
            } else {
                state.queue.push_back(name.clone());
            }
            self.queued.notify_one();
            // While the permission can't be checked, a stored certificate is served.
            if !(is_stored && state.is_unanswered) {
                return Permission::Undecided;
            }
            Some(now + ALLOWED_FOR)
        };
        if !state.allow(&name, ask_at, now) {
            return Permission::Refused;
        }
        drop(state);
        self.allowed.send_replace(());
        Permission::Allowed
    }

    /// The names that are allowed, in order.
    pub(crate) fn allowed(&self) -> Vec<String> {
        let mut names: Vec<_> = self.state().allowed.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Whether a name is among the allowed ones.
    pub(crate) fn is_allowed(&self, name: &str) -> bool {
        self.state().allowed.contains_key(name)
    }

    /// Notes for which names there is a certificate.
    pub(crate) fn note_certificates(&self, has_certificate: impl Fn(&str) -> bool) {
        let state = &mut *self.state();
        for (name, allowed) in &mut state.allowed {
            allowed.has_certificate = has_certificate(name);
        }
        state.count_lacking();
        self.decided.send_replace(());
    }

    /// Told when other names are allowed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.allowed.subscribe()
    }

    /// Told whenever a name may have changed its standing, or got its certificate.
    pub(crate) fn decisions(&self) -> watch::Receiver<()> {
        self.decided.subscribe()
    }

    /// Wakes all clients that wait for a certificate.
    pub(crate) fn tell(&self) {
        self.decided.send_replace(());
    }

    /// Asks for permission of names, and forgets expired entries, for ever.
    ///
    /// # Cancellation
    /// Safe: the next call asks again for the unanswered names.
    pub(crate) async fn keep(&self) {
        {
            let state = &mut *self.state();
            state.queue = state.asked.iter().cloned().collect();
        }
        let mut asking = FuturesUnordered::new();
        loop {
            self.look();
            if let Some(ask) = &self.ask {
                while asking.len() < ASKS_AT_ONCE
                    && let Some(name) = { self.state().queue.pop_front() }
                {
                    asking.push(async {
                        let answer = match ask.about(&name, &*self.clock).await {
                            Ok(answer) => Ok(answer),
                            Err(why) => Err(self.unanswered(&name, why).await),
                        };
                        (name, answer)
                    });
                }
            }
            tokio::select! {
                Some((name, answer)) = asking.next(), if !asking.is_empty() => {
                    self.take(name, answer);
                }
                () = self.queued.notified() => {}
                () = self.clock.sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn unanswered(&self, name: &str, why: String) -> Unanswered {
        let path = self.storage.certificate(name);
        let exists = blocking(move || Ok(path.exists())).await;
        let has_certificate = exists.unwrap_or_default();
        Unanswered {
            why,
            has_certificate,
        }
    }

    /// Takes in an answer.
    fn take(&self, name: String, answer: Result<bool, Unanswered>) {
        let now = self.clock.now();
        let state = &mut *self.state();
        state.asked.remove(&name);
        let was_unanswered = std::mem::replace(&mut state.is_unanswered, answer.is_err());
        let url = self.ask.as_ref().map(|it| it.uri.to_string());
        let url = url.unwrap_or_default();
        match &answer {
            Ok(_) if was_unanswered => tracing::info!("acme: {url} answers again"),
            Err(Unanswered { why, .. }) if !was_unanswered => tracing::warn!(
                "acme: on_demand: {url} does not say whether {name} may have a certificate: {why}; \
                 names without one are refused until it answers"
            ),
            _ => {}
        }
        let is_known = state.allowed.contains_key(&name);
        let is_changed = match answer {
            Ok(true) => {
                let ask_at = Some(now + ALLOWED_FOR);
                state.allow(&name, ask_at, now) && !is_known
            }
            Ok(false) => {
                state.refuse(&name, now, REFUSED_FOR);
                state.stored.remove(&name);
                if is_known {
                    tracing::info!(name, "acme: {url} no longer allows {name}");
                    state.allowed.remove(&name);
                    state.count_lacking();
                }
                is_known
            }
            Err(it) if is_known || it.has_certificate => {
                let ask_at = Some(now + LOOK_EVERY);
                state.allow(&name, ask_at, now) && !is_known
            }
            Err(_) => {
                state.refuse(&name, now, UNANSWERED_FOR);
                false
            }
        };
        if is_changed {
            self.allowed.send_replace(());
        }
        self.decided.send_replace(());
    }

    /// Forgets expired entries, and queues permissions to be checked again.
    fn look(&self) {
        let now = self.clock.now();
        let state = &mut *self.state();
        state.refused.retain(|_, until| *until > now);
        let before = state.allowed.len();
        state.allowed.retain(|_, it| {
            it.has_certificate
                || now.duration_since(it.wanted_at).unwrap_or_default() < REMEMBERED_FOR
        });
        for (name, allowed) in &state.allowed {
            let is_due = allowed.ask_at.is_some_and(|it| it <= now);
            if is_due && state.queue.len() < ASKS_WAITING && state.asked.insert(name.clone()) {
                state.queue.push_back(name.clone());
            }
        }
        if state.allowed.len() != before {
            state.count_lacking();
            self.allowed.send_replace(());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// `false` where there is no room for it.
    fn allow(&mut self, name: &str, ask_at: Option<SystemTime>, now: SystemTime) -> bool {
        if let Some(allowed) = self.allowed.get_mut(name) {
            allowed.ask_at = ask_at;
            return true;
        }
        let has_certificate = self.stored.contains(name);
        if !has_certificate && !self.has_room() {
            return false;
        }
        tracing::info!(name, "acme: a client requested {name}, which is allowed");
        self.refused.remove(name);
        self.lacking += usize::from(!has_certificate);
        let allowed = Allowed {
            ask_at,
            wanted_at: now,
            has_certificate,
        };
        self.allowed.insert(name.to_owned(), allowed);
        true
    }

    /// Whether one more name may be allowed. Says once that there are too many.
    fn has_room(&mut self) -> bool {
        let has_room = self.lacking < LACKING_MAX && self.allowed.len() < ALLOWED_MAX;
        if !has_room && !self.is_full {
            tracing::warn!(
                "acme: on_demand: too many names: {} wait for a certificate, {} in all; further \
                 names are refused",
                self.lacking,
                self.allowed.len()
            );
        }
        self.is_full = !has_room;
        has_room
    }

    fn refuse(&mut self, name: &str, now: SystemTime, lasts: Duration) {
        if self.refused.len() >= REFUSED_MAX {
            // They are asked about again.
            self.refused.clear();
        }
        self.refused.insert(name.to_owned(), now + lasts);
    }

    fn count_lacking(&mut self) {
        let lacking = self.allowed.values().filter(|it| !it.has_certificate);
        self.lacking = lacking.count();
    }
}

impl Ask {
    fn new(url: String) -> Result<Self, Error> {
        let uri: Option<Uri> = url.parse().ok();
        let is_http = |it: &Uri| matches!(it.scheme_str(), Some("http" | "https"));
        let Some(uri) = uri.filter(|it| is_http(it) && it.host().is_some()) else {
            return Err(Error::Ask { url });
        };
        let authorities = Authorities::system_once().map_err(Error::SystemAuthorities)?;
        let connector = connector(authorities, Schemes::Both).map_err(Error::Tls)?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { uri, client })
    }

    /// Whether the name may have a certificate.
    ///
    /// # Errors
    /// Why there is no answer.
    async fn about(&self, name: &str, clock: &dyn Clock) -> Result<bool, String> {
        // A name has only bytes that are valid in a query.
        let sign = if self.uri.query().is_some() { '&' } else { '?' };
        let uri = format!("{}{sign}domain={name}", self.uri);
        let request = Request::get(uri).body(Empty::new());
        let request = request.map_err(|it| it.to_string())?;
        let response = tokio::select! {
            response = self.client.request(request) => response.map_err(|it| with_causes(&it))?,
            () = clock.sleep(ASK_DEADLINE) => {
                return Err(format!("no answer within {} s", ASK_DEADLINE.as_secs()));
            }
        };
        match response.status() {
            status if status.is_success() => Ok(true),
            status if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                Ok(false)
            }
            status => Err(format!("it answered {status}")),
        }
    }
}

/// Whether an entry of the list stands for a name.
fn covers(entry: &str, name: &str) -> bool {
    match entry.strip_prefix('*') {
        Some(end) => name.len() > end.len() && name.ends_with(end),
        None => entry == name,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;

    /// A clock that a test sets. Nothing waits by it.
    #[derive(Default)]
    struct Set(Mutex<Duration>);

    impl Clock for Set {
        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + *self.0.lock().unwrap()
        }

        fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(std::future::pending())
        }
    }

    fn unanswered(has_certificate: bool) -> Unanswered {
        let why = "down".to_owned();
        Unanswered {
            why,
            has_certificate,
        }
    }

    /// With a list of `*.a.example` and `b.example`, and a server that is asked, if any.
    fn demands(ask: Option<&str>) -> (Demands, Arc<Set>) {
        let folder = evenkeel_testkit::TempDir::new().unwrap();
        let storage = Storage::open(folder.path()).unwrap();
        let clock = Arc::new(Set::default());
        let settings = OnDemand {
            names: ["*.a.example", "b.example"].map(str::to_owned).into(),
            ask: ask.map(str::to_owned),
        };
        let of: Arc<dyn Clock> = clock.clone();
        (Demands::new(settings, storage, &of).unwrap(), clock)
    }

    fn pass(clock: &Set, time: Duration) {
        *clock.0.lock().unwrap() += time;
    }

    #[test]
    fn a_list_allows_names_and_all_below_a_domain() {
        let (demands, _) = demands(None);
        for (name, standing) in [
            ("x.a.example", Permission::Allowed),
            ("X.Y.a.Example.", Permission::Allowed),
            ("b.example", Permission::Allowed),
            ("a.example", Permission::Refused),
            ("xa.example", Permission::Refused),
            (".a.example", Permission::Refused),
            ("*.a.example", Permission::Refused),
            ("x.b.example", Permission::Refused),
            ("10.0.0.1", Permission::Refused),
            ("", Permission::Refused),
        ] {
            assert_eq!(demands.want(name), standing, "{name}");
        }
        let allowed = demands.allowed();
        assert_eq!(allowed, ["b.example", "x.a.example", "x.y.a.example"]);
    }

    #[test]
    fn an_answer_holds_for_its_time() {
        let (demands, clock) = demands(Some("http://127.0.0.1:1/"));
        let name = "c.example";
        for (answer, standing, holds) in [
            (Ok(false), Permission::Refused, REFUSED_FOR),
            (Err(unanswered(false)), Permission::Refused, UNANSWERED_FOR),
        ] {
            assert_eq!(demands.want(name), Permission::Undecided);
            demands.take(name.to_owned(), answer);
            pass(&clock, holds - Duration::from_secs(1));
            assert_eq!(demands.want(name), standing);
            pass(&clock, Duration::from_secs(1));
        }
        assert_eq!(demands.want(name), Permission::Undecided);
        demands.take(name.to_owned(), Ok(true));
        assert_eq!(demands.want(name), Permission::Allowed);
        demands.note_certificates(|_| true);
        // The permission is checked again; the name stays while there is no answer.
        pass(&clock, ALLOWED_FOR);
        demands.look();
        assert!(demands.state().asked.contains(name));
        demands.take(name.to_owned(), Err(unanswered(false)));
        assert_eq!(demands.allowed(), [name]);
        demands.take(name.to_owned(), Ok(false));
        assert_eq!(
            (demands.allowed().len(), demands.want(name)),
            (0, Permission::Refused)
        );
    }

    #[test]
    fn what_was_allowed_before_needs_no_answer() {
        let url = "http://127.0.0.1:1/";
        let (demands, clock) = demands(Some(url));
        demands.want("c.example");
        demands.take("c.example".to_owned(), Err(unanswered(true)));
        demands.want("b.example");
        assert_eq!(demands.allowed(), ["b.example", "c.example"]);
        // New settings drop the names that they do not allow.
        for (ask, names) in [
            (Some(url), &["b.example", "c.example"][..]),
            (Some("http://127.0.0.1:2/"), &["b.example"]),
            (None, &["b.example"]),
        ] {
            let (next, _) = super::tests::demands(ask);
            next.take_over(&demands);
            assert_eq!(next.allowed(), names, "{ask:?}");
        }
        pass(&clock, LOOK_EVERY);
        demands.look();
        assert!(demands.state().asked.contains("c.example"));
    }

    #[test]
    fn a_flood_keeps_no_name_out_whose_certificate_is_stored() {
        let folder = evenkeel_testkit::TempDir::new().unwrap();
        let storage = Storage::open(folder.path()).unwrap();
        for name in ["listed.a.example", "asked.example", "gone.example"] {
            std::fs::write(storage.certificate(name), "").unwrap();
        }
        let settings = OnDemand {
            names: vec!["*.a.example".to_owned()],
            ask: Some("http://127.0.0.1:1/".to_owned()),
        };
        let clock: Arc<dyn Clock> = Arc::new(Set::default());
        let demands = Demands::new(settings, storage, &clock).unwrap();
        for at in 0..ASKS_WAITING {
            demands.want(&format!("{at}.example"));
        }
        for at in 0..LACKING_MAX {
            demands.want(&format!("{at}.a.example"));
        }
        assert_eq!(demands.want("other.example"), Permission::Refused);
        assert_eq!(demands.want("listed.a.example"), Permission::Allowed);
        assert_eq!(demands.want("gone.example"), Permission::Undecided);
        assert_eq!(demands.state().queue.front().unwrap(), "gone.example");
        demands.take("gone.example".to_owned(), Ok(false));
        assert_eq!(demands.want("gone.example"), Permission::Refused);
        // While there is no answer, the certificate is served at once.
        demands.take("0.example".to_owned(), Err(unanswered(false)));
        assert_eq!(demands.want("asked.example"), Permission::Allowed);
    }

    #[test]
    fn a_name_without_a_certificate_is_forgotten() {
        let (demands, clock) = demands(None);
        demands.want("x.a.example");
        demands.want("y.a.example");
        demands.note_certificates(|it| it == "x.a.example");
        pass(&clock, REMEMBERED_FOR);
        demands.look();
        assert_eq!(demands.allowed(), ["x.a.example"]);
    }

    #[test]
    fn names_are_bounded() {
        let (demands, _) = demands(Some("http://127.0.0.1:1/"));
        let name = |at: usize| format!("n{at}.a.example");
        for at in 0..LACKING_MAX {
            assert_eq!(demands.want(&name(at)), Permission::Allowed);
        }
        assert_eq!(demands.want(&name(LACKING_MAX)), Permission::Refused);
        assert_eq!(demands.want("c.example"), Permission::Refused);
        demands.note_certificates(|it| it == name(0));
        assert_eq!(demands.want(&name(LACKING_MAX)), Permission::Allowed);
        assert_eq!(demands.want(&name(0)), Permission::Allowed);
        demands.note_certificates(|_| true);
        for at in 0..ASKS_WAITING {
            assert_eq!(
                demands.want(&format!("{at}.example")),
                Permission::Undecided
            );
        }
        assert_eq!(demands.want("c.example"), Permission::Refused);
    }
}
