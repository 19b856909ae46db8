//! `evenkeel top`: a live table of upstreams and endpoints in a terminal.
//!
//! A thread asks the control socket for one second after the other; this one
//! draws, and takes keys. The terminal is restored however it ends.

mod keys;
mod model;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use evenkeel::lifecycle::StopSignals;
use evenkeel::observe::rates::Rates;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::fs::{Mode, OFlags};
use rustix::stdio::dup2_stdin;
use rustix::termios::ttyname;

use crate::cli::Control;
use crate::ctl::socket::{self, Socket};
use crate::{Failed, colour, complain, print};
use keys::{Escapes, Todo};
use model::Model;

/// Time between two looks for keys and news.
const STEP: Duration = Duration::from_millis(50);
/// Time until the first picture: no person waits for a second.
const FIRST_WINDOW_S: f64 = 0.2;
/// Pause while the process can't be asked.
const PAUSE: Duration = Duration::from_millis(500);

/// Messages of other threads.
enum ThreadMessage {
    /// The last rates, or why there are none.
    Rates(Result<Box<Rates>, String>),
    /// The outcome of a command.
    Done(Result<String, String>),
}

/// Shows the table until the user or a signal ends it.
pub fn run(control: &Control, interval: f64) -> Result<(), Failed> {
    let socket = Socket::find(control).map_err(|error| complain(&error))?;
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return snapshot(&socket, interval);
    }
    // A failure at the start is reported in plain text.
    let first = rates(&socket, FIRST_WINDOW_S).map_err(|error| complain(&error))?;
    let mut model = Model::new(colour(&io::stdout()));
    model.news(Ok(first));
    let stopped = stop_flag().map_err(|error| complain(&format!("signals: {error}")))?;
    let (sender, news) = channel();
    let watching = watch(socket.clone(), interval, sender.clone());
    watching.map_err(|error| complain(&format!("start a thread: {error}")))?;
    // Otherwise a key in pieces would be waited for, and nothing drawn
    // meanwhile.
    let reopened = reopen_stdin();
    reopened.map_err(|error| complain(&format!("the terminal can't be read: {error}")))?;
    let terminal = ratatui::try_init();
    let mut terminal = terminal.map_err(|error| {
        ratatui::restore();
        complain(&format!("the terminal can't be used: {error}"))
    })?;
    let ended = show(&mut terminal, &mut model, &socket, &news, &sender, &stopped);
    ratatui::restore();
    ended.map_err(|error| complain(&format!("the terminal is gone: {error}")))
}

/// Gives standard input a non-blocking description of its own. The present one
/// is the shell's too, and that of standard output.
fn reopen_stdin() -> io::Result<()> {
    let stdin = io::stdin();
    let name = ttyname(&stdin, Vec::new())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let own = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
    Ok(dup2_stdin(own)?)
}

/// One picture as plain text.
fn snapshot(socket: &Socket, interval: f64) -> Result<(), Failed> {
    let answer = socket.ask(&format!("rates {interval}"), socket::LONG_TIMEOUT);
    let answer = answer.map_err(|error| complain(&error))?;
    match answer.strip_prefix("error: ") {
        Some(error) => Err(complain(error.trim_end())),
        None => print(&format!("{}\n", answer.trim_end())),
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    socket: &Socket,
    news: &Receiver<ThreadMessage>,
    sender: &Sender<ThreadMessage>,
    stopped: &AtomicBool,
) -> io::Result<()> {
    let mut is_changed = true;
    let mut escapes = Escapes::default();
    while !stopped.load(Ordering::Relaxed) {
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| view::draw(frame, model))?;
        }
        let mut pressed = Vec::new();
        if event::poll(STEP)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    pressed = escapes.take(key, Instant::now());
                }
                // A resize above all.
                _ => is_changed = true,
            }
        }
        pressed.extend(escapes.due(Instant::now()));
        for key in pressed {
            match keys::press(model, key) {
                Todo::Nothing => {}
                Todo::Quit => return Ok(()),
                Todo::Command(command) => carry_out(socket.clone(), command, sender),
            }
            is_changed = true;
        }
        for news in news.try_iter() {
            is_changed = true;
            match news {
                ThreadMessage::Rates(rates) => model.news(rates),
                ThreadMessage::Done(done) => model.say(match done {
                    Ok(text) => text,
                    Err(error) => format!("failed: {error}"),
                }),
            }
        }
        is_changed |= model.forget(Instant::now());
    }
    Ok(())
}

/// Asks for rates, for ever.
fn watch(socket: Socket, interval: f64, sender: Sender<ThreadMessage>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("watch".to_owned());
    thread.spawn(move || {
        loop {
            let rates = rates(&socket, interval);
            let has_failed = rates.is_err();
            if sender.send(ThreadMessage::Rates(rates)).is_err() {
                return;
            }
            if has_failed {
                std::thread::sleep(PAUSE);
            }
        }
    })?;
    Ok(())
}

/// The rates over so many seconds.
fn rates(socket: &Socket, seconds: f64) -> Result<Box<Rates>, String> {
    let answer = socket.ask(&format!("json rates {seconds}"), socket::LONG_TIMEOUT)?;
    serde_json::from_str(&answer).map_err(|_| match refusal(&answer) {
        Some(error) => error,
        None => "the process has another version".to_owned(),
    })
}

fn refusal(answer: &str) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    Some(answer.get("error")?.as_str()?.to_owned())
}

/// Sends a command without making the table wait.
fn carry_out(socket: Socket, command: String, sender: &Sender<ThreadMessage>) {
    let failed = sender.clone();
    let sender = sender.clone();
    let thread = std::thread::Builder::new().name("command".to_owned());
    let spawned = thread.spawn(move || {
        let answer = socket.ask(&command, socket::TIMEOUT);
        let done = answer.and_then(|answer| match answer.strip_prefix("error: ") {
            Some(error) => Err(error.trim_end().to_owned()),
            None => Ok(answer.trim_end().replace('\n', "; ")),
        });
        // The table is gone where nobody listens.
        let _ = sender.send(ThreadMessage::Done(done));
    });
    if let Err(error) = spawned {
        let _ = failed.send(ThreadMessage::Done(Err(error.to_string())));
    }
}

/// Becomes true with TERM or INT.
fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = stopped.clone();
    let mut signals = {
        let _in_runtime = runtime.enter();
        StopSignals::new()?
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        runtime.block_on(signals.next());
        flag.store(true, Ordering::Relaxed);
    })?;
    Ok(stopped)
}
