//! The `evenkeel` program.

mod cli;
mod ctl;
mod demo;
mod init;
mod oneline;
#[cfg(feature = "top")]
mod top;
mod written;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use evenkeel::config::{self, Colour, Config, Loaded, NameLookup, Report};
use evenkeel::explain::{
    self,
    asked::{ExplainedConnection, ExplainedRequest, NoRequest},
};
use evenkeel::observe::events::{self, EventLog};
use evenkeel::runtime::{Audience, ConfigSource, Load, Refusal, Rejected, Reloaded};
use evenkeel::watching::WatchedPaths;
use evenkeel_metrics::quantity::counted;
use evenkeel_net::memory;
use evenkeel_origin::{Origin, OriginOptions};

use ctl::socket::Socket;
use oneline::OneLine;

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator;

fn main() -> ExitCode {
    // A wrong call ends in here, with status 2.
    let outcome = match cli::parse().verb {
        cli::Verb::Run { source, watch } => run(source.any(), watch),
        cli::Verb::Proxy {
            options,
            print_config,
        } => one_line(oneline::proxy(&options), print_config),
        cli::Verb::Files {
            options,
            print_config,
        } => oneline::files(&options)
            .map_err(|error| complain(&error))
            .and_then(|line| one_line(line, print_config)),
        cli::Verb::Init { options } => init::run(*options),
        cli::Verb::Fmt { files, check } => fmt(files, check),
        cli::Verb::Reload {
            control,
            dry_run,
            options,
        } => {
            let verb = if dry_run {
                cli::CtlVerb::Diff
            } else {
                cli::CtlVerb::Reload { options }
            };
            ctl::run(&control, false, &verb)
        }
        cli::Verb::Confirm { control } => ctl::run(&control, false, &cli::CtlVerb::Confirm),
        cli::Verb::Upgrade { control, binary } => ctl::upgrade(&control, binary.as_deref()),
        cli::Verb::Stop {
            control,
            now: false,
        } => ctl::order(&control, "shutdown"),
        cli::Verb::Stop { control, now: true } => ctl::order(&control, "shutdown now"),
        cli::Verb::Check { schema: true, .. } => print(&config::schema()),
        cli::Verb::Check {
            source,
            print,
            offline,
            ..
        } => check(&source.any(), print, offline),
        cli::Verb::Explain { source, request } => explain(&source, *request),
        cli::Verb::Demo {
            load,
            cache,
            tcp,
            tls,
        } => demo(if tcp {
            demo::Scene::Tcp
        } else if tls {
            demo::Scene::Tls
        } else if cache {
            demo::Scene::Cache
        } else if load {
            demo::Scene::Load
        } else {
            demo::Scene::Requests
        }),
        cli::Verb::Origin { options } => origin(*options),
        cli::Verb::Ctl {
            control,
            json,
            verb,
        } => ctl::run(&control, json, &verb),
        cli::Verb::Certificates { control, json } => {
            let what = cli::ShowVerb::Certificates;
            ctl::run(&control, json, &cli::CtlVerb::Show { what })
        }
        #[cfg(feature = "top")]
        cli::Verb::Top { control, interval } => top::run(&control, interval),
        cli::Verb::Version => print(&format!("evenkeel {}\n", env!("CARGO_PKG_VERSION"))),
        cli::Verb::Completions { shell } => {
            print(&String::from_utf8_lossy(&cli::completions(shell)))
        }
        cli::Verb::Manual { folder } => cli::manual(&folder)
            .map_err(|error| complain(&format!("write {}: {error}", folder.display()))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed) => ExitCode::FAILURE,
    }
}

/// The work failed, and standard error says why.
struct Failed;

fn run(mut source: cli::Source, is_watched: bool) -> Result<(), Failed> {
    // A reload looks for the same file, also while that is missing.
    source.config = Some(source.path().map_err(|error| complain(&error))?);
    let loaded = memory::large_work(|| {
        let loaded = load(&source, NameLookup::Later)?;
        let watched = is_watched.then(|| watched(&loaded));
        Ok((loaded.config, watched))
    });
    let (config, watched) = loaded?;
    let load: Load = Arc::new(move || reload(&source));
    run_until_stopped(
        config,
        ConfigSource {
            load: Some(load),
            watched,
        },
    )
}

