//! The command line: verbs and their options.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use evenkeel::admin::{MAX_ROWS, NewEndpoints, ReloadOptions, confirm_time};
use evenkeel::config::MAX_WEIGHT;
use evenkeel_origin::OriginOptions;

use crate::oneline::{FilesOptions, InitOptions, ProxyOptions};

/// An HTTP load balancer, reverse proxy and file server.
#[derive(Debug, Parser)]
#[command(
    name = "evenkeel",
    version,
    arg_required_else_help = true,
    after_help = "Exit status: 0 fine, 1 the configuration or the work failed, 2 the call was wrong.\n\n\
                  Example:\n  evenkeel run --config evenkeel.toml"
)]
pub struct Call {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Reads the call; shows help that it asks for. A wrong one ends the program with
/// status 2.
pub fn parse() -> Call {
    let mut command = command();
    let read = command.try_get_matches_from_mut(std::env::args_os());
    let read = read.and_then(|it| Call::from_arg_matches(&it));
    read.unwrap_or_else(|error| end(with_tip(error.format(&mut command))))
}

/// An error of a word that is none here, with what to write instead.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let (word, is_verb) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, false),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, true),
        _ => return error,
    };
    let Some(ContextValue::String(word)) = error.get(word) else {
        return error;
    };
    let usage = error.get(ContextKind::Usage).map(ToString::to_string);
    // The usage begins with the verbs that were understood.
    let usage = usage.unwrap_or_default();
    let verbs = usage.trim_start_matches("Usage: evenkeel ");
    let tip = tip(verbs, word).or_else(|| is_verb.then(|| verbs_below(verbs)));
    if let Some(tip) = tip {
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

/// What to write for a word behind these verbs.
fn tip(verbs: &str, word: &str) -> Option<String> {
    let verb = ["run", "check", "explain", "ctl", "top"];
    let verb = verb.into_iter().find(|it| verbs.starts_with(it));
    let text = match (verb, word) {
        (Some(verb), "-f" | "--file" | "--config-file" | "--configfile") => {
            return Some(format!(
                "the file goes to --config: evenkeel {verb} --config FILE"
            ));
        }
        (None, "-t" | "-T" | "test" | "configtest" | "validate" | "verify" | "lint") => {
            "`evenkeel check` checks the configuration"
        }
        (Some("run"), "-t" | "--test" | "--check") => "`evenkeel check` checks the configuration",
        (None, "-c" | "--config" | "-f" | "--set" | "-v" | "--verbose") => {
            "options follow the verb: `evenkeel run --config FILE`, `evenkeel check --config FILE`"
        }
        (None, "start" | "serve" | "server" | "up") => "`evenkeel run` runs the load balancer",
        (None, "quit" | "down") => "`evenkeel stop` stops the process",
        (Some("ctl"), endpoint) if endpoint.contains('/') => {
            let own = match verbs.split_whitespace().nth(1) {
                Some("disable") => "stop",
                Some("enable") => "ready",
                _ => return None,
            };
            return Some(format!("did you mean `evenkeel ctl {own} {endpoint}`?"));
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// The verbs that there are behind these.
fn verbs_below(verbs: &str) -> String {
    let mut command = &command();
    for word in verbs.split_whitespace() {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let below: Vec<_> = command.get_subcommands().map(|it| it.get_name()).collect();
    format!("there are {}", below.join(", "))
}

/// Ends the program as a call does that can't be read: with status 2.
pub fn wrong_call(why: &str) -> ! {
    end(command().error(ErrorKind::ValueValidation, why))
}

/// Invariant: every error of the program begins with its name, those of the call
/// too.
fn end(error: clap::Error) -> ! {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if is_help {
        error.exit()
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    crate::note(text.trim_end());
    std::process::exit(error.exit_code())
}

fn command() -> Command {
    Call::command().term_width(help_width())
}

/// A script by which a shell completes verbs and options.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Call::command(), "evenkeel", &mut script);
    script
}

/// Writes one page for the program and one for each verb: `evenkeel-ctl-drain.1`.
///
/// # Errors
/// The folder can't be made or written to.
pub fn manual(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Call::command(), folder)
}

/// Widest help: longer lines are hard to read, whatever the terminal has.
const MAX_WIDTH: usize = 100;
/// Width where there is no terminal.
const DEFAULT_WIDTH: usize = 80;

/// Columns that help may take: as `COLUMNS` says, or else the terminal.
fn help_width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|it| it.parse().ok());
    let columns = columns.or_else(|| {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        Some(usize::from(size.ws_col))
    });
    let columns = columns.filter(|it| *it > 0);
    columns.map_or(DEFAULT_WIDTH, |it| it.min(MAX_WIDTH))
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the load balancer
    #[command(after_help = "Examples:\n  evenkeel run --config evenkeel.toml\n  \
        evenkeel run --set listener.0.bind=:9090 --set server.workers=2\n  \
        evenkeel run --watch\n  \
        EVENKEEL_SERVER__WORKERS=2 evenkeel run")]
    Run {
        /// Where the configuration comes from.
        #[command(flatten)]
        source: FileSource,
        /// Load the configuration again whenever its files change
        #[arg(long)]
        watch: bool,
    },
    /// Pass requests on to endpoints, without a configuration
    #[command(
        long_about = "Passes requests on to endpoints, without a configuration file. Ends as `evenkeel run` \
            does; --print-config shows the file to go on from.",
        after_help = "Examples:\n  evenkeel proxy --from :8080 --to 127.0.0.1:3000 --to 127.0.0.1:3001\n  \
            evenkeel proxy --acme you@example.com --host www.example.com --to 127.0.0.1:3000\n  \
            evenkeel proxy --to 127.0.0.1:3000 --print-config > evenkeel.toml"
    )]
    Proxy {
        /// Its shape.
        #[command(flatten)]
        options: Box<ProxyOptions>,
        /// Print the configuration that this stands for, and end
        #[arg(long)]
        print_config: bool,
    },
    /// Serve the files of a folder, without a configuration
    #[command(
        long_about = "Serves the files of a folder, without a configuration file. Ends as \
            `evenkeel run` does; --print-config shows the file to go on from.",
        after_help = "Examples:\n  evenkeel files ./dist --listen :8080 --single-page-app --compress\n  \
            evenkeel files --browse\n  \
            evenkeel files ./dist --acme you@example.com --host www.example.com"
    )]
    Files {
        /// Its shape.
        #[command(flatten)]
        options: Box<FilesOptions>,
        /// Print the configuration that this stands for, and end
        #[arg(long)]
        print_config: bool,
    },
    /// Write a first configuration, from options or by asking
    #[command(
        long_about = "Writes a configuration with comments, which `evenkeel check` passes. \
            Without --to and --files it asks a few questions on the terminal.",
        after_help = "Examples:\n  evenkeel init\n  \
            evenkeel init --to 127.0.0.1:3000 --health /healthz\n  \
            evenkeel init site.toml --files ./dist --acme you@example.com --host www.example.com"
    )]
    Init {
        /// What it is to serve.
        #[command(flatten)]
        options: Box<InitOptions>,
    },
    /// Format configuration files, and keep their comments
    #[command(
        long_about = "Formats configuration files in place: white space, blank lines, and one item \
            a line in long lists. Comments, the order of keys and values stay. A file with a \
            syntax error stays as it is, and the exit status is 1.",
        after_help = "Examples:\n  evenkeel fmt\n  evenkeel fmt evenkeel.toml local.toml\n  \
            evenkeel fmt --check conf.d/*.toml\n  evenkeel fmt - <evenkeel.toml"
    )]
    Fmt {
        /// The files; `-` is standard input, whose result goes to standard output
        /// [default: as `evenkeel run` finds it]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Change nothing: name the files that would change, with exit status 1
        #[arg(long)]
        check: bool,
    },
    /// Check the configuration: every mistake with its place
    #[command(after_help = "Examples:\n  evenkeel check --config evenkeel.toml\n  \
        evenkeel check --print --set upstream.app.balance=random\n  \
        evenkeel check --schema > evenkeel.schema.json")]
    Check {
        /// Where the configuration comes from.
        #[command(flatten)]
        source: FileSource,
        /// Print the effective configuration: all layers and every default, secrets
        /// as `***`
        #[arg(long)]
        print: bool,
        /// Print the JSON Schema of the configuration and read no file
        #[arg(long, conflicts_with = "print")]
        schema: bool,
        /// Do not look up the names of endpoints, and do not ask this machine for
        /// addresses, ports and folders
        #[arg(long)]
        offline: bool,
    },
    /// Say what a request would get, and why, step by step
    #[command(
        after_help = "Examples:\n  evenkeel explain GET http://app.example.com/users\n  \
        evenkeel explain POST http://app.example.com/login -H 'Cookie: beta=1'\n  \
        evenkeel explain --live --client 10.0.0.7 GET http://app.example.com/\n  \
        evenkeel explain --live --endpoint 10.0.0.7:8080 GET http://app.example.com/\n  \
        evenkeel explain --json GET /health -H 'Host: app.example.com'"
    )]
    Explain {
        /// Where the configuration comes from.
        #[command(flatten)]
        source: Source,
        /// The request.
        #[command(flatten)]
        request: Box<ExplainRequest>,
    },
    /// Show the load balancer at work, with test origins behind it
    #[command(
        long_about = "Runs the load balancer and test origins of different speed in one \
            process, on free loopback ports, says what to try, and goes on until interrupted.",
        after_help = "Examples:\n  evenkeel demo\n  evenkeel demo --load\n  evenkeel demo --load --cache\n  evenkeel demo --tcp\n  evenkeel demo --tls"
    )]
    Demo {
        /// Send it some load, and show each second how that is shared out
        #[arg(long)]
        load: bool,
        /// Put a cache before the origins, which all go down now and then
        #[arg(long, requires = "load")]
        cache: bool,
        /// Carry connections of TCP instead, with load, and an endpoint that goes down
        #[arg(long, conflicts_with = "load")]
        tcp: bool,
        /// Encrypt: with an authority of its own, whose certificate clients are given
        #[arg(long, conflicts_with_all = ["load", "tcp"])]
        tls: bool,
    },
    /// Run a test origin: an HTTP server with a shape, to balance to
    #[command(
        after_help = "Examples:\n  evenkeel origin --listen 127.0.0.1:8081\n  \
        evenkeel origin --name slow --service exp:40ms --threads 4\n  \
        evenkeel origin --service '95%fixed:5ms,5%fixed:500ms' --fail-rate 0.01\n\n\
        Pages: /ping, /healthz, /medium-payload (20 KB), /large-payload (200 KB),\n  \
        /custom-payload?size=N, /N (N bytes), /chunked/N, /drip/N/MS, /slow/MS, /status/NNN,\n  \
        /headers, /echo, /early, /close, /close/N, /upgrade, /events, /events/COUNT/MS,\n  \
        /origin/stats"
    )]
    Origin {
        /// Its shape.
        #[command(flatten)]
        options: Box<OriginOptions>,
    },
    /// Have the running process load its configuration again
    #[command(
        long_about = "Has the running process load its configuration again, without losing a \
            connection. The process is found by the control socket that the configuration names \
            as `server.control`. A configuration with mistakes is refused: they are shown, and \
            the one before stays in force. HUP does the same.",
        after_help = "Examples:\n  evenkeel reload --config evenkeel.toml\n  \
            evenkeel reload --dry-run\n  \
            evenkeel reload --confirm 60s, and then evenkeel confirm\n  \
            evenkeel reload --socket /run/evenkeel/control.sock"
    )]
    Reload {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Only say what would change, and what it would cost
        #[arg(long, conflicts_with = "ReloadArgs")]
        dry_run: bool,
        /// How it comes into force.
        #[command(flatten)]
        options: ReloadArgs,
    },
    /// Have a configuration stay that was loaded with `reload --confirm`
    #[command(
        long_about = "Has the configuration in force stay, which was loaded with \
            `evenkeel reload --confirm TIME` and would go back by itself. Where nothing waits to \
            be confirmed, the exit status is 1.",
        after_help = "Example:\n  evenkeel confirm --config evenkeel.toml"
    )]
    Confirm {
        /// Which process.
        #[command(flatten)]
        control: Control,
    },
    /// Have another process take over from the running one, without losing a connection
    #[command(
        long_about = "Has the running process start another one, which takes over its listening \
            sockets, what is known of endpoints, and the counters. The old process finishes what \
            it has, and ends. Where the new one does not get ready, the old one goes on, and says \
            why; the exit status is 1 then. USR2 does the same.",
        after_help = "Examples:\n  evenkeel upgrade --config evenkeel.toml\n  \
            evenkeel upgrade --binary /usr/local/bin/evenkeel-next"
    )]
    Upgrade {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// The program of the new process; otherwise the file that the running one was
        /// started from
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
    },
    /// Have the running process finish what is open, and end
    #[command(
        long_about = "Has the running process accept nothing more, finish what is open within \
            `server.drain_timeout`, and end. TERM does the same.",
        after_help = "Examples:\n  evenkeel stop --config evenkeel.toml\n  evenkeel stop --now"
    )]
    Stop {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Cut what is open, and end at once
        #[arg(long)]
        now: bool,
    },
    /// Look at the running process, and change its endpoints
    #[command(
        long_about = "Sends a command to the running process, over the Unix socket that \
            `server.control` of the configuration names, and shows the answer.",
        after_help = "Examples:\n  evenkeel ctl show upstreams\n  \
            evenkeel ctl --socket /run/evenkeel/control.sock --json show sessions\n  \
            evenkeel ctl drain app/10.0.0.1:8080\n  evenkeel ctl help drain"
    )]
    Ctl {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Show the answer as JSON
        #[arg(long, global = true)]
        json: bool,
        /// The command.
        #[command(subcommand)]
        verb: CtlVerb,
    },
    /// Show the certificates that are served, and until when
    #[command(
        long_about = "Asks the running process, over the Unix socket that `server.control` of the \
            configuration names, which certificates its listeners serve: those that expire first \
            come first. Files that can't be used follow, each with the reason, and what is \
            ordered by ACME: when next, and why the last order failed.",
        after_help = "Examples:\n  evenkeel certificates\n  evenkeel certificates --json"
    )]
    Certificates {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Show the answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Watch the running process: a live table of its upstreams and endpoints
    #[cfg(feature = "top")]
    #[command(
        long_about = "Shows upstreams and endpoints with their state, load and rates, anew each \
            second. Endpoints can be drained, stopped, made ready and re-weighted from there. \
            Where standard output is no terminal, prints one second as plain text.",
        after_help = "Examples:\n  evenkeel top\n  evenkeel top --socket /run/evenkeel/control.sock\n  \
            evenkeel top --interval 5 | tee second.txt"
    )]
    Top {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Seconds from one picture to the next
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
        interval: f64,
    },
    /// Print the version
    #[command(after_help = "Example:\n  evenkeel version")]
    Version,
    /// Print the completions of a shell
    #[command(
        long_about = "Prints a script that has a shell complete verbs and options of evenkeel.",
        after_help = "Example:\n  evenkeel completions bash > /etc/bash_completion.d/evenkeel"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a folder
    #[command(after_help = "Example:\n  evenkeel manual /usr/local/share/man/man1")]
    Manual {
        /// The folder
        folder: PathBuf,
    },
}

