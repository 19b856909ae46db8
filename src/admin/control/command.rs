//! The commands of the control socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_local;

use super::answer::{Answer, Format, with_names};
use super::{Caller, haproxy, show};
use crate::admin::operate::{Operation, Operator, Unknown, left_empty, nobody_left, operate};
use crate::admin::order::{Order, ReloadOptions, order};
use crate::admin::purge::PurgeOrder;
use crate::admin::{Admin, Requester};
use crate::config::MAX_WEIGHT;
use crate::discovery::{Keep, ListChange};
use crate::explain::live;
use crate::observe::figures::{AdminWord, Sources};
use crate::observe::log_level;
use crate::observe::rates::Rates;
use evenkeel_policy::endpoint::Admin as AdminState;

/// Rows shown by default.
const DEFAULT_ROWS: usize = 100;
/// Most rows shown.
pub const MAX_ROWS: usize = 10_000;
/// The shortest and the longest time for `rates`.
const MIN_WINDOW: Duration = Duration::from_millis(100);
const MAX_WINDOW: Duration = Duration::from_secs(60);
/// Longest part of a command that an error repeats, in characters.
const MAX_ECHO_LEN: usize = 80;
/// The word that saves a change of an endpoint.
const SAVE: &str = "save";

const HELP: &str =
    "show upstreams [NAME]        upstreams with their endpoints: state, load, counts
