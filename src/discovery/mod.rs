//! Discovery: the sources of endpoints while the program runs.
//!
//! Owns the list of each upstream. Its sources are addresses as written, names and services that
//! are looked up (`names`), and files (`file`). Operators change lists (`changes`, `by_hand`).
//!
//! [`Discovery`] puts a list together (`list`) and hands it to the [`SharedUpstream`], which
//! keeps the state of endpoints that stay. It leaves lists to a process that takes over (`kept`).
//! One for the process. Tasks of the control thread ask the sources; workers never wait for them.
//!
//! Invariant: a source that fails never takes an endpoint away. Its last list stays,
//! and how old that is can be seen.

mod by_hand;
mod changes;
mod compared;
mod file;
mod kept;
mod list;
mod names;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::config::{Config, Endpoint, EndpointSource, Upstream};
use crate::metrics::quantity::counted;
use crate::net::clock;
use crate::observe::discovered::{Discovered, SourceFigures};
use crate::upstream::SharedUpstream;
use crate::upstream::change::log_change;
use crate::watching::WatchedFolders;
use by_hand::SavedFile;
use changes::Changes;
pub use changes::{AdminChange, EndpointChange, Keep, ListChange};
pub use compared::OperatorChange;
pub use kept::{ChangesSnapshot, SourcesSnapshot};
use list::List;
use names::{Answer, Names, Question};

/// How long the start waits for the first answers. Endpoints whose names are answered later join
/// later.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// How long a configuration that is prepared waits for files: a disk may not answer.
const FILES_LOOK: Duration = Duration::from_secs(10);
/// The shortest and the longest time between two looks, whatever a TTL says.
const MIN_TTL: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(3600);
/// Time from a failure to the next look; doubled after each further failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// If more endpoints join or leave at once, they share one line of the event log.
const MOST_LINES: usize = 8;

/// The lists of endpoints of all upstreams.
#[derive(Debug, Default)]
pub struct Discovery {
    state: Mutex<State>,
    /// The part that figures show.
    shown: Arc<Discovered>,
    /// Hears of another configuration.
    configured: Notify,
    /// Held while an operator changes a list.
    changing: tokio::sync::Mutex<()>,
    folders: Arc<WatchedFolders>,
}

/// Why a source could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    /// The same in the event log and in the figures.
    word: &'static str,
    text: String,
}

/// The answers of a source.
#[derive(Debug, Clone)]
struct SourceState<T> {
    /// Its last good answer.
    last: Option<(T, SystemTime)>,
    /// When it is asked next.
    due: Option<Instant>,
    failures: u64,
    failing: Option<Failure>,
}

impl<T> Default for SourceState<T> {
    fn default() -> Self {
        SourceState {
            last: None,
            due: None,
            failures: 0,
            failing: None,
        }
    }
}

impl<T> SourceState<T> {
    /// Notes an answer or a failure. Whether the source begins to fail, recovers, or fails in
    /// another way.
    fn note(&mut self, outcome: Result<T, Failure>) -> bool {
        match outcome {
            Ok(answer) => {
                self.last = Some((answer, SystemTime::now()));
                self.failing.take().is_some()
            }
            Err(failure) => {
                self.failures += 1;
                let before = self.failing.as_ref().map(|it| it.word);
                let is_news = before != Some(failure.word);
                self.failing = Some(failure);
                is_news
            }
        }
    }

    fn figures(&self, source: &str, kind: &'static str, endpoints: usize) -> SourceFigures {
        let mut figures = SourceFigures {
            source: source.to_owned(),
            kind,
            endpoints,
            failures: self.failures,
            ..SourceFigures::default()
        };
        if let Some((_, at)) = &self.last {
            figures.note_read(*at);
        }
        if let Some(failure) = &self.failing {
            figures.failing = Some(failure.word);
            figures.error = Some(failure.text.clone());
        }
        figures
    }
}