/// A request to explain, and how.
#[derive(Debug, Args)]
pub struct ExplainRequest {
    /// Ask the running process, over `server.control`, what would happen now
    #[arg(long)]
    pub live: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A field of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// The client's address [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    pub client: Option<std::net::IpAddr>,
    /// The listener [default: the one on the URL's port]
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// An endpoint of the upstream: why it is there, or is not (with --live)
    #[arg(long, value_name = "NAME", requires = "live")]
    pub endpoint: Option<String>,
    /// The server that a client of TCP names by TLS
    #[arg(long, value_name = "NAME")]
    pub sni: Option<String>,
    /// A protocol that a client of TCP offers by TLS
    #[arg(long, value_name = "NAME")]
    pub alpn: Vec<String>,
    /// What a client of TCP sends first
    #[arg(long, value_name = "TEXT")]
    pub first_bytes: Option<String>,
    /// The method; TCP for a connection to a listener of TCP
    #[arg(value_name = "METHOD")]
    pub method: String,
    /// The URL, or a path alone with `-H 'Host: …'`; of a connection the port, as in :5432
    #[arg(value_name = "URL")]
    pub url: String,
}

/// Which running process is meant.
#[derive(Debug, Args)]
pub struct Control {
    /// The control socket; otherwise `server.control` of the configuration
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Where the configuration comes from.
    #[command(flatten)]
    pub source: Source,
}