/// Runs what a call alone stands for, or prints it.
fn one_line(line: OneLine, is_printed: bool) -> Result<(), Failed> {
    if is_printed {
        return print(&line.text);
    }
    let loaded = config::load_text("options", &line.text, NameLookup::Later);
    let loaded = loaded.map_err(|report| {
        show(&report);
        let mistakes = mistakes_of(&report);
        complain(&format!("{mistakes} for these options"))
    })?;
    show(&loaded.warnings);
    note(&line.introduction);
    let source = ConfigSource {
        load: None,
        watched: None,
    };
    run_until_stopped(loaded.config, source)
}

fn run_until_stopped(mut config: Config, source: ConfigSource) -> Result<(), Failed> {
    let log = start_event_log(config.log);
    if let Some(reason) = Audience::of_this_process().reason()
        && config.log_by_default()
    {
        tracing::info!(
            "access log: combined lines on standard output, as {reason}; \
             `access_log = false` turns them off"
        );
    }
    let ended = evenkeel::runtime::run(config, source);
    drop(log);
    ended.map_err(|error| complain(&error.to_string()))
}

/// Loads the configuration again, for the process that runs.
fn reload(source: &cli::Source) -> Result<Reloaded, Rejected> {
    let path = source.path().map_err(|summary| Rejected {
        reason: Refusal::NoFile,
        summary,
        diagnostics: String::new(),
        read: Box::default(),
    })?;
    let loaded = config::load_again(&path, &source.sets, variables());
    let loaded = loaded.map_err(|report| Rejected {
        reason: Refusal::Mistakes,
        summary: mistakes_of(&report),
        diagnostics: report.render(Colour::Off),
        read: Box::new(WatchedPaths {
            files: report.files().to_vec(),
            folders: report.folders().to_vec(),
            whole: Vec::new(),
        }),
    })?;
    let read = watched(&loaded);
    let Loaded {
        mut config,
        warnings,
        ..
    } = loaded;
    if Audience::of_this_process().reason().is_some() {
        config.log_by_default();
    }
    Ok(Reloaded {
        config,
        warnings: warnings.render(Colour::Off),
        read,
    })
}

/// What a configuration was read from, and may come from tomorrow.
fn watched(loaded: &Loaded) -> WatchedPaths {
    let mut files = loaded.files.clone();
    let local = files
        .first()
        .map(|it| it.with_file_name(config::LOCAL_FILE));
    files.extend(local.filter(|it| !loaded.files.contains(it)));
    WatchedPaths {
        files,
        folders: loaded.folders.clone(),
        whole: Vec::new(),
    }
}

fn demo(scene: demo::Scene) -> Result<(), Failed> {
    // It says itself which endpoints go down: lines between would break the table that is
    // redrawn.
    let has_outages = matches!(scene, demo::Scene::Cache | demo::Scene::Tcp);
    let _log = (!has_outages).then(|| start_event_log(config::Log::default()));
    demo::run(scene).map_err(|error| complain(&error.to_string()))
}

fn origin(options: OriginOptions) -> Result<(), Failed> {
    let name = options.name.clone();
    let ended = Origin::listen(options).and_then(|origin| {
        note(&format!("origin {name}: listening on {}", origin.address));
        origin.wait()
    });
    ended.map_err(|error| complain(&format!("origin {name}: {error}")))
}

fn start_event_log(settings: config::Log) -> EventLog {
    events::start(settings, colour(&std::io::stderr()))
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
        source.path().unwrap_or_default().display(),
        counted(config.listeners.len() as u64, "listener"),
        counted(config.routes.len() as u64, "route"),
        counted(config.upstreams.len() as u64, "upstream"),
        match warnings.warning_count() {
            0 => String::new(),
            warnings => format!("; {}", counted(warnings as u64, "warning")),
        }
    ))
}

/// Formats files, or only names those that are not formatted yet.
fn fmt(mut files: Vec<PathBuf>, is_check: bool) -> Result<(), Failed> {
    if files.is_empty() {
        files.push(
            cli::Source::default()
                .path()
                .map_err(|error| complain(&error))?,
        );
    }
    let mut outcome = Ok(());
    for file in &files {
        // One that can't be formatted leaves the others their turn.
        outcome = outcome.and(fmt_file(file, is_check));
    }
    outcome
}