impl SourceState<Answer> {
    /// Hosts of a service without an address in its last answer.
    fn absent(&self) -> &[String] {
        self.last.as_ref().map_or(&[], |(it, _)| &it.absent)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Name servers that replace the system's, if there are any.
    resolvers: Vec<SocketAddr>,
    upstreams: BTreeMap<String, Known>,
    answers: HashMap<Question, SourceState<Answer>>,
    files: HashMap<PathBuf, SourceState<Vec<Endpoint>>>,
    /// The changes of operators, by upstream.
    changes: BTreeMap<String, Changes>,
    /// The state file, where the configuration names one.
    saved: Option<SavedFile>,
    /// State files of configurations that are being prepared, by path, if they are others.
    saved_next: BTreeMap<PathBuf, SavedFile>,
    /// The process drains: another one may have the state file.
    is_draining: bool,
}

impl State {
    /// The questions of all upstreams.
    fn questions(&self) -> HashSet<Question> {
        let sources = self.upstreams.values().flat_map(|it| &it.sources);
        sources.filter_map(Question::of).collect()
    }

    /// Whether there is an answer that holds. An answer that no upstream follows is not renewed:
    /// it holds for its TTL.
    fn is_known(&self, question: &Question, followed: &HashSet<Question>, now: Instant) -> bool {
        let Some(said) = self.answers.get(question) else {
            return false;
        };
        // A start relies on the answers to the process before.
        let is_followed = self.upstreams.is_empty() || followed.contains(question);
        said.last.is_some() && (is_followed || said.due.is_some_and(|it| it > now))
    }

    /// The files of endpoints of all upstreams.
    fn paths(&self) -> HashSet<PathBuf> {
        let files = self.upstreams.values();
        files.filter_map(|it| it.file.clone()).collect()
    }

    /// Forgets sources that no upstream has.
    fn forget_others(&mut self) {
        let (questions, paths) = (self.questions(), self.paths());
        self.answers.retain(|it, _| questions.contains(it));
        self.files.retain(|it, _| paths.contains(it));
    }
}

/// An upstream, and its list.
#[derive(Debug)]
struct Known {
    /// How the configuration writes the list.
    listed: String,
    sources: Vec<EndpointSource>,
    file: Option<PathBuf>,
    shared: Arc<SharedUpstream>,
    /// The members of `shared`.
    list: Vec<Endpoint>,
}

impl Discovery {
    /// The folders that are watched for files of endpoints, and maybe for other files.
    pub fn folders(&self) -> &Arc<WatchedFolders> {
        &self.folders
    }

    /// The part that figures show.
    pub fn shown(&self) -> &Arc<Discovered> {
        &self.shown
    }

    /// Asks every source of the configuration without a valid answer, waits for a moment, and
    /// fills in the present endpoints of each upstream.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    pub async fn prepare(self: &Arc<Self>, config: &mut Config) {
        if let Some(path) = &config.state_file {
            self.read_state(path).await;
        }
        self.read_files(config).await;
        let names = Names::new(resolvers(config));
        let mut unknown = questions(config);
        {
            let (state, now) = (self.state(), Instant::now());
            let followed = state.questions();
            unknown.retain(|it| !state.is_known(it, &followed, now));
        }
        let mut looks = JoinSet::new();
        for question in &unknown {
            let question = question.clone();
            let (discovery, names) = (self.clone(), names.clone());
            looks.spawn(async move {
                let answer = names.ask(&question).await;
                discovery.note_answer(&question, answer);
            });
        }
        let all = async { while looks.join_next().await.is_some() {} };
        // The task of a question asks again if no answer has come by then.
        let _ = timeout(FIRST_LOOK, all).await;
        for question in &unknown {
            let is_open = !self.state().answers.contains_key(question);
            if is_open {
                self.note_answer(question, Err(no_answer_yet()));
            }
        }
        let state = self.state();
        for upstream in &mut config.upstreams {
            let file = upstream.endpoints_file.as_deref();
            let state_file = config.state_file.as_deref();
            let changes = state.changes_under(&upstream.name, &upstream.listed, state_file);
            let list = state.assemble(&upstream.sources, file, changes);
            upstream.endpoints = list.endpoints;
        }
    }