/// A command to the running process.
#[derive(Debug, Subcommand)]
pub enum CtlVerb {
    /// Show what the process has and does
    #[command(after_help = "Examples:\n  evenkeel ctl show upstreams app\n  \
        evenkeel ctl show sessions 20\n  evenkeel ctl show errors --json")]
    Show {
        /// What to show.
        #[command(subcommand)]
        what: ShowVerb,
    },
    /// Show what happens in the next second, or so many
    #[command(after_help = "Example:\n  evenkeel ctl rates 5")]
    Rates {
        /// Seconds to watch
        #[arg(default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
        seconds: f64,
    },
    /// Send endpoints nothing new, and let them finish what they have
    #[command(
        after_help = "Examples:\n  evenkeel ctl drain app/10.0.0.1:8080\n  evenkeel ctl drain 'app/*'"
    )]
    Drain {
        /// Endpoints by name; UPSTREAM/* is all of an upstream
        #[arg(required = true, value_name = "UPSTREAM/ENDPOINT")]
        endpoints: Vec<String>,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Send endpoints requests again
    #[command(after_help = "Example:\n  evenkeel ctl ready app/10.0.0.1:8080")]
    Ready {
        /// Endpoints by name; UPSTREAM/* is all of an upstream
        #[arg(required = true, value_name = "UPSTREAM/ENDPOINT")]
        endpoints: Vec<String>,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Take endpoints out of service
    #[command(after_help = "Example:\n  evenkeel ctl stop app/10.0.0.1:8080")]
    Stop {
        /// Endpoints by name; UPSTREAM/* is all of an upstream
        #[arg(required = true, value_name = "UPSTREAM/ENDPOINT")]
        endpoints: Vec<String>,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Give an endpoint another share of the traffic
    #[command(after_help = "Example:\n  evenkeel ctl weight app/10.0.0.1:8080 3")]
    Weight {
        /// An endpoint by name; UPSTREAM/* is all of an upstream
        #[arg(value_name = "UPSTREAM/ENDPOINT")]
        endpoint: String,
        /// Share relative to the other endpoints; 0 gets nothing new
        #[arg(value_parser = weight, allow_negative_numbers = true)]
        weight: u32,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Refuse the requests of a route or an upstream; without arguments: list those
    #[command(
        after_help = "Requests are answered 503, by the page that the route's `errors` has for \
                      `maintenance`. It stays so over reloads and upgrades, until it is switched \
                      off or the program ends.\n\nExamples:\n  evenkeel ctl maintenance on app\n  \
                      evenkeel ctl maintenance off app\n  evenkeel ctl maintenance"
    )]
    Maintenance {
        /// Switch it on or off
        #[arg(value_parser = ["on", "off"], requires = "name")]
        state: Option<String>,
        /// A route or an upstream; route/NAME or upstream/NAME where both have the name
        name: Option<String>,
    },
    /// Have the configuration loaded again
    #[command(after_help = "Examples:\n  evenkeel ctl reload\n  evenkeel ctl reload --confirm 60s")]
    Reload {
        /// How it comes into force.
        #[command(flatten)]
        options: ReloadArgs,
    },
    /// Have a configuration stay that was loaded with `reload --confirm`
    #[command(after_help = "Example:\n  evenkeel ctl confirm")]
    Confirm,
    /// Say what loading the configuration again would change, and what it would cost
    #[command(after_help = "Example:\n  evenkeel ctl diff")]
    Diff,
    /// Add endpoints to an upstream, remove them, or change them
    #[command(
        after_help = "Examples:\n  evenkeel ctl endpoint add app/10.0.0.9:8080 --weight 2 --save\n  \
        evenkeel ctl endpoint set app/10.0.0.9:8080 --tier 1\n  \
        evenkeel ctl endpoint remove app/10.0.0.9:8080"
    )]
    Endpoint {
        /// What to do.
        #[command(subcommand)]
        what: EndpointVerb,
    },
    /// Order the certificate of a name now, by ACME
    #[command(after_help = "Example:\n  evenkeel ctl renew www.example.com")]
    Renew {
        /// The name, as `evenkeel certificates` has it
        name: String,
    },
    /// Drop what is cached, or have it validated before it is served again
    #[command(
        after_help = "Examples:\n  evenkeel ctl purge url https://example.com/a?b\n  \
        evenkeel ctl purge prefix https://example.com/images/ --soft\n  \
        evenkeel ctl purge tag product-17\n  evenkeel ctl purge everything --cache images"
    )]
    Purge {
        /// What to purge.
        #[command(subcommand)]
        what: PurgeVerb,
        /// Have it stale, and not dropped: served while it is validated, or where that fails
        #[arg(long, global = true)]
        soft: bool,
        /// In the cache of this name, and not in all of them
        #[arg(long, global = true, value_name = "NAME")]
        cache: Option<String>,
    },
    /// Change the event log's level, or a server as HAProxy has it
    #[command(after_help = "Examples:\n  evenkeel ctl set log-level debug\n  \
        evenkeel ctl set server app/10.0.0.1:8080 state drain")]
    Set {
        /// What to change.
        #[command(subcommand)]
        what: SetVerb,
    },
    /// As HAProxy has it: get a server's weight
    #[command(after_help = "Example:\n  evenkeel ctl get weight app/10.0.0.1:8080")]
    Get {
        /// What to get.
        #[command(subcommand)]
        what: GetVerb,
    },
    /// As HAProxy has it: `ready`
    #[command(after_help = "Example:\n  evenkeel ctl enable server app/10.0.0.1:8080")]
    Enable {
        /// What to enable.
        #[command(subcommand)]
        what: ServerVerb,
    },
    /// As HAProxy has it: `stop`
    #[command(after_help = "Example:\n  evenkeel ctl disable server app/10.0.0.1:8080")]
    Disable {
        /// What to disable.
        #[command(subcommand)]
        what: ServerVerb,
    },
}

