//! The `evenkeel` program.

mod cli;
mod ctl;
mod demo;
#[cfg(feature = "top")]
mod top;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use evenkeel::config::{self, Colour, Loaded, NameLookup, Report};
use evenkeel::observe::log_level::{self, LogLevel};
use evenkeel_testkit::{Origin, OriginOptions};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A wrong call ends in here, with status 2.
    let outcome = match cli::Call::parse().verb {
        cli::Verb::Run { source } => run(&source),
        cli::Verb::Check { schema: true, .. } => print(&config::schema()),
        cli::Verb::Check {
            source,
            print,
            offline,
            ..
        } => check(&source, print, offline),
        cli::Verb::Demo { load } => demo(load),
        cli::Verb::Origin { options } => origin(*options),
        cli::Verb::Ctl {
            control,
            json,
            verb,
        } => ctl::run(&control, json, &verb),
        #[cfg(feature = "top")]
        cli::Verb::Top { control, interval } => top::run(&control, interval),
        cli::Verb::Version => print(&format!("evenkeel {}\n", env!("CARGO_PKG_VERSION"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed) => ExitCode::FAILURE,
    }
}

/// The work failed, and standard error says why.
struct Failed;

fn run(source: &cli::Source) -> Result<(), Failed> {
    let loaded = load(source, NameLookup::System)?;
    start_event_log();
    evenkeel::runtime::run(loaded.config).map_err(|error| complain(&error.to_string()))
}

fn demo(load: bool) -> Result<(), Failed> {
    start_event_log();
    let load = match load {
        true => demo::Load::On,
        false => demo::Load::Off,
    };
    demo::run(load).map_err(|error| complain(&error.to_string()))
}

fn origin(options: OriginOptions) -> Result<(), Failed> {
    let name = options.name.clone();
    let ended = Origin::listen(options).and_then(|origin| {
        note(&format!("origin {name}: listening on {}", origin.address));
        origin.wait()
    });
    ended.map_err(|error| complain(&format!("origin {name}: {error}")))
}

/// Sends events to standard error, a line each.
fn start_event_log() {
    let (level, handle) = reload::Layer::new(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colour() == Colour::On)
        .with_target(false);
    tracing_subscriber::registry()
        .with(level)
        .with(lines)
        .with(evenkeel::observe::events::Layer)
        .init();
    log_level::install(move |level| {
        let level = match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        handle.reload(level).map_err(|error| error.to_string())
    });
}

fn check(source: &cli::Source, print_effective: bool, offline: bool) -> Result<(), Failed> {
    let lookup = if offline {
        NameLookup::Skip
    } else {
        NameLookup::System
    };
    let loaded = load(source, lookup)?;
    if print_effective {
        return print(&loaded.effective);
    }
    let Loaded {
        config, warnings, ..
    } = loaded;
    print(&format!(
        "{} is fine: {}, {}, {}{}\n",
        source.config.display(),
        count(config.listeners.len(), "listener"),
        count(config.routes.len(), "route"),
        count(config.upstreams.len(), "upstream"),
        match warnings.warning_count() {
            0 => String::new(),
            warnings => format!("; {}", count(warnings, "warning")),
        }
    ))
}

/// Loads the configuration, showing what is wrong with it or doubtful.
fn load(source: &cli::Source, lookup: NameLookup) -> Result<Loaded, Failed> {
    let loaded = load_quietly(source, lookup)?;
    if source.verbose > 0 {
        let layers: Vec<_> = loaded.warnings.layers().collect();
        note(&format!("configuration from {}", layers.join(", ")));
    }
    show(&loaded.warnings);
    Ok(loaded)
}

/// Loads the configuration, showing only what is wrong with it.
fn load_quietly(source: &cli::Source, lookup: NameLookup) -> Result<Loaded, Failed> {
    // A variable that is not Unicode cannot be one of ours.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    config::load(&source.config, &source.sets, variables, lookup).map_err(|report| {
        show(&report);
        let mistakes = count(report.mistake_count(), "mistake");
        complain(&format!("{mistakes} in the configuration"))
    })
}

fn show(report: &Report) {
    let shown = report.render(colour());
    if !shown.is_empty() {
        // Nowhere is left to report that standard error is closed.
        let _ = writeln!(std::io::stderr(), "{shown}");
    }
}

fn note(what: &str) {
    let _ = writeln!(std::io::stderr(), "evenkeel: {what}");
}

fn complain(what: &str) -> Failed {
    note(what);
    Failed
}

fn print(text: &str) -> Result<(), Failed> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(|error| complain(&format!("write to standard output: {error}")))
}

/// Colour where standard error is a terminal and `NO_COLOR` is not set (or
/// set to nothing, as no-color.org has it).
fn colour() -> Colour {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    match std::io::stderr().is_terminal() && !refused && !dumb {
        true => Colour::On,
        false => Colour::Off,
    }
}

fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
