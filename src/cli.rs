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

/// HTTP and TCP load balancer, reverse proxy, cache and file server.
#[derive(Debug, Parser)]
#[command(
    name = "evenkeel",
    version,
    arg_required_else_help = true,
    after_help = "Exit status: 0 success, 1 the configuration is wrong or the command failed, 2 \
        the command line is wrong.\n\nExample:\n  evenkeel run --config evenkeel.toml"
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
                "name the file with --config: evenkeel {verb} --config FILE"
            ));
        }
        (None, "-t" | "-T" | "test" | "configtest" | "validate" | "verify" | "lint") => {
            "`evenkeel check` checks the configuration"
        }
        (Some("run"), "-t" | "--test" | "--check") => "`evenkeel check` checks the configuration",
        (None, "-c" | "--config" | "-f" | "--set" | "-v" | "--verbose") => {
            "write options after the command: `evenkeel run --config FILE`, `evenkeel check \
             --config FILE`"
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
    format!("commands are {}", below.join(", "))
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
        /// Reload the configuration whenever its files change
        #[arg(long)]
        watch: bool,
    },
    /// Forward requests to endpoints, without a configuration file
    #[command(
        long_about = "Forwards requests to endpoints, without a configuration file. Signals stop \
            it like `evenkeel run`. --print-config prints a configuration file to start from.",
        after_help = "Examples:\n  evenkeel proxy --from :8080 --to 127.0.0.1:3000 --to 127.0.0.1:3001\n  \
            evenkeel proxy --acme you@example.com --host www.example.com --to 127.0.0.1:3000\n  \
            evenkeel proxy --to 127.0.0.1:3000 --print-config > evenkeel.toml"
    )]
    Proxy {
        /// Its shape.
        #[command(flatten)]
        options: Box<ProxyOptions>,
        /// Print the configuration file for these options, and exit
        #[arg(long)]
        print_config: bool,
    },
    /// Serve the files of a folder, without a configuration file
    #[command(
        long_about = "Serves the files of a folder, without a configuration file. Signals stop it \
            like `evenkeel run`. --print-config prints a configuration file to start from.",
        after_help = "Examples:\n  evenkeel files ./dist --listen :8080 --single-page-app --compress\n  \
            evenkeel files --browse\n  \
            evenkeel files ./dist --acme you@example.com --host www.example.com"
    )]
    Files {
        /// Its shape.
        #[command(flatten)]
        options: Box<FilesOptions>,
        /// Print the configuration file for these options, and exit
        #[arg(long)]
        print_config: bool,
    },
    /// Write a first configuration file, from options or by asking
    #[command(
        long_about = "Writes a valid configuration file with comments. Without --to and --files \
            it asks a few questions on the terminal.",
        after_help = "Examples:\n  evenkeel init\n  \
            evenkeel init --to 127.0.0.1:3000 --health /healthz\n  \
            evenkeel init site.toml --files ./dist --acme you@example.com --host www.example.com"
    )]
    Init {
        /// What it is to serve.
        #[command(flatten)]
        options: Box<InitOptions>,
    },
    /// Format configuration files; comments are kept
    #[command(
        long_about = "Formats configuration files in place: white space, blank lines, and one \
            item per line in long lists. Comments, values and the order of keys do not change. If \
            a file has a syntax error, it is not changed, and the exit status is 1.",
        after_help = "Examples:\n  evenkeel fmt\n  evenkeel fmt evenkeel.toml local.toml\n  \
            evenkeel fmt --check conf.d/*.toml\n  evenkeel fmt - <evenkeel.toml"
    )]
    Fmt {
        /// The files; `-` formats standard input to standard output
        /// [default: the file that `evenkeel run` would use]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Change nothing; list the files that would change, and exit with status 1
        #[arg(long)]
        check: bool,
    },
    /// Check the configuration, and show all mistakes with file and line
    #[command(after_help = "Examples:\n  evenkeel check --config evenkeel.toml\n  \
        evenkeel check --print --set upstream.app.balance=random\n  \
        evenkeel check --schema > evenkeel.schema.json")]
    Check {
        /// Where the configuration comes from.
        #[command(flatten)]
        source: FileSource,
        /// Print the effective configuration: all sources merged, with all defaults, and
        /// secrets as `***`
        #[arg(long)]
        print: bool,
        /// Print the JSON Schema of the configuration; reads no file
        #[arg(long, conflicts_with = "print")]
        schema: bool,
        /// Do not look up host names of endpoints, and do not check addresses, ports and
        /// folders of this machine
        #[arg(long)]
        offline: bool,
    },
    /// Explain step by step how a request would be handled
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
    /// Run a demo: the load balancer with test origins behind it
    #[command(
        long_about = "Runs the load balancer and test origins of different speed in one process, \
            on free loopback ports. Prints commands to try, and runs until you press Ctrl-C.",
        after_help = "Examples:\n  evenkeel demo\n  evenkeel demo --load\n  evenkeel demo --load --cache\n  evenkeel demo --tcp\n  evenkeel demo --tls"
    )]
    Demo {
        /// Send load, and show every second how it is distributed
        #[arg(long)]
        load: bool,
        /// Put a cache in front of the origins, which all go down now and then
        #[arg(long, requires = "load")]
        cache: bool,
        /// Balance TCP connections instead, with load, and an endpoint that goes down
        #[arg(long, conflicts_with = "load")]
        tcp: bool,
        /// Use TLS, with a certificate of a demo authority
        #[arg(long, conflicts_with_all = ["load", "tcp"])]
        tls: bool,
    },
    /// Run a test origin: an HTTP server with adjustable delays and failures
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
    /// Reload the configuration of the running process
    #[command(
        long_about = "Tells the running process to reload its configuration, without losing a \
            connection. The process is found by its control socket, `server.control` in the \
            configuration. If the new configuration has mistakes, they are shown, and the process \
            keeps the old one. The signal HUP does the same.",
        after_help = "Examples:\n  evenkeel reload --config evenkeel.toml\n  \
            evenkeel reload --dry-run\n  \
            evenkeel reload --confirm 60s, and then evenkeel confirm\n  \
            evenkeel reload --socket /run/evenkeel/control.sock"
    )]
    Reload {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Only show what would change, and its cost
        #[arg(long, conflicts_with = "ReloadArgs")]
        dry_run: bool,
        /// How it comes into force.
        #[command(flatten)]
        options: ReloadArgs,
    },
    /// Keep the configuration that was loaded with `reload --confirm`
    #[command(
        long_about = "Keeps the configuration that was loaded with `evenkeel reload --confirm \
            TIME`; otherwise the process returns to the previous one. If no configuration waits \
            to be confirmed, the exit status is 1.",
        after_help = "Example:\n  evenkeel confirm --config evenkeel.toml"
    )]
    Confirm {
        /// Which process.
        #[command(flatten)]
        control: Control,
    },
    /// Replace the running process with a new one, without losing a connection
    #[command(
        long_about = "Tells the running process to start a new one, which takes over its \
            listening sockets, the state of endpoints, and the counters. The old process finishes \
            its open connections, and exits. If the new process fails to start, the old one stays \
            and reports the reason, and the exit status is 1. The signal USR2 does the same.",
        after_help = "Examples:\n  evenkeel upgrade --config evenkeel.toml\n  \
            evenkeel upgrade --binary /usr/local/bin/evenkeel-next"
    )]
    Upgrade {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// The program of the new process [default: the file of the running process]
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
    },
    /// Stop the running process after it finishes open requests
    #[command(
        long_about = "Tells the running process to accept no new connections, finish open ones \
            within `server.drain_timeout`, and exit. The signal TERM does the same.",
        after_help = "Examples:\n  evenkeel stop --config evenkeel.toml\n  evenkeel stop --now"
    )]
    Stop {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Close all connections, and exit at once
        #[arg(long)]
        now: bool,
    },
    /// Inspect the running process, and change its endpoints
    #[command(
        long_about = "Sends a command to the running process over its control socket, \
            `server.control` in the configuration, and prints the answer.",
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
    /// Show the certificates in use, and when they expire
    #[command(
        long_about = "Lists the certificates that the running process serves, the first to expire \
            first. Then lists files that cannot be used, each with the reason, and ACME orders: \
            the time of the next, and why the last one failed. The process is found by its \
            control socket, `server.control` in the configuration.",
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
    /// Watch the running process: a live table of upstreams and endpoints
    #[cfg(feature = "top")]
    #[command(
        long_about = "Shows upstreams and endpoints with their state, load and rates, updated \
            every second. Keys drain, stop, ready and reweight endpoints. If standard output is \
            not a terminal, prints the rates of one second as plain text.",
        after_help = "Examples:\n  evenkeel top\n  evenkeel top --socket /run/evenkeel/control.sock\n  \
            evenkeel top --interval 5 | tee second.txt"
    )]
    Top {
        /// Which process.
        #[command(flatten)]
        control: Control,
        /// Seconds between two updates
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
        interval: f64,
    },
    /// Print the version
    #[command(after_help = "Example:\n  evenkeel version")]
    Version,
    /// Print a completion script for a shell
    #[command(
        long_about = "Prints a script with which a shell completes the commands and options of \
            evenkeel.",
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
    /// Ask the running process over its control socket what would happen now
    #[arg(long)]
    pub live: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A header of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// The client's address [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    pub client: Option<std::net::IpAddr>,
    /// The listener [default: the one on the URL's port]
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Explain why the upstream has or lacks this endpoint (with --live)
    #[arg(long, value_name = "NAME", requires = "live")]
    pub endpoint: Option<String>,
    /// The TLS server name (SNI) that a TCP client sends
    #[arg(long, value_name = "NAME")]
    pub sni: Option<String>,
    /// A TLS protocol (ALPN) that a TCP client offers
    #[arg(long, value_name = "NAME")]
    pub alpn: Vec<String>,
    /// The first bytes that a TCP client sends
    #[arg(long, value_name = "TEXT")]
    pub first_bytes: Option<String>,
    /// The method; TCP for a connection to a TCP listener
    #[arg(value_name = "METHOD")]
    pub method: String,
    /// The URL, or only a path with `-H 'Host: …'`; for TCP the port, as in :5432
    #[arg(value_name = "URL")]
    pub url: String,
}

