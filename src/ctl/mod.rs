//! `evenkeel ctl`: finds the control socket of the running process, sends it
//! one command and shows the answer.

mod confirm;
pub mod socket;

use std::path::Path;

use crate::cli::{
    Control, CtlVerb, EndpointVerb, GetVerb, PurgeVerb, ServerVerb, ServersVerb, SetVerb, ShowVerb,
};
use crate::{Failed, complain};
use socket::Socket;

/// Sends a command and prints its answer.
///
/// Invariant: with `json` a refusal is JSON, whether the process refuses or is not reached.
pub fn run(control: &Control, json: bool, verb: &CtlVerb) -> Result<(), Failed> {
    let (socket, answer) = match asked(control, json, verb) {
        Ok(asked) => asked,
        Err(error) if json => {
            crate::print(&format!("{}\n", serde_json::json!({ "error": error })))?;
            return Err(Failed);
        }
        Err(error) => return Err(complain(&error)),
    };
    socket.warn_of_mistakes(&answer);
    if is_refused(&answer, verb, json) {
        let said = answer.trim_end();
        return Err(if json {
            crate::print(&format!("{said}\n"))?;
            Failed
        } else {
            complain(said.strip_prefix("error: ").unwrap_or(said))
        });
    }
    confirm::warn(&socket, verb);
    // Warnings come last.
    let text = answer.trim_end();
    let (text, warnings) = match text.split_once("\nwarning: ") {
        Some((text, warnings)) if !json => (text, Some(warnings)),
        _ => (text, None),
    };
    // HAProxy's changes answer nothing.
    if !text.is_empty() {
        crate::print(&format!("{text}\n"))?;
    }
    let warnings = warnings.iter().flat_map(|it| it.split("\nwarning: "));
    warnings.for_each(|it| crate::note(&format!("warning: {it}")));
    Ok(())
}

/// Has another process take over, with the program in this file if one is named.
pub fn upgrade(control: &Control, binary: Option<&Path>) -> Result<(), Failed> {
    match binary.map(std::path::absolute).transpose() {
        Ok(None) => order(control, "upgrade"),
        Ok(Some(binary)) => {
            let binary = binary.to_string_lossy();
            order(control, &format!("upgrade {}", quoted(&binary)))
        }
        Err(error) => Err(complain(&format!("the program to upgrade to: {error}"))),
    }
}

/// Gives the process an order, and prints its answer.
pub fn order(control: &Control, line: &str) -> Result<(), Failed> {
    let socket = Socket::find(control).map_err(|error| complain(&error))?;
    let answer = socket.ask(line, socket::LONG_TIMEOUT);
    let answer = answer.map_err(|error| complain(&error))?;
    socket.warn_of_mistakes(&answer);
    let said = answer.trim_end();
    match said.strip_prefix("error: ") {
        Some(error) => Err(complain(error)),
        None => crate::print(&format!("{said}\n")),
    }
}

/// The answer of the process and where it was asked, or why there is none.
fn asked(control: &Control, json: bool, verb: &CtlVerb) -> Result<(Socket, String), String> {
    let mut line = command(verb);
    if json {
        line.insert_str(0, "json ");
    }
    let socket = Socket::find(control)?;
    confirm::ask(&socket, verb, json)?;
    let answer = socket.ask(&line, socket::LONG_TIMEOUT)?;
    Ok((socket, answer))
}

/// The first line of a list of servers' states.
const SERVERS_STATE_VERSION: &str = "1\n";

/// Whether the process refused a command.
///
/// Most refusals say so. Commands that answer as HAProxy does are refused by any text instead of
/// nothing, or instead of a number.
fn is_refused(answer: &str, verb: &CtlVerb, json: bool) -> bool {
    if json {
        return answer.starts_with("{\"error\":");
    }
    let said = answer.trim();
    match verb {
        CtlVerb::Set {
            what: SetVerb::Server { .. } | SetVerb::Weight { .. },
        }
        | CtlVerb::Enable { .. }
        | CtlVerb::Disable { .. } => !said.is_empty(),
        CtlVerb::Get {
            what: GetVerb::Weight { .. },
        } => !said.starts_with(|it: char| it.is_ascii_digit()),
        CtlVerb::Show {
            what: ShowVerb::Servers { .. },
        } => !said.starts_with(SERVERS_STATE_VERSION),
        _ => said.starts_with("error: "),
    }
}

