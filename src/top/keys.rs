//! What keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Mode, Model, Target};

/// Rows that a page key goes over.
const PAGE: isize = 15;
/// Most digits of a weight.
const WEIGHT_DIGITS: usize = 7;
/// Longest filter, in characters.
const FILTER_LEN: usize = 60;

/// What follows a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Todo {
    Nothing,
    Quit,
    /// A command for the process.
    Command(String),
}

/// Does what a key means at the moment.
pub fn press(model: &mut Model, key: KeyEvent) -> Todo {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    if is_control && matches!(key.code, KeyCode::Char('c' | 'd')) {
        return Todo::Quit;
    }
    match model.mode.clone() {
        Mode::Table => table(model, key.code),
        Mode::Filter => {
            filter(model, key.code);
            Todo::Nothing
        }
        Mode::Confirm { verb, target } => confirm(model, key.code, verb, &target),
        Mode::Weight { target, digits } => weight(model, key.code, target, digits),
        Mode::Help => {
            model.mode = Mode::Table;
            Todo::Nothing
        }
    }
}

fn table(model: &mut Model, key: KeyCode) -> Todo {
    match key {
        KeyCode::Char('q') => return Todo::Quit,
        KeyCode::Esc if model.filter.is_empty() => return Todo::Quit,
        KeyCode::Esc => model.filter.clear(),
        KeyCode::Up | KeyCode::Char('k') => model.go(-1),
        KeyCode::Down | KeyCode::Char('j') => model.go(1),
        KeyCode::PageUp => model.go(-PAGE),
        KeyCode::PageDown => model.go(PAGE),
        KeyCode::Home | KeyCode::Char('g') => model.go(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => model.go(isize::MAX),
        KeyCode::Char('/') => model.mode = Mode::Filter,
        KeyCode::Char('?' | 'h') => model.mode = Mode::Help,
        KeyCode::Char('o' | '>') => model.sort = model.sort.step(1),
        KeyCode::Char('O' | '<') => model.sort = model.sort.step(-1),
        KeyCode::Char('d') => ask(model, "drain"),
        KeyCode::Char('r') => ask(model, "ready"),
        KeyCode::Char('s') => ask(model, "stop"),
        KeyCode::Char('w') => {
            if let Some(target) = model.target() {
                let digits = String::new();
                model.mode = Mode::Weight { target, digits };
            }
        }
        _ => {}
    }
    Todo::Nothing
}

fn ask(model: &mut Model, verb: &'static str) {
    if let Some(target) = model.target() {
        model.mode = Mode::Confirm { verb, target };
    }
}

fn filter(model: &mut Model, key: KeyCode) {
    match key {
        KeyCode::Enter => model.mode = Mode::Table,
        KeyCode::Esc => {
            model.filter.clear();
            model.mode = Mode::Table;
        }
        KeyCode::Backspace => {
            model.filter.pop();
        }
        KeyCode::Char(letter) if model.filter.chars().count() < FILTER_LEN => {
            model.filter.push(letter);
        }
        _ => {}
    }
}

fn confirm(model: &mut Model, key: KeyCode, verb: &str, target: &Target) -> Todo {
    model.mode = Mode::Table;
    match key {
        KeyCode::Char('y' | 'Y') => Todo::Command(format!("{verb} {}", escaped(target))),
        _ => {
            model.say("nothing was changed".to_owned());
            Todo::Nothing
        }
    }
}

fn weight(model: &mut Model, key: KeyCode, target: Target, mut digits: String) -> Todo {
    match key {
        KeyCode::Enter if !digits.is_empty() => {
            model.mode = Mode::Table;
            return Todo::Command(format!("weight {} {digits}", escaped(&target)));
        }
        KeyCode::Esc | KeyCode::Enter => {
            model.mode = Mode::Table;
            model.say("nothing was changed".to_owned());
            return Todo::Nothing;
        }
        KeyCode::Backspace => {
            digits.pop();
        }
        KeyCode::Char(digit) if digit.is_ascii_digit() && digits.len() < WEIGHT_DIGITS => {
            digits.push(digit);
        }
        _ => {}
    }
    model.mode = Mode::Weight { target, digits };
    Todo::Nothing
}

/// The target's place as one word of a command.
fn escaped(target: &Target) -> String {
    crate::ctl::quoted(&target.place())
}