show listeners               listeners: connections, requests, times
show routes                  routes: requests, errors, times
show files                   files from memory and from disks; the disks' queues
show cache                   caches: responses, memory; cache results of each route
show certificates            certificates, the first to expire first; files that can't be used
show sessions [N]            open connections, those with an exchange first
show queue                   requests that wait for an endpoint, and for how long
show generations             configurations in use: the newest, and older ones still in use
show errors [N]              the last exchanges that failed or were refused
rates [SECONDS]              rates over the next second, or over SECONDS
drain UPSTREAM/ENDPOINT...   finish requests in flight there, send no new ones
ready UPSTREAM/ENDPOINT...   send requests there again
stop UPSTREAM/ENDPOINT...    take endpoints out of service
maintenance on|off NAME      refuse requests of a route or upstream; alone: list them
weight UPSTREAM/ENDPOINT N   change the share of the traffic, 0 to 1000000
reload ...                   load the configuration again: confirm TIME, require-healthy
confirm                      keep the configuration of `reload confirm TIME`
diff                         show what `reload` would change, and its cost
endpoint add PLACE ...       add it: weight N, max_in_flight N, tier N, backup, save
endpoint set PLACE ...       change it: weight N, max_in_flight N, tier N, address A, save
endpoint remove PLACE        let it finish, then remove it; or: ... save
upgrade [FILE]               start the program again, or FILE, and hand over to it
shutdown [now]               finish open requests, then stop; or stop at once
renew NAME                   order the ACME certificate of a name now
purge url|prefix|tag X ...   drop cached responses: soft, cache NAME; or: everything ...
set log-level LEVEL          error, warn, info, debug or trace
version                      the program's version
help                         this text
prompt, quit                 keep this connection for further commands; close it
HAProxy's commands: show stat, show info, show servers state, show backend,
set server B/S state ready|drain|maint, set server B/S weight N|N%,
set weight B/S N|N%, get weight B/S, enable server B/S, disable server B/S,
add server B/S [ADDRESS] ..., del server B/S, set server B/S addr IP [port N].
`save` after drain, ready, stop or weight keeps the change after a restart.
UPSTREAM/* means all endpoints of an upstream. `json` before a command, except
HAProxy's, gives JSON. Separate several commands with `;`.
";

/// The words of each command in a line. After a backslash, a space, a `;` or a backslash is a
/// part of a word.
pub(super) fn split(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = String::new();
    let mut letters = line.trim_end_matches(['\n', '\r']).chars();
    let end_word = |word: &mut String, commands: &mut Vec<Vec<String>>| {
        if let Some(last) = commands.last_mut().filter(|_| !word.is_empty()) {
            last.push(std::mem::take(word));
        }
    };
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => word.extend(letters.next()),
            ';' => {
                end_word(&mut word, &mut commands);
                commands.push(Vec::new());
            }
            letter if letter.is_whitespace() => end_word(&mut word, &mut commands),
            letter => word.push(letter),
        }
    }
    end_word(&mut word, &mut commands);
    // An empty line gets the help.
    if commands.iter().any(|it| !it.is_empty()) {
        commands.retain(|it| !it.is_empty());
    }
    commands
}

/// Executes a command, and returns its whole answer. A text ends in an empty line; JSON is one
/// line.
pub(super) async fn run(admin: &Arc<Admin>, operator: Operator, words: &[&str]) -> String {
    let (format, words) = match words {
        ["json", words @ ..] => (Format::Json, words),
        words => (Format::Text, words),
    };
    if let Some(answer) = waiting(admin, words, format).await {
        return ended(answer, format);
    }
    let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
    if !is_lasting(&words) {
        return aside(admin, operator, words, format).await;
    }
    let admin = admin.clone();
    // A task of its own: if the client leaves, a saved change is still made.
    let done = spawn_local(async move {
        let caller = Caller {
            admin: &admin,
            operator,
        };
        match lasting(&caller, &words, format).await {
            Some(answer) => answer,
            None => aside(&admin, operator, words, format).await,
        }
    });
    match done.await {
        Ok(answer) => answer,
        // Never cancelled, as nobody else has its handle.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The answer of a command that does not wait.
async fn aside(
    admin: &Arc<Admin>,
    operator: Operator,
    words: Vec<String>,
    format: Format,
) -> String {
    let answer = move |admin: &Admin| {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        at_once(&Caller { admin, operator }, &words, format)
    };
    admin.aside(Requester::Control, answer).await
}

/// Whether a command may change a list, or save something.
fn is_lasting(words: &[String]) -> bool {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    matches!(
        *words,
        ["endpoint" | "add" | "del", ..] | ["set", "server", _, "addr", ..] | [.., SAVE]
    )
}

/// Changes a list, or saves a change that is made afterwards. Returns the whole answer, unless
/// there is more to do.
async fn lasting(caller: &Caller<'_>, words: &[String], format: Format) -> Option<String> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (operation, places) = match *words {
        ["endpoint", verb, ref words @ ..] => {
            let answer = super::endpoint::run(caller, verb, words, format).await;
            return Some(ended(answer, format));
        }
        ["drain", ref places @ .., SAVE] => (Operation::Admin(AdminState::Drain), places),
        ["ready", ref places @ .., SAVE] => (Operation::Admin(AdminState::Ready), places),
        ["stop", ref places @ .., SAVE] => (Operation::Admin(AdminState::Stop), places),
        ["weight", ref place, weight, SAVE] => {
            // An invalid weight is refused below.
            let weight = weight.parse().ok().filter(|it| *it <= MAX_WEIGHT)?;
            (Operation::Weight(weight), std::slice::from_ref(place))
        }
        _ if matches!(format, Format::Text) => {
            let answer = super::endpoint::haproxy(caller, &words).await?;
            return Some(answer + "\n");
        }
        _ => return None,
    };
    let saved = save(caller, places, operation).await;
    saved.err().map(|error| ended(Err(error), format))
}

/// Saves a change of all named endpoints, or of none if one is unknown.
async fn save(caller: &Caller<'_>, places: &[&str], operation: Operation) -> Result<(), String> {
    let sources = &caller.admin.sources();
    let mut meant = Vec::new();
    for place in places {
        meant.extend(endpoints(sources, place)?);
    }
    let by = caller.operator.to_string();
    let change = ListChange::Set(operation.change(&by));
    let discovery = &caller.admin.discovery;
    for (upstream, endpoint) in meant {
        let saved = discovery.change(upstream, &endpoint, &change, Keep::Saved, &by);
        saved.await?;
    }
    Ok(())
}

/// The whole answer of a command that does not wait.
fn at_once(caller: &Caller<'_>, words: &[&str], format: Format) -> String {
    match (native(caller, words, format), format) {
        (Some(answer), _) => ended(answer, format),
        (None, Format::Json) => {
            let error = unknown(words);
            refusal_json(&format!("{error}; HAProxy's commands have no JSON"))
        }
        (None, Format::Text) => match haproxy::run(caller, words) {
            Some(text) => text + "\n",
            None => format!("error: {}\n\n", unknown(words)),
        },
    }
}

/// An answer with its end mark.
fn ended(answer: Answer, format: Format) -> String {
    match (answer, format) {
        (Ok(answer), _) => answer + "\n",
        (Err(error), Format::Json) => refusal_json(&error),
        (Err(error), Format::Text) => format!("error: {error}\n\n"),
    }
}

fn refusal_json(error: &str) -> String {
    format!("{}\n", serde_json::json!({ "error": error }))
}

fn unknown(words: &[&str]) -> String {
    let command = words.join(" ");
    let mut echo: String = command.chars().take(MAX_ECHO_LEN).collect();
    if echo.len() < command.len() {
        echo += "...";
    }
    let echo = echo.escape_debug();
    let first = words.first().copied().unwrap_or_default();
    match verbs_after(first) {
        inner if !inner.is_empty() => {
            format!(
                "unknown command `{echo}`: `{first}` needs {}",
                inner.join(", ")
            )
        }
        _ => format!(
            "unknown command `{echo}`: try `help`; commands are {}",
            verbs_after("").join(", ")
        ),
    }
}

/// The first words of the commands in [`HELP`], or the words after `first`.
fn verbs_after(first: &str) -> Vec<&'static str> {
    let lines = HELP
        .lines()
        .take_while(|line| !line.starts_with("As HAProxy"));
    let mut verbs = Vec::new();
    for line in lines {
        let mut words = line.split("  ").next().unwrap_or_default().split(' ');
        let is_plain = |it: &&str| it.bytes().all(|it| it.is_ascii_lowercase() || it == b'-');
        let verb = match first {
            "" => words.next(),
            _ if words.next() == Some(first) => words.next(),
            _ => None,
        };
        if let Some(verb) = verb.map(|it| it.trim_end_matches(',')).filter(is_plain)
            && !verbs.contains(&verb)
        {
            verbs.push(verb);
        }
    }
    verbs
}

/// Commands that wait for the workers or for time; `None` for others.
async fn waiting(admin: &Arc<Admin>, words: &[&str], format: Format) -> Option<Answer> {
    let sources = &admin.sources();
    Some(match *words {
        ["show", "sessions" | "sess"] => sessions(admin, DEFAULT_ROWS, format).await,
        ["show", "sessions" | "sess", count] => match rows(count) {
            Ok(count) => sessions(admin, count, format).await,
            Err(error) => Err(error),
        },
        ["show", "generations"] => show::generations(&admin.sources(), format),
        ["show", "errors"] => show::errors(sources, DEFAULT_ROWS, format).await,
        ["show", "errors", count] => match rows(count) {
            Ok(count) => show::errors(sources, count, format).await,
            Err(error) => Err(error),
        },
        ["reload", ref options @ ..] => match ReloadOptions::parse(options) {
            Ok(options) => {
                let reload = |reply| Order::Reload(options, reply);
                ordered(order(&admin.orders, reload).await, format)
            }
            Err(error) => Err(error),
        },
        ["confirm"] => ordered(order(&admin.orders, Order::Confirm).await, format),
        ["diff"] => ordered(order(&admin.orders, Order::Diff).await, format),
        ["upgrade", ref binary @ ..] if binary.len() <= 1 => {
            let binary = binary.first().map(PathBuf::from);
            let upgrade = |reply| Order::Upgrade(binary, reply);
            ordered(order(&admin.orders, upgrade).await, format)
        }
        ["shutdown"] => ordered(order(&admin.orders, Order::Stop).await, format),
        ["shutdown", "now"] => ordered(order(&admin.orders, Order::StopNow).await, format),
        ["rates"] => rates(admin, "1", format).await,
        ["rates", seconds] => rates(admin, seconds, format).await,
        // For `evenkeel explain --live`, whose answer is always JSON.
        [live::COMMAND, asked] => Ok(live::answer(sources, asked).await),
        _ => return None,
    })
}

/// The answer to an order. As JSON, an object with the lines of the text.
fn ordered(outcome: Answer, format: Format) -> Answer {
    match format {
        Format::Text => outcome,
        Format::Json => outcome.map(|said| {
            let lines: Vec<_> = said.lines().collect();
            serde_json::json!({ "said": lines }).to_string()
        }),
    }
}

async fn sessions(admin: &Arc<Admin>, count: usize, format: Format) -> Answer {
    let asked = show::ask_sessions(&admin.sources(), count).await;
    let shown = move |_: &Admin| show::sessions(asked, count, format);
    admin.aside(Requester::Control, shown).await
}

/// `None` for an unknown command.
fn native(caller: &Caller<'_>, words: &[&str], format: Format) -> Option<Answer> {
    let sources = &caller.admin.sources();
    Some(match *words {
        [] | ["help"] => format.show(&HELP, |text| (*text).to_owned()),
        ["version"] => format.show(&env!("CARGO_PKG_VERSION"), |it| format!("evenkeel {it}\n")),
        ["show", "upstreams"] => show::upstreams(&sources.read(), format),
        ["show", "upstreams", name] => show::upstream(&sources.read(), name, format),
        ["show", "listeners"] => show::listeners(&sources.read(), format),
        ["show", "routes"] => show::routes(&sources.read(), format),
        ["show", "files"] => show::files(&sources.read(), format),
        ["show", "cache"] => show::cache(&sources.read(), format),
        ["show", "certificates"] => show::certificates(sources, format),
        ["renew", name] => renew(caller, name, format),
        ["renew"] => Err("renew needs the name of a certificate".to_owned()),
        ["purge", ref words @ ..] => purge(caller, words, format),
        ["show", "queue"] => show::queue(sources, format),
        ["drain", ref places @ ..] => change(caller, places, AdminState::Drain, format),
        ["ready", ref places @ ..] => change(caller, places, AdminState::Ready, format),
        ["stop", ref places @ ..] => change(caller, places, AdminState::Stop, format),
        ["weight", place, weight, ref save @ ..] if matches!(save, [] | [SAVE]) => {
            match weight.parse() {
                Ok(weight) if weight <= MAX_WEIGHT => {
                    let operation = Operation::Weight(weight);
                    operate_all(caller, &[place], operation, keep(save), format)
                }
                _ => Err(format!(
                    "`{}` is not a valid weight: write a whole number from 0 to {MAX_WEIGHT}",
                    weight.escape_debug()
                )),
            }
        }
        ["maintenance", ref words @ ..] => super::maintenance::run(caller, words, format),
        ["endpoint"] => Err("endpoint needs add, remove or set".to_owned()),
        ["weight", ..] => Err("weight needs UPSTREAM/ENDPOINT and a number".to_owned()),
        ["set", "log-level", level] => set_log_level(level, caller.operator, format),
        ["set", "log-level"] => Err(format!("set log-level needs {}", levels())),
        _ => return None,
    })
}

fn renew(caller: &Caller<'_>, name: &str, format: Format) -> Answer {
    let sources = caller.admin.sources();
    let mut ordering = sources.tls.iter().flatten().filter_map(|it| it.acme());
    let Some(acme) = ordering.next() else {
        return Err("no listener uses ACME".to_owned());
    };
    acme.renew(name).map_err(|_| {
        let shown = name.escape_debug();
        format!("ACME does not manage `{shown}`: `evenkeel certificates` lists names")
    })?;
    let operator = caller.operator;
    tracing::info!("acme: a certificate for {name} is ordered {operator}");
    let done = format!(
        "the certificate of {name} is being ordered; `evenkeel certificates` shows the result"
    );
    format.show(&serde_json::json!({ "done": done }), |_| {
        format!("{done}\n")
    })
}

fn purge(caller: &Caller<'_>, words: &[&str], format: Format) -> Answer {
    let order = PurgeOrder::parse(words)?;
    let sources = caller.admin.sources();
    let done = order.carry_out(&sources, caller.operator);
    let done = done.map_err(|error| match error {
        Unknown::Cache(_) => with_names(&error, sources.caches.iter().map(|it| it.name())),
        _ => error.to_string(),
    })?;
    let answer = serde_json::json!({ "done": done });
    format.show(&answer, |_| {
        done.iter().map(|it| format!("{it}\n")).collect()
    })
}

fn rows(count: &str) -> Result<usize, String> {
    match count.parse() {
        Ok(count @ 1..=MAX_ROWS) => Ok(count),
        _ => Err(format!(
            "`{}` is not a valid number of rows: write 1 to {MAX_ROWS}",
            count.escape_debug()
        )),
    }
}

async fn rates(admin: &Arc<Admin>, seconds: &str, format: Format) -> Answer {
    let window = seconds.parse().ok();
    let window = window.and_then(|it| Duration::try_from_secs_f64(it).ok());
    let window = window.filter(|it| (MIN_WINDOW..=MAX_WINDOW).contains(it));
    let Some(window) = window else {
        return Err(format!(
            "`{}` is not a valid time: write {} to {} seconds",
            seconds.escape_debug(),
            MIN_WINDOW.as_secs_f64(),
            MAX_WINDOW.as_secs_f64()
        ));
    };
    let read = |admin: &Admin| admin.sources().read();
    let before = admin.aside(Requester::Control, read).await;
    tokio::time::sleep(window).await;
    let shown = move |admin: &Admin| {
        let rates = Rates::between(&before, &admin.sources().read());
        format.show(&rates, show::rates)
    };
    admin.aside(Requester::Control, shown).await
}

fn levels() -> String {
    log_level::LEVELS.map(|(word, _)| word).join(", ")
}

fn set_log_level(word: &str, operator: Operator, format: Format) -> Answer {
    let Some(level) = log_level::of_word(word) else {
        let word = word.escape_debug();
        return Err(format!("`{word}` is not a level: write {}", levels()));
    };
    log_level::set(level)?;
    // Above any level except the quietest ones, which ask for silence.
    tracing::info!("event log: level set to {word} {operator}");
    let changed = serde_json::json!({ "log_level": word });
    format.show(&changed, |_| {
        format!("the level of the event log is now {word}\n")
    })
}

fn change(caller: &Caller<'_>, places: &[&str], wanted: AdminState, format: Format) -> Answer {
    if places.is_empty() {
        let verb = AdminWord(wanted).word();
        return Err(format!("{verb} needs UPSTREAM/ENDPOINT, or UPSTREAM/*"));
    }
    let (places, keep) = match places {
        [places @ .., SAVE] => (places, Keep::Saved),
        places => (places, Keep::Running),
    };
    operate_all(caller, places, Operation::Admin(wanted), keep, format)
}

fn keep(save: &[&str]) -> Keep {
    match save {
        [] => Keep::Running,
        _ => Keep::Saved,
    }
}

/// Changes all named endpoints, or none if one is unknown. Saved changes are saved before.
fn operate_all(
    caller: &Caller<'_>,
    places: &[&str],
    operation: Operation,
    keep: Keep,
    format: Format,
) -> Answer {
    let sources = &caller.admin.sources();
    let mut meant = Vec::new();
    for place in places {
        meant.extend(endpoints(sources, place)?);
    }
    let mut done = Vec::with_capacity(meant.len());
    let mut changed: Vec<_> = meant.iter().map(|(upstream, _)| *upstream).collect();
    changed.sort_unstable();
    changed.dedup();
    let mut warnings = Vec::new();
    let asked = operation.change("");
    for (upstream, endpoint) in meant {
        if keep == Keep::Running {
            let discovery = &caller.admin.discovery;
            warnings.extend(discovery.saved_otherwise(upstream, &endpoint, &asked));
        }
        let is_now = operate(sources, upstream, &endpoint, operation, caller.operator);
        let is_now = is_now.map_err(|error| error.to_string())?;
        done.push(match keep {
            Keep::Running => is_now,
            Keep::Saved => format!("{is_now}; saved for the next start"),
        });
    }
    let empty = match operation {
        Operation::Admin(AdminState::Drain | AdminState::Stop) | Operation::Weight(0) => {
            left_empty(sources, &changed)
        }
        Operation::Admin(AdminState::Ready) | Operation::Weight(_) => Vec::new(),
    };
    warnings.extend(empty.iter().map(|it| nobody_left(it)));
    let mut answer = serde_json::json!({ "done": done });
    if !warnings.is_empty() {
        answer["warnings"] = serde_json::json!(warnings);
    }
    format.show(&answer, |_| {
        let warnings = warnings.iter().map(|it| format!("warning: {it}"));
        let lines = done.iter().cloned().chain(warnings);
        lines.map(|it| it + "\n").collect()
    })
}

/// The endpoints of `UPSTREAM/ENDPOINT` or `UPSTREAM/*`.
fn endpoints<'a>(sources: &'a Sources, place: &str) -> Result<Vec<(&'a str, String)>, String> {
    let upstreams = &sources.config.upstreams;
    if let Some(meant) = whole_place(sources, place) {
        let place = place.escape_debug();
        return Err(format!(
            "`{place}` is not UPSTREAM/ENDPOINT: did you mean `{meant}`?"
        ));
    }
    let Some((upstream, endpoint)) = place.split_once('/') else {
        let place = place.escape_debug();
        return Err(format!(
            "`{place}` is not UPSTREAM/ENDPOINT: a slash is missing"
        ));
    };
    let Some(at) = upstreams.iter().position(|it| it.name == upstream) else {
        let error = Unknown::Upstream(upstream.escape_debug().to_string());
        return Err(with_names(&error, upstreams.iter().map(|it| &*it.name)));
    };
    // The present endpoints, whatever the configuration lists.
    let members = sources.dispatchers[at].members();
    let names = members.endpoints().iter().map(|it| it.name().to_owned());
    let names: Vec<_> = names.collect();
    let is_meant = |name: &&String| endpoint == "*" || *name == endpoint;
    let meant = names.iter().filter(is_meant);
    let meant: Vec<_> = meant
        .map(|name| (upstreams[at].name.as_str(), name.clone()))
        .collect();
    if meant.is_empty() && endpoint != "*" {
        let endpoint = endpoint.escape_debug().to_string();
        let error = Unknown::Endpoint(upstream.to_owned(), endpoint);
        return Err(with_names(&error, names.iter().map(String::as_str)));
    }
    Ok(meant)
}

/// A suggestion for the name of an upstream or an endpoint alone.
fn whole_place(sources: &Sources, place: &str) -> Option<String> {
    let upstreams = &sources.config.upstreams;
    if upstreams.iter().any(|it| it.name == place) {
        return Some(format!("{place}/*"));
    }
    let upstreams = upstreams.iter().zip(&sources.dispatchers);
    let mut of_name = upstreams.filter(|(_, it)| it.members().named(place).is_some());
    Some(format!("{}/{place}", of_name.next()?.0.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_commands_list_what_there_is() {
        for (words, expected) in [
            (
                &["frob"][..],
                "commands are show, rates, drain, ready, stop, maintenance, weight, reload, \
                 confirm, diff, endpoint, upgrade, shutdown, renew, purge, set",
            ),
            (
                &["show", "foo"],
                "`show` needs upstreams, listeners, routes",
            ),
            (&["set", "foo"], "`set` needs log-level"),
            (&["rates", "1", "2"], "commands are show"),
        ] {
            let said = unknown(words);
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn lines_are_commands_of_words() {
        for (line, commands) in [
            ("show stat\n", &[&["show", "stat"][..]][..]),
            ("a b;c\r\n", &[&["a", "b"], &["c"]]),
            (" ; a ;; \n", &[&["a"]]),
            ("\n", &[&[]]),
            ("a\\ b c\\;d e\\\\\n", &[&["a b", "c;d", "e\\"]]),
            ("end\\", &[&["end"]]),
        ] {
            assert_eq!(split(line), commands, "{line:?}");
        }
    }
}