/// How a configuration comes into force that is loaded again.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Have it go back by itself, unless `evenkeel confirm` follows within this time, such
    /// as 60s
    #[arg(long, value_name = "TIME", value_parser = confirm_time)]
    confirm: Option<Duration>,
    /// Refuse it where an upstream has new endpoints only, and none of them passes a probe
    #[arg(long)]
    require_healthy: bool,
}

impl ReloadArgs {
    /// The same, as the process has it.
    pub fn options(&self) -> ReloadOptions {
        ReloadOptions {
            confirm_within: self.confirm,
            new_endpoints: if self.require_healthy {
                NewEndpoints::Healthy
            } else {
                NewEndpoints::Any
            },
        }
    }
}

/// What is purged.
#[derive(Debug, Subcommand)]
pub enum PurgeVerb {
    /// All responses of a URL
    Url {
        /// As clients ask for it
        url: String,
    },
    /// All responses whose URL begins so
    Prefix {
        /// Scheme and host at least
        #[arg(value_name = "URL")]
        prefix: String,
    },
    /// All responses with a tag in `Surrogate-Key` or `Cache-Tag`
    Tag {
        /// The tag
        tag: String,
    },
    /// All responses
    Everything,
}

/// How the list of an upstream changes.
#[derive(Debug, Subcommand)]
pub enum EndpointVerb {
    /// An endpoint joins
    Add {
        /// The upstream, and the endpoint's address
        #[arg(value_name = "UPSTREAM/ADDRESS")]
        place: String,
        /// What it is.
        #[command(flatten)]
        options: EndpointOptions,
    },
    /// An endpoint leaves, once it has finished what it has
    Remove {
        /// An endpoint by name
        #[arg(value_name = "UPSTREAM/ENDPOINT")]
        place: String,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// An endpoint stays, with another weight, limit, tier or address
    Set {
        /// An endpoint by name
        #[arg(value_name = "UPSTREAM/ENDPOINT")]
        place: String,
        /// What it is from now on.
        #[command(flatten)]
        options: EndpointOptions,
    },
}

/// What an operator gives an endpoint.
#[derive(Debug, Args)]
pub struct EndpointOptions {
    /// Share relative to the other endpoints
    #[arg(long, value_name = "N", value_parser = weight, allow_negative_numbers = true)]
    pub weight: Option<u32>,
    /// Most exchanges in flight; 0 is no limit
    #[arg(long, value_name = "N")]
    pub max_in_flight: Option<u32>,
    /// It is used while no endpoint of a lower tier takes requests
    #[arg(long, value_name = "N")]
    pub tier: Option<u16>,
    /// The short form of --tier 1
    #[arg(long, conflicts_with = "tier")]
    pub backup: bool,
    /// Where it is, if its name does not say that
    #[arg(long)]
    pub address: Option<String>,
    /// Save it in `server.state_file` for the next start
    #[arg(long)]
    pub save: bool,
}

/// What can be shown.
#[derive(Debug, Subcommand)]
pub enum ShowVerb {
    /// Upstreams with their endpoints: state, load, counts
    Upstreams {
        /// One of them only
        name: Option<String>,
    },
    /// Listeners: connections, requests, times
    Listeners,
    /// Routes: requests, errors, times
    Routes,
    /// Files from memory and from disks; the disks' queues
    Files,
    /// Caches, and what each route got of its own
    Cache,
    /// Certificates by when they expire, and files that can't be used
    Certificates,
    /// Open connections, those with an exchange first
    Sessions {
        /// Rows to show
        #[arg(value_parser = rows, allow_negative_numbers = true)]
        count: Option<usize>,
    },
    /// Configurations in use: the newest, and those that go on
    Generations,
    /// Who waits for an endpoint, and for how long
    Queue,
    /// The last exchanges that failed or were refused
    Errors {
        /// Exchanges to show
        #[arg(value_parser = rows, allow_negative_numbers = true)]
        count: Option<usize>,
    },
    /// As HAProxy has it: the process
    Info,
    /// As HAProxy has it: all figures, as CSV
    Stat,
    /// As HAProxy has it: names of upstreams
    Backend,
    /// As HAProxy has it: endpoints with what was set for them
    Servers {
        /// What of them.
        #[command(subcommand)]
        what: ServersVerb,
    },
}

/// What can be shown of servers.
#[derive(Debug, Subcommand)]
pub enum ServersVerb {
    /// Their states, in the form that HAProxy loads again
    State {
        /// One upstream only
        backend: Option<String>,
    },
}

/// What can be set.
#[derive(Debug, Subcommand)]
pub enum SetVerb {
    /// How much the event log tells
    LogLevel {
        /// The level
        #[arg(value_parser = ["error", "warn", "info", "debug", "trace"])]
        level: String,
    },
    /// As HAProxy has it: a server's state or weight
    Server {
        /// UPSTREAM/ENDPOINT
        server: String,
        /// Which of both
        #[arg(value_parser = ["state", "weight"])]
        what: String,
        /// ready, drain or maint; or a weight, or a part of the one configured: 50%
        value: String,
    },
    /// As HAProxy has it: a server's weight
    Weight {
        /// UPSTREAM/ENDPOINT
        server: String,
        /// A weight, or a part of the one configured: 50%
        weight: String,
    },
}

/// What can be enabled and disabled.
#[derive(Debug, Subcommand)]
pub enum ServerVerb {
    /// A server
    Server {
        /// UPSTREAM/ENDPOINT
        server: String,
    },
}

/// What can be got.
#[derive(Debug, Subcommand)]
pub enum GetVerb {
    /// A server's weight, and the one configured
    Weight {
        /// UPSTREAM/ENDPOINT
        server: String,
    },
}

fn weight(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(weight) if weight <= MAX_WEIGHT => Ok(weight),
        _ => Err(format!("a weight is a whole number from 0 to {MAX_WEIGHT}")),
    }
}