    /// Takes over a configuration that was [prepared](Self::prepare), with the upstreams that the
    /// workers share, in its order. Upstreams that are gone are forgotten.
    pub fn configure(&self, config: &Config, shared: &[Arc<SharedUpstream>]) {
        let mut state = self.state();
        let resolvers = resolvers(config);
        if resolvers != state.resolvers {
            // Other name servers may answer otherwise.
            state.answers.values_mut().for_each(|it| it.due = None);
            state.resolvers = resolvers;
        }
        state.follow_changes(config);
        let mut before = std::mem::take(&mut state.upstreams);
        let mut new = Vec::new();
        for (upstream, shared) in config.upstreams.iter().zip(shared) {
            let is_same = |it: &Known| Arc::ptr_eq(&it.shared, shared);
            let staying = before.remove(&upstream.name).filter(is_same);
            if staying.is_none() {
                self.note_failing(&state, upstream);
                new.push(upstream.name.as_str());
            }
            // A list that is written as before keeps its members.
            let is_listed = |it: &Known| it.listed == upstream.listed;
            if let Some(other) = staying.as_ref().filter(|it| !is_listed(it)) {
                let then = upstream.endpoints.iter();
                let then = then.map(|it| (it.name.clone(), String::new())).collect();
                let left = self.left(&upstream.name, &other.list, &then);
                self.shown.note_absent(&upstream.name, left);
            }
            let list = staying.filter(is_listed).map(|it| it.list);
            let known = Known {
                listed: upstream.listed.clone(),
                sources: upstream.sources.clone(),
                file: upstream.endpoints_file.clone(),
                shared: shared.clone(),
                list: list.unwrap_or_else(|| upstream.endpoints.clone()),
            };
            state.upstreams.insert(upstream.name.clone(), known);
        }
        state.forget_others();
        self.shown.retain(|name| state.upstreams.contains_key(name));
        let names: Vec<_> = state.upstreams.keys().cloned().collect();
        for name in names {
            self.publish(&mut state, &name);
        }
        for upstream in new {
            state.set_admin(upstream, &[]);
        }
        drop(state);
        self.configured.notify_one();
    }

    /// Forgets the answers that were [prepared](Self::prepare) for a configuration that does not
    /// come into force: they would be old for the next one.
    pub fn forget_prepared(&self) {
        let mut state = self.state();
        state.saved_next.clear();
        state.forget_others();
    }

    /// Saves nothing more: the process drains, and another one may save its own changes.
    pub fn leave_state_file(&self) {
        self.state().is_draining = true;
    }

    /// Asks the sources for ever, in local tasks beside this one.
    pub async fn keep(self: Arc<Self>) {
        let mut names: HashMap<Question, AbortHandle> = HashMap::new();
        let mut files: HashMap<PathBuf, AbortHandle> = HashMap::new();
        let mut of: Option<(Vec<SocketAddr>, Names)> = None;
        loop {
            let (resolvers, questions, paths) = {
                let state = self.state();
                (state.resolvers.clone(), state.questions(), state.paths())
            };
            let asked = match &of {
                Some((before, asked)) if *before == resolvers => asked.clone(),
                _ => {
                    names.drain().for_each(|(_, task)| task.abort());
                    let asked = Names::new(resolvers.clone());
                    of.insert((resolvers, asked)).1.clone()
                }
            };
            follow(&mut names, questions, |question| {
                let task = self.clone().follow_name(question.clone(), asked.clone());
                spawn_local(task).abort_handle()
            });
            follow(&mut files, paths, |path| {
                spawn_local(self.clone().follow_file(path.clone())).abort_handle()
            });
            self.configured.notified().await;
        }
    }

