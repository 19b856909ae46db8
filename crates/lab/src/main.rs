//! The `evenkeel-lab` program.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use evenkeel_lab::{
    bench, bench_files, cache_crash, cache_pauses, cache_scale, changes, files, load, many_hosts,
    origin, pinned, relay, scenarios, simulate, slow_disk, socket,
};

/// Measures Evenkeel against the bare relay, nginx and HAProxy.
#[derive(Debug, clap::Parser)]
#[command(name = "evenkeel-lab", version)]
enum Command {
    /// Copy bytes between a client and one address: the floor.
    Relay(relay::Options),
    /// Answer `/N` with N bytes.
    Origin(origin::Options),
    /// Load an address and print the figures as JSON.
    Load(load::Options),
    /// Write the files that `load --files` asks for.
    Files(files::Options),
    /// Show a file as a disk whose reads take their time.
    #[command(hide = true)]
    SlowDisk(slow_disk::Options),
    /// Compare Evenkeel with the relay, nginx and HAProxy.
    Bench(bench::Options),
    /// Compare Evenkeel with nginx and lighttpd where there are files to serve.
    BenchFiles(bench_files::Options),
    /// Measure what 10,000 hosts, with routes and upstreams, cost over one.
    ManyHosts(many_hosts::Options),
    /// Change Evenkeel under load, and look whether anything is lost.
    Changes(changes::Options),
    /// Kill Evenkeel while it writes a cache on a disk, and look whether it is right.
    CacheCrash(cache_crash::Options),
    /// Look for pauses while a cache evicts, its responses expire, and it is purged.
    CachePauses(cache_pauses::Options),
    /// Measure the cost of a hit, an insert and an object, up to 10,000,000 objects.
    CacheScale(cache_scale::Options),
    /// Simulate clients and origins around the proxy's policy.
    Simulate(simulate::Options),
    /// Run the scenarios of the balancers on real sockets.
    Policies(scenarios::Options),
    /// Look at an Evenkeel's metrics and its status page, for ever.
    #[command(hide = true)]
    Watch(bench::Watch),
    /// Become another program, on one core.
    #[command(hide = true)]
    Pinned(pinned::Options),
}

fn main() -> ExitCode {
    let _ = socket::raise_descriptor_limit();
    match run(&Command::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("evenkeel-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> io::Result<ExitCode> {
    match command {
        Command::Relay(options) => relay::run(options)?,
        Command::Origin(options) => origin::run(options)?,
        Command::Load(options) => load::run(options)?,
        Command::Files(options) => files::run(options)?,
        Command::SlowDisk(options) => slow_disk::run(options)?,
        Command::Bench(options) => {
            if !bench::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::BenchFiles(options) => {
            if !bench_files::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::ManyHosts(options) => many_hosts::run(options)?,
        Command::Changes(options) => {
            if !changes::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::CacheCrash(options) => {
            if !cache_crash::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::CachePauses(options) => {
            if !cache_pauses::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::CacheScale(options) => {
            if !cache_scale::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Simulate(options) => {
            if !simulate::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Policies(options) => {
            if !scenarios::run(options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Watch(options) => bench::watch(options)?,
        Command::Pinned(options) => match pinned::run(options)? {},
    }
    Ok(ExitCode::SUCCESS)
}