/// Which running process is meant.
#[derive(Debug, Args)]
pub struct Control {
    /// The control socket [default: `server.control` of the configuration]
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Where the configuration comes from.
    #[command(flatten)]
    pub source: Source,
}

/// A command to the running process.
#[derive(Debug, Subcommand)]
pub enum CtlVerb {
    /// Show the state of the process
    #[command(after_help = "Examples:\n  evenkeel ctl show upstreams app\n  \
        evenkeel ctl show sessions 20\n  evenkeel ctl show errors --json")]
    Show {
        /// What to show.
        #[command(subcommand)]
        what: ShowVerb,
    },
    /// Show the rates over the next second, or over several
    #[command(after_help = "Example:\n  evenkeel ctl rates 5")]
    Rates {
        /// Seconds to watch
        #[arg(default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
        seconds: f64,
    },
    /// Send endpoints no new requests, and let them finish the ones in flight
    #[command(
        after_help = "Examples:\n  evenkeel ctl drain app/10.0.0.1:8080\n  evenkeel ctl drain 'app/*'"
    )]
    Drain {
        /// Names of endpoints; UPSTREAM/* means all of an upstream
        #[arg(required = true, value_name = "UPSTREAM/ENDPOINT")]
        endpoints: Vec<String>,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Send requests to endpoints again
    #[command(after_help = "Example:\n  evenkeel ctl ready app/10.0.0.1:8080")]
    Ready {
        /// Names of endpoints; UPSTREAM/* means all of an upstream
        #[arg(required = true, value_name = "UPSTREAM/ENDPOINT")]
        endpoints: Vec<String>,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Take endpoints out of service
    #[command(after_help = "Example:\n  evenkeel ctl stop app/10.0.0.1:8080")]
    Stop {
        /// Names of endpoints; UPSTREAM/* means all of an upstream
        #[arg(required = true, value_name = "UPSTREAM/ENDPOINT")]
        endpoints: Vec<String>,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Change an endpoint's share of the traffic
    #[command(after_help = "Example:\n  evenkeel ctl weight app/10.0.0.1:8080 3")]
    Weight {
        /// Name of an endpoint; UPSTREAM/* means all of an upstream
        #[arg(value_name = "UPSTREAM/ENDPOINT")]
        endpoint: String,
        /// Share relative to the other endpoints; with 0 it gets no new requests
        #[arg(value_parser = weight, allow_negative_numbers = true)]
        weight: u32,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Refuse the requests of a route or an upstream; without arguments, list them
    #[command(
        after_help = "Requests are answered 503, with the page for `maintenance` in the route's \
            `errors`. Maintenance survives reloads and upgrades. It ends when you switch it off \
            or the program ends.\n\nExamples:\n  evenkeel ctl maintenance on app\n  evenkeel ctl \
            maintenance off app\n  evenkeel ctl maintenance"
    )]
    Maintenance {
        /// Switch it on or off
        #[arg(value_parser = ["on", "off"], requires = "name")]
        state: Option<String>,
        /// A route or an upstream; route/NAME or upstream/NAME if both have the name
        name: Option<String>,
    },
    /// Reload the configuration
    #[command(after_help = "Examples:\n  evenkeel ctl reload\n  evenkeel ctl reload --confirm 60s")]
    Reload {
        /// How it comes into force.
        #[command(flatten)]
        options: ReloadArgs,
    },
    /// Keep the configuration that was loaded with `reload --confirm`
    #[command(after_help = "Example:\n  evenkeel ctl confirm")]
    Confirm,
    /// Show what reloading the configuration would change, and its cost
    #[command(after_help = "Example:\n  evenkeel ctl diff")]
    Diff,
    /// Add, change or remove endpoints of an upstream
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
    /// Order the ACME certificate of a name now
    #[command(after_help = "Example:\n  evenkeel ctl renew www.example.com")]
    Renew {
        /// The name, as `evenkeel certificates` shows it
        name: String,
    },
    /// Drop cached responses, or mark them as stale
    #[command(
        after_help = "Examples:\n  evenkeel ctl purge url https://example.com/a?b\n  \
        evenkeel ctl purge prefix https://example.com/images/ --soft\n  \
        evenkeel ctl purge tag product-17\n  evenkeel ctl purge everything --cache images"
    )]
    Purge {
        /// What to purge.
        #[command(subcommand)]
        what: PurgeVerb,
        /// Mark responses as stale instead of dropping them: they are validated before or while
        /// they are served, and served if that fails
        #[arg(long, global = true)]
        soft: bool,
        /// Only in the cache of this name
        #[arg(long, global = true, value_name = "NAME")]
        cache: Option<String>,
    },
    /// Change the level of the event log, or (HAProxy's syntax) a server
    #[command(after_help = "Examples:\n  evenkeel ctl set log-level debug\n  \
        evenkeel ctl set server app/10.0.0.1:8080 state drain")]
    Set {
        /// What to change.
        #[command(subcommand)]
        what: SetVerb,
    },
    /// HAProxy's command: get a server's weight
    #[command(after_help = "Example:\n  evenkeel ctl get weight app/10.0.0.1:8080")]
    Get {
        /// What to get.
        #[command(subcommand)]
        what: GetVerb,
    },
    /// HAProxy's command for `ready`
    #[command(after_help = "Example:\n  evenkeel ctl enable server app/10.0.0.1:8080")]
    Enable {
        /// What to enable.
        #[command(subcommand)]
        what: ServerVerb,
    },
    /// HAProxy's command for `stop`
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
    /// Return to the old configuration, unless `evenkeel confirm` follows within this time,
    /// such as 60s
    #[arg(long, value_name = "TIME", value_parser = confirm_time)]
    confirm: Option<Duration>,
    /// Refuse the configuration if an upstream has only new endpoints, and none passes a
    /// health check
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
        /// The URL, as clients request it
        url: String,
    },
    /// All responses whose URL begins with a prefix
    Prefix {
        /// The prefix: at least scheme and host
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
    /// Add an endpoint
    Add {
        /// The upstream, and the endpoint's address
        #[arg(value_name = "UPSTREAM/ADDRESS")]
        place: String,
        /// What it is.
        #[command(flatten)]
        options: EndpointOptions,
    },
    /// Remove an endpoint after it finishes its requests
    Remove {
        /// Name of an endpoint
        #[arg(value_name = "UPSTREAM/ENDPOINT")]
        place: String,
        /// Save it in `server.state_file` for the next start
        #[arg(long)]
        save: bool,
    },
    /// Change the weight, limit, tier or address of an endpoint
    Set {
        /// Name of an endpoint
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
    /// Most exchanges in flight; 0 means no limit
    #[arg(long, value_name = "N")]
    pub max_in_flight: Option<u32>,
    /// Use it only while no endpoint of a lower tier takes requests
    #[arg(long, value_name = "N")]
    pub tier: Option<u16>,
    /// The short form of --tier 1
    #[arg(long, conflicts_with = "tier")]
    pub backup: bool,
    /// The address, if it differs from the name
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
        /// Only this upstream
        name: Option<String>,
    },
    /// Listeners: connections, requests, times
    Listeners,
    /// Routes: requests, errors, times
    Routes,
    /// Files from memory and from disks; the disks' queues
    Files,
    /// Caches, and the cache results of each route
    Cache,
    /// Certificates, the first to expire first, and files that can't be used
    Certificates,
    /// Open connections, the ones with an exchange first
    Sessions {
        /// Rows to show
        #[arg(value_parser = rows, allow_negative_numbers = true)]
        count: Option<usize>,
    },
    /// Configurations in use: the newest, and older ones still in use
    Generations,
    /// Requests that wait for an endpoint, and for how long
    Queue,
    /// The last exchanges that failed or were refused
    Errors {
        /// Exchanges to show
        #[arg(value_parser = rows, allow_negative_numbers = true)]
        count: Option<usize>,
    },
    /// HAProxy's command: the process
    Info,
    /// HAProxy's command: all metrics, as CSV
    Stat,
    /// HAProxy's command: names of upstreams
    Backend,
    /// HAProxy's command: endpoints with their settings
    Servers {
        /// What of them.
        #[command(subcommand)]
        what: ServersVerb,
    },
}