    /// Asks one question for ever.
    async fn follow_name(self: Arc<Self>, question: Question, names: Names) {
        let mut pause = FIRST_PAUSE;
        loop {
            let due = self.state().answers.get(&question).and_then(|it| it.due);
            if let Some(due) = due {
                sleep(due.saturating_duration_since(Instant::now())).await;
            }
            if question.is_local() && !self.is_lost(&question) {
                // The address of this machine works as it is.
                sleep(MIN_TTL).await;
                continue;
            }
            let answer = names.ask(&question).await;
            let failed = answer.is_err();
            self.note_answer(&question, answer);
            pause = if failed {
                sleep(pause).await;
                (pause * 2).min(LONGEST_PAUSE)
            } else {
                FIRST_PAUSE
            };
        }
    }

    /// Whether an endpoint at the name can't be reached now, or was never looked for.
    fn is_lost(&self, question: &Question) -> bool {
        let state = self.state();
        let said = state.answers.get(question);
        if said.is_none_or(|it| it.last.is_none()) {
            return true;
        }
        state.upstreams.values().any(|upstream| {
            let members = upstream.shared.dispatcher().members();
            let mut sources = upstream.sources.iter();
            sources.any(|source| {
                let is_it = Question::of(source).as_ref() == Some(question);
                let endpoint = members.named(source.text()).filter(|_| is_it);
                endpoint.is_some_and(|it| it.is_lost())
            })
        })
    }

    /// Notes the answer to a question, and has the upstreams follow that ask it.
    fn note_answer(&self, question: &Question, answer: Result<Answer, Failure>) {
        let mut state = self.state();
        let said = state.answers.entry(question.clone()).or_default();
        said.due = match &answer {
            Ok(answer) => Some(Instant::now() + answer.ttl.clamp(MIN_TTL, MAX_TTL)),
            Err(_) => None,
        };
        let absent_before = said.absent().to_vec();
        let is_news = said.note(answer);
        let absent = Some(said.absent()).filter(|it| !it.is_empty() && **it != absent_before);
        if let Some(absent) = absent {
            tracing::warn!(
                "{}: no name server has an address for {}",
                question.text(),
                absent.join(", ")
            );
        }
        let (failing, stays) = (said.failing.clone(), said.last.is_some());
        let asks = |it: &&EndpointSource| Question::of(it).as_ref() == Some(question);
        let asking = state.upstreams.iter().filter_map(|(name, upstream)| {
            let source = upstream.sources.iter().find(asks)?;
            Some((name.clone(), source.text().to_owned()))
        });
        for (name, source) in asking.collect::<Vec<_>>() {
            self.count_failure(&name, failing.as_ref());
            if is_news {
                log_source(&name, &source, failing.as_ref(), stays);
            }
            self.publish(&mut state, &name);
        }
    }