fn rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows @ 1..=MAX_ROWS) => Ok(rows),
        _ => Err(format!("a number of rows is 1 to {MAX_ROWS}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("a time is 0.1 to 60 seconds".to_owned()),
    }
}

/// Where the configuration comes from, for a verb that takes no other words.
#[derive(Debug, Args)]
pub struct FileSource {
    /// Where it comes from.
    #[command(flatten)]
    source: Source,
    /// The configuration file, as with `--config`
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
}

impl FileSource {
    /// The same, with the file wherever it was written.
    pub fn any(self) -> Source {
        Source {
            config: self.file.or(self.source.config),
            ..self.source
        }
    }
}

/// Where the configuration comes from.
#[derive(Debug, Default, Args)]
pub struct Source {
    /// The configuration file; `local.toml` beside it overrides it [env: EVENKEEL_CONFIG]
    /// [default: evenkeel.toml, or else /etc/evenkeel/evenkeel.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one option; the value is TOML, or else taken as text
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Say more; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Where the configuration is looked for.
const DEFAULT_FILES: [&str; 2] = ["evenkeel.toml", "/etc/evenkeel/evenkeel.toml"];

fn without_name() -> String {
    format!("without that it is {}", DEFAULT_FILES.join(", or else "))
}

impl Source {
    /// The configuration file: the one of the call, or of the environment, or the
    /// first one that is there.
    ///
    /// # Errors
    /// A sentence that says why there is none, and how to name one.
    pub fn path(&self) -> Result<PathBuf, String> {
        let variable = std::env::var_os("EVENKEEL_CONFIG").filter(|it| !it.is_empty());
        let Some(path) = self.config.clone().or(variable.map(PathBuf::from)) else {
            let mut defaults = DEFAULT_FILES.iter().map(PathBuf::from);
            // One that this user can't look for is not passed over.
            let is_there = |it: &PathBuf| it.try_exists().unwrap_or(true);
            return defaults.find(is_there).ok_or_else(|| {
                format!(
                    "there is no configuration file: name it with --config FILE; {}",
                    without_name()
                )
            });
        };
        let shown = path.display();
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                let inside = path.join(DEFAULT_FILES[0]);
                Err(if inside.exists() {
                    format!(
                        "{shown} is a folder: did you mean --config {}?",
                        inside.display()
                    )
                } else {
                    format!("{shown} is a folder: --config FILE takes a file")
                })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
                "there is no file {shown}: --config FILE names the configuration; {}",
                without_name()
            )),
            _ => Ok(path),
        }
    }
}