/// What can be shown of servers.
#[derive(Debug, Subcommand)]
pub enum ServersVerb {
    /// The states of servers, in HAProxy's format
    State {
        /// Only this upstream
        backend: Option<String>,
    },
}

/// What can be set.
#[derive(Debug, Subcommand)]
pub enum SetVerb {
    /// The level of the event log
    LogLevel {
        /// The level
        #[arg(value_parser = ["error", "warn", "info", "debug", "trace"])]
        level: String,
    },
    /// HAProxy's command: a server's state or weight
    Server {
        /// UPSTREAM/ENDPOINT
        server: String,
        /// `state` or `weight`
        #[arg(value_parser = ["state", "weight"])]
        what: String,
        /// ready, drain or maint; or a weight, or a percentage of the configured weight: 50%
        value: String,
    },
    /// HAProxy's command: a server's weight
    Weight {
        /// UPSTREAM/ENDPOINT
        server: String,
        /// A weight, or a percentage of the configured weight: 50%
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
    /// A server's weight, and its configured weight
    Weight {
        /// UPSTREAM/ENDPOINT
        server: String,
    },
}

fn weight(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(weight) if weight <= MAX_WEIGHT => Ok(weight),
        _ => Err(format!(
            "a weight must be a whole number from 0 to {MAX_WEIGHT}"
        )),
    }
}

fn rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows @ 1..=MAX_ROWS) => Ok(rows),
        _ => Err(format!("the number of rows must be 1 to {MAX_ROWS}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("the time must be 0.1 to 60 seconds".to_owned()),
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
    /// The configuration file; a `local.toml` beside it overrides it [env: EVENKEEL_CONFIG]
    /// [default: evenkeel.toml, or else /etc/evenkeel/evenkeel.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one option; a value that is not TOML is read as text
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Log more; repeat for even more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Where the configuration is looked for.
const DEFAULT_FILES: [&str; 2] = ["evenkeel.toml", "/etc/evenkeel/evenkeel.toml"];

fn without_name() -> String {
    format!("the default is {}", DEFAULT_FILES.join(", or else "))
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
                    "no configuration file found: name it with --config FILE; {}",
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
                    format!("{shown} is a folder: --config needs a file")
                })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
                "the file {shown} does not exist: name the configuration with --config FILE; {}",
                without_name()
            )),
            _ => Ok(path),
        }
    }
}
