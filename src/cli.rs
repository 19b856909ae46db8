//! The command line: verbs and their options.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use evenkeel_testkit::OriginOptions;

/// HTTP and TCP load balancer.
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

/// Ends the program as a call does that can't be read: with status 2.
pub fn wrong_call(why: &str) -> ! {
    let error = clap::error::ErrorKind::ValueValidation;
    Call::command().error(error, why).exit()
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the load balancer
    #[command(after_help = "Examples:\n  evenkeel run --config evenkeel.toml\n  \
        evenkeel run -c evenkeel.toml --set listener.web.bind=:9090 --set server.workers=2\n  \
        EVENKEEL_SERVER__WORKERS=2 evenkeel run")]
    Run {
        /// Where the configuration comes from.
        #[command(flatten)]
        source: Source,
    },
    /// Check the configuration: every mistake with its place
    #[command(after_help = "Examples:\n  evenkeel check --config evenkeel.toml\n  \
        evenkeel check --print --set upstream.app.balance=random\n  \
        evenkeel check --schema > evenkeel.schema.json")]
    Check {
        /// Where the configuration comes from.
        #[command(flatten)]
        source: Source,
        /// Print the effective configuration: all layers and every default
        #[arg(long)]
        print: bool,
        /// Print the JSON Schema of the configuration and read no file
        #[arg(long, conflicts_with = "print")]
        schema: bool,
        /// Do not look up the names of endpoints
        #[arg(long)]
        offline: bool,
    },
    /// Say what a request would get, and why, step by step
    #[command(
        after_help = "Examples:\n  evenkeel explain GET http://app.example.com/users\n  \
        evenkeel explain -c evenkeel.toml POST http://app.example.com/login -H 'Cookie: beta=1'\n  \
        evenkeel explain --live --client 10.0.0.7 GET http://app.example.com/\n  \
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
    /// Show the load balancer at work, with four test origins behind it
    #[command(
        long_about = "Runs the load balancer and four test origins of different speed in one \
            process, on free loopback ports, says what to try, and goes on until interrupted.",
        after_help = "Examples:\n  evenkeel demo\n  evenkeel demo --load"
    )]
    Demo {
        /// Send it some load, and show each second how that is shared out
        #[arg(long)]
        load: bool,
    },
    /// Run a test origin: an HTTP server with a shape, to balance to
    #[command(
        after_help = "Examples:\n  evenkeel origin --listen 127.0.0.1:8081\n  \
        evenkeel origin --name slow --service exp:40ms --threads 4\n  \
        evenkeel origin --service '95%fixed:5ms,5%fixed:500ms' --fail-rate 0.01"
    )]
    Origin {
        /// Its shape.
        #[command(flatten)]
        options: Box<OriginOptions>,
    },
    /// Print the version
    #[command(after_help = "Example:\n  evenkeel version")]
    Version,
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
    /// The method
    #[arg(value_name = "METHOD")]
    pub method: String,
    /// The URL, or a path alone with `-H 'Host: …'`
    #[arg(value_name = "URL")]
    pub url: String,
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub struct Source {
    /// The configuration file; `local.toml` beside it overrides it
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "EVENKEEL_CONFIG",
        default_value = "evenkeel.toml"
    )]
    pub config: PathBuf,
    /// Set one option; the value is TOML, or else taken as text
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Say more; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}