fn fmt_file(file: &Path, is_check: bool) -> Result<(), Failed> {
    let shown = file.display();
    let is_stdin = file == Path::new("-");
    let bytes = if is_stdin {
        config::read_at_most(std::io::stdin(), config::MAX_FILE_BYTES)
    } else {
        config::read_regular_file(file, config::MAX_FILE_BYTES)
    };
    let bytes = bytes.map_err(|error| complain(&format!("read {shown}: {error}")))?;
    let text = config::format::format(file, &bytes).map_err(|report| {
        show(&report);
        complain(&format!("{shown} is not changed"))
    })?;
    let is_formatted = text.as_bytes() == bytes;
    if is_check {
        return if is_formatted {
            Ok(())
        } else {
            Err(complain(&format!("{shown} is not formatted")))
        };
    }
    if is_stdin {
        return print(&text);
    }
    if is_formatted {
        return Ok(());
    }
    written::replace(file, text.as_bytes())
        .map_err(|error| complain(&format!("write {shown}: {error}")))?;
    note(&format!("{shown} is formatted"));
    Ok(())
}

/// The request, or the connection of TCP, that is asked about.
fn asked(request: &cli::ExplainRequest) -> Result<ExplainedRequest, NoRequest> {
    let connection = ExplainedConnection {
        server_name: request.sni.clone().unwrap_or_default(),
        protocols: request.alpn.clone(),
        first_bytes: request.first_bytes.clone().unwrap_or_default(),
    };
    if request.method == "TCP" {
        ExplainedRequest::connection(&request.url, connection)
    } else if connection == ExplainedConnection::default() {
        ExplainedRequest::new(&request.method, &request.url, &request.headers)
    } else {
        cli::wrong_call(
            "--sni, --alpn and --first-bytes are for connections: write TCP as the method",
        )
    }
}

fn explain(source: &cli::Source, request: cli::ExplainRequest) -> Result<(), Failed> {
    let asked = asked(&request).unwrap_or_else(|error| cli::wrong_call(&error.to_string()));
    let asked = ExplainedRequest {
        client: request.client,
        listener: request.listener,
        endpoint: request.endpoint,
        ..asked
    };
    let Loaded { config, .. } = load(source, NameLookup::Skip)?;
    let explanation = if request.live {
        let socket = Socket::configured(&config, source).map_err(|error| complain(&error))?;
        let answer = socket.ask(&explain::live::command(&asked), ctl::socket::TIMEOUT);
        let explanation = answer.and_then(|answer| explain::live::read(&answer));
        explanation.map_err(|error| complain(&error))?
    } else {
        explain::explain(&config, &asked)
            .unwrap_or_else(|error| cli::wrong_call(&error.to_string()))
    };
    if request.json {
        print(&format!("{}\n", serde_json::json!(explanation)))
    } else {
        print(&explain::text::render(
            &explanation,
            colour(&std::io::stdout()),
        ))
    }
}

/// Loads the configuration, showing what is wrong with it or doubtful.
fn load(source: &cli::Source, lookup: NameLookup) -> Result<Loaded, Failed> {
    let loaded = load_quietly(source, lookup).map_err(|error| complain(&error))?;
    match source.verbose {
        0 => note_local(&loaded.warnings),
        _ => {
            let layers: Vec<_> = loaded.warnings.layers().collect();
            note(&format!("configuration from {}", layers.join(", ")));
        }
    }
    show(&loaded.warnings);
    Ok(loaded)
}

/// Says that the file beside the configuration file is part of what was loaded.
fn note_local(report: &Report) {
    let mut layers = report.layers();
    let Some(file) = layers.next() else {
        return;
    };
    let local = std::path::Path::new(&file).with_file_name(config::LOCAL_FILE);
    let local = local.display().to_string();
    if layers.any(|it| it == local) {
        note(&format!(
            "{local} is part of the configuration: it overrides {file}"
        ));
    }
}

/// Loads the configuration, showing only what is wrong with it.
///
/// # Errors
/// A line for the end of what was shown.
fn load_quietly(source: &cli::Source, lookup: NameLookup) -> Result<Loaded, String> {
    let path = source.path()?;
    config::load(&path, &source.sets, variables(), lookup).map_err(|report| {
        note_local(&report);
        show(&report);
        mistakes_of(&report)
    })
}

/// How many mistakes there are, for the end of what is shown of them.
fn mistakes_of(report: &Report) -> String {
    let mistakes = counted(report.mistake_count() as u64, "mistake");
    format!("{mistakes} in the configuration")
}

/// Variables of the environment. One that is not Unicode can't be one of ours.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

fn show(report: &Report) {
    let shown = report.render(colour(&std::io::stderr()));
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

/// Colour where the output is a terminal and `NO_COLOR` is not set (or
/// set to nothing, as no-color.org has it).
fn colour(output: &impl IsTerminal) -> Colour {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    if output.is_terminal() && !refused && !dumb {
        Colour::On
    } else {
        Colour::Off
    }
}