/// The command as the socket takes it.
fn command(verb: &CtlVerb) -> String {
    let words: Vec<String> = match verb {
        CtlVerb::Show { what } => show(what),
        CtlVerb::Rates { seconds } => vec!["rates".into(), seconds.to_string()],
        CtlVerb::Drain { endpoints, save } => saved(with("drain", endpoints), *save),
        CtlVerb::Ready { endpoints, save } => saved(with("ready", endpoints), *save),
        CtlVerb::Stop { endpoints, save } => saved(with("stop", endpoints), *save),
        CtlVerb::Weight {
            endpoint,
            weight,
            save,
        } => {
            let words = vec!["weight".into(), endpoint.clone(), weight.to_string()];
            saved(words, *save)
        }
        CtlVerb::Maintenance { state, name } => {
            let words: Vec<_> = state.iter().chain(name).cloned().collect();
            with("maintenance", &words)
        }
        CtlVerb::Reload { options } => with("reload", &options.options().words()),
        CtlVerb::Confirm => vec!["confirm".into()],
        CtlVerb::Diff => vec!["diff".into()],
        CtlVerb::Endpoint { what } => endpoint(what),
        CtlVerb::Renew { name } => vec!["renew".into(), name.clone()],
        CtlVerb::Purge { what, soft, cache } => purge(what, *soft, cache.as_deref()),
        CtlVerb::Set { what } => match what {
            SetVerb::LogLevel { level } => vec!["set".into(), "log-level".into(), level.clone()],
            SetVerb::Server {
                server,
                what,
                value,
            } => ["set", "server", server, what, value]
                .map(String::from)
                .into(),
            SetVerb::Weight { server, weight } => {
                ["set", "weight", server, weight].map(String::from).into()
            }
        },
        CtlVerb::Get {
            what: GetVerb::Weight { server },
        } => vec!["get".into(), "weight".into(), server.clone()],
        CtlVerb::Enable {
            what: ServerVerb::Server { server },
        } => vec!["enable".into(), "server".into(), server.clone()],
        CtlVerb::Disable {
            what: ServerVerb::Server { server },
        } => vec!["disable".into(), "server".into(), server.clone()],
    };
    let quoted: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    quoted.join(" ")
}

fn endpoint(what: &EndpointVerb) -> Vec<String> {
    let (verb, place, options, save) = match what {
        EndpointVerb::Add { place, options } => ("add", place, Some(options), options.save),
        EndpointVerb::Set { place, options } => ("set", place, Some(options), options.save),
        EndpointVerb::Remove { place, save } => ("remove", place, None, *save),
    };
    let mut words = vec!["endpoint".to_owned(), verb.to_owned(), place.clone()];
    if let Some(options) = options {
        let tier = options.tier.or(options.backup.then_some(1));
        let given = [
            ("weight", options.weight.map(|it| it.to_string())),
            (
                "max_in_flight",
                options.max_in_flight.map(|it| it.to_string()),
            ),
            ("tier", tier.map(|it| it.to_string())),
            ("address", options.address.clone()),
        ];
        for (key, value) in given {
            words.extend(value.map(|it| [key.to_owned(), it]).into_iter().flatten());
        }
    }
    saved(words, save)
}

fn purge(what: &PurgeVerb, soft: bool, cache: Option<&str>) -> Vec<String> {
    let mut words = match what {
        PurgeVerb::Url { url } => vec!["purge", "url", url],
        PurgeVerb::Prefix { prefix } => vec!["purge", "prefix", prefix],
        PurgeVerb::Tag { tag } => vec!["purge", "tag", tag],
        PurgeVerb::Everything => vec!["purge", "everything"],
    };
    words.extend(soft.then_some("soft"));
    words.extend(cache.map(|name| ["cache", name]).into_iter().flatten());
    words.into_iter().map(str::to_owned).collect()
}

fn saved(mut words: Vec<String>, save: bool) -> Vec<String> {
    words.extend(save.then(|| "save".to_owned()));
    words
}

fn show(what: &ShowVerb) -> Vec<String> {
    let word = |word: &str| vec!["show".to_owned(), word.to_owned()];
    let with = |verb: &str, more: Option<String>| {
        let mut words = word(verb);
        words.extend(more);
        words
    };
    match what {
        ShowVerb::Upstreams { name } => with("upstreams", name.clone()),
        ShowVerb::Listeners => word("listeners"),
        ShowVerb::Routes => word("routes"),
        ShowVerb::Files => word("files"),
        ShowVerb::Cache => word("cache"),
        ShowVerb::Certificates => word("certificates"),
        ShowVerb::Sessions { count } => with("sessions", count.map(|it| it.to_string())),
        ShowVerb::Generations => word("generations"),
        ShowVerb::Queue => word("queue"),
        ShowVerb::Errors { count } => with("errors", count.map(|it| it.to_string())),
        ShowVerb::Info => word("info"),
        ShowVerb::Stat => word("stat"),
        ShowVerb::Backend => word("backend"),
        ShowVerb::Servers {
            what: ServersVerb::State { backend },
        } => {
            let mut words = with("servers", Some("state".to_owned()));
            words.extend(backend.clone());
            words
        }
    }
}

fn with(verb: &str, more: &[String]) -> Vec<String> {
    let mut words = vec![verb.to_owned()];
    words.extend_from_slice(more);
    words
}

/// A word with its special characters escaped.
pub fn quoted(word: &str) -> String {
    let mut quoted = String::with_capacity(word.len());
    for letter in word.chars() {
        if matches!(letter, '\\' | ';') || letter.is_whitespace() {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted
}