    /// Reads a file of endpoints, and has the upstreams follow that use it.
    async fn read_file(&self, path: &Path) {
        let owned = path.to_owned();
        let read = tokio::task::spawn_blocking(move || file::read(&owned)).await;
        let Ok(read) = read else { return };
        let mut state = self.state();
        let said = state.files.entry(path.to_owned()).or_default();
        let is_news = said.note(read);
        let (failing, stays) = (said.failing.clone(), said.last.is_some());
        let having = state.upstreams.iter();
        let having = having.filter(|(_, it)| it.file.as_deref() == Some(path));
        for name in having.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.count_failure(&name, failing.as_ref());
            if is_news {
                log_source(&name, &path.display().to_string(), failing.as_ref(), stays);
            }
            self.publish(&mut state, &name);
        }
    }

    /// Reads the files of endpoints of a configuration. Files that take too long are read by
    /// their tasks.
    async fn read_files(&self, config: &Config) {
        let files = config.upstreams.iter();
        let files = files.filter_map(|it| it.endpoints_file.clone());
        let mut unread: HashSet<_> = files.collect();
        let reading = async {
            for path in unread.clone() {
                self.read_file(&path).await;
                unread.remove(&path);
            }
        };
        if timeout(FILES_LOOK, reading).await.is_ok() {
            return;
        }
        let mut state = self.state();
        for path in unread {
            let failure = Failure {
                word: "file-unreadable",
                text: not_read_yet(),
            };
            state.files.entry(path).or_default().note(Err(failure));
        }
    }

    /// Counts a failure if the source of an upstream fails.
    fn count_failure(&self, upstream: &str, failing: Option<&Failure>) {
        if let Some(failure) = failing {
            self.shown.source_failures(upstream).note(failure.word);
        }
    }

    /// Reads a file whenever it is replaced.
    async fn follow_file(self: Arc<Self>, path: PathBuf) {
        let mut watch = file::watch(&self.folders, &path).await;
        loop {
            // It may have changed before it was watched.
            self.read_file(&path).await;
            watch.changed().await;
        }
    }

    /// Publishes the present list of an upstream to the workers.
    fn publish(&self, state: &mut State, name: &str) {
        let Some(known) = state.upstreams.get(name) else {
            return;
        };
        let List {
            endpoints,
            reasons,
            sources,
        } = state.assemble(
            &known.sources,
            known.file.as_deref(),
            state.changes.get(name),
        );
        let is_new = endpoints != known.list;
        let mut absent = Vec::new();
        if let Some(changes) = state.changes.get(name) {
            let removed = changes.removed.iter().take(MOST_LINES);
            absent.extend(removed.filter_map(|it| Some((it.clone(), changes.why_removed(it)?))));
        }
        if is_new {
            absent.extend(self.left(name, &known.list, &reasons));
            log_changes(name, &known.list, &endpoints, &reasons);
            let now = clock::now();
            known.shared.replace_members(&endpoints, now);
        }
        self.shown.note(name, sources, reasons);
        self.shown.note_absent(name, absent);
        if is_new && let Some(known) = state.upstreams.get_mut(name) {
            let before = std::mem::replace(&mut known.list, endpoints);
            state.set_admin(name, &before);
        }
    }

    /// Why the endpoints of a list left that have no reason to be there now.
    fn left(
        &self,
        upstream: &str,
        before: &[Endpoint],
        reasons: &HashMap<String, String>,
    ) -> Vec<(String, String)> {
        let left = before.iter().filter(|it| !reasons.contains_key(&it.name));
        // The rest is forgotten at once.
        let left = left.take(MOST_LINES).map(|it| {
            let reason = self.shown.reason(upstream, &it.name);
            let why = match reason.as_deref() {
                Some("written in the configuration") | None => {
                    "the configuration no longer lists it".to_owned()
                }
                Some(reason) if reason.starts_with("added ") => {
                    format!("it was {reason}, which is no longer so")
                }
                Some(reason) => {
                    let source = reason.split(", TTL ").next().unwrap_or(reason);
                    format!("{source} no longer gives it")
                }
            };
            (it.name.clone(), why)
        });
        left.collect()
    }

    /// Logs and counts each source of a new upstream that could not be read.
    fn note_failing(&self, state: &State, upstream: &Upstream) {
        let asked = upstream.sources.iter().filter_map(|source| {
            let said = state.answers.get(&Question::of(source)?)?;
            let failure = said.failing.as_ref()?;
            Some((source.text().to_owned(), failure, said.last.is_some()))
        });
        let file = upstream.endpoints_file.as_ref().and_then(|path| {
            let said = state.files.get(path)?;
            let failure = said.failing.as_ref()?;
            Some((path.display().to_string(), failure, said.last.is_some()))
        });
        for (source, failure, stays) in asked.chain(file) {
            self.count_failure(&upstream.name, Some(failure));
            log_source(&upstream.name, &source, Some(failure), stays);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Has new endpoints of an upstream take part or not, as operators want it.
    fn set_admin(&self, upstream: &str, before: &[Endpoint]) {
        let (Some(changes), Some(known)) =
            (self.changes.get(upstream), self.upstreams.get(upstream))
        else {
            return;
        };
        let dispatcher = known.shared.dispatcher();
        for state in dispatcher.members().endpoints() {
            let name = state.name();
            let is_new = |_: &_| before.iter().all(|it| it.name != name);
            let Some(admin) = changes.admin(name).filter(is_new) else {
                continue;
            };
            if let Some(change) = dispatcher.set_admin(state, admin, clock::now()) {
                log_change(
                    upstream,
                    name,
                    &change,
                    Some("by the operator, from the state file"),
                );
            }
        }
    }
}

fn no_answer_yet() -> Failure {
    Failure {
        word: "dns-timeout",
        text: format!("no answer within {} s", FIRST_LOOK.as_secs()),
    }
}

fn not_read_yet() -> String {
    format!("it is not read within {} s", FILES_LOOK.as_secs())
}

/// Ends the tasks of removed items, and begins tasks of new ones.
fn follow<K: Eq + std::hash::Hash>(
    tasks: &mut HashMap<K, AbortHandle>,
    wanted: HashSet<K>,
    begin: impl Fn(&K) -> AbortHandle,
) {
    tasks.retain(|key, task| {
        let stays = wanted.contains(key);
        if !stays {
            task.abort();
        }
        stays
    });
    for key in wanted {
        tasks.entry(key).or_insert_with_key(&begin);
    }
}

fn resolvers(config: &Config) -> Vec<SocketAddr> {
    config.server.resolvers.clone().unwrap_or_default()
}

/// The questions of the configuration, each once.
fn questions(config: &Config) -> Vec<Question> {
    let sources = config
        .upstreams
        .iter()
        .flat_map(|it: &Upstream| &it.sources);
    let questions: HashSet<_> = sources.filter_map(Question::of).collect();
    questions.into_iter().collect()
}

/// One line where a source begins to fail, or recovers.
fn log_source(upstream: &str, source: &str, failing: Option<&Failure>, stays: bool) {
    match failing {
        Some(Failure { word, text }) => {
            let then = if stays {
                "its last list stays in use"
            } else {
                "it has given no endpoints yet"
            };
            tracing::warn!(
                upstream,
                source,
                failure = word,
                "upstream {upstream}: {source}: {word}: {text}; {then}"
            );
        }
        None => tracing::info!(
            upstream,
            source,
            "upstream {upstream}: {source} can be read again"
        ),
    }
}

/// A line for each endpoint that joins or leaves, or one for all of them.
fn log_changes(
    upstream: &str,
    before: &[Endpoint],
    after: &[Endpoint],
    reasons: &HashMap<String, String>,
) {
    let names = |list: &[Endpoint]| {
        list.iter()
            .map(|it| it.name.clone())
            .collect::<HashSet<_>>()
    };
    let (old, new) = (names(before), names(after));
    let joined: Vec<_> = after.iter().filter(|it| !old.contains(&it.name)).collect();
    let left: Vec<_> = before.iter().filter(|it| !new.contains(&it.name)).collect();
    let count = after.len();
    if joined.len() + left.len() > MOST_LINES {
        let (joined, left) = (joined.len(), left.len());
        tracing::info!(
            upstream,
            joined,
            left,
            count,
            "upstream {upstream}: {} joined, {left} left; {count} in all",
            counted(joined as u64, "endpoint")
        );
        return;
    }
    for Endpoint { name: endpoint, .. } in joined {
        let reason = reasons.get(endpoint).map_or("", String::as_str);
        tracing::info!(
            upstream,
            endpoint,
            count,
            "upstream {upstream}: endpoint {endpoint} joined ({reason}); {count} in all"
        );
    }
    for Endpoint { name: endpoint, .. } in left {
        tracing::info!(
            upstream,
            endpoint,
            count,
            "upstream {upstream}: endpoint {endpoint} left, and finishes its exchanges; {count} \
             in all"
        );
    }
}

#[cfg(test)]
mod tests;
