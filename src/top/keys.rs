//! The effects of keys.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Mode, Model, Target};

/// How long an Esc waits for the rest of an escape sequence: a slow line brings
/// an arrow key in pieces.
const ESCAPE_TIME: Duration = Duration::from_millis(100);
/// Longest parameter of a sequence, such as the `5` of PgUp, `ESC [ 5 ~`.
const PARAMETER_LEN: usize = 16;
/// Rows that a page key goes over.
const PAGE: isize = 15;
/// Most digits of a weight.
const WEIGHT_DIGITS: usize = 7;
/// Longest filter, in characters.
const FILTER_LEN: usize = 60;

/// Joins escape sequences that came in pieces, so that the Esc of an arrow key
/// is not taken for the key Esc.
///
/// Invariant: an Esc is acted on once [`ESCAPE_TIME`] has passed without a rest,
/// or a key has come that is none.
#[derive(Debug, Default)]
pub struct Escapes {
    pending: Option<Pending>,
}

/// The beginning of a sequence.
#[derive(Debug)]
struct Pending {
    esc: KeyEvent,
    until: Instant,
    /// The characters behind the introducer, `[` or `O`; `None` before that.
    parameter: Option<String>,
}

impl Escapes {
    /// Takes a key in, and gives the keys to act on now, in order.
    pub fn take(&mut self, key: KeyEvent, now: Instant) -> Vec<KeyEvent> {
        let mut due: Vec<_> = self.due(now).into_iter().collect();
        match (self.pending.take(), key.code) {
            (None, KeyCode::Esc) => {
                self.pending = Some(Pending {
                    esc: key,
                    until: now + ESCAPE_TIME,
                    parameter: None,
                });
            }
            (None, _) => due.push(key),
            (Some(pending), KeyCode::Char('[' | 'O')) if pending.parameter.is_none() => {
                self.pending = Some(Pending {
                    until: now + ESCAPE_TIME,
                    parameter: Some(String::new()),
                    ..pending
                });
            }
            (
                Some(Pending {
                    parameter: Some(text),
                    ..
                }),
                KeyCode::Char(last @ '@'..='~'),
            ) => {
                due.extend(sequence(&text, last));
            }
            (Some(mut pending), KeyCode::Char(digit @ ' '..='?')) if pending.has_room() => {
                if let Some(text) = &mut pending.parameter {
                    text.push(digit);
                }
                self.pending = Some(pending);
            }
            (Some(pending), _) => {
                // A sequence that was cut off is no key.
                due.extend(pending.parameter.is_none().then_some(pending.esc));
                due.push(key);
            }
        }
        due
    }

    /// The Esc that no key has followed in time.
    pub fn due(&mut self, now: Instant) -> Option<KeyEvent> {
        let pending = self.pending.take_if(|it| now >= it.until)?;
        pending.parameter.is_none().then_some(pending.esc)
    }
}

impl Pending {
    /// Whether a parameter is being read that may become longer.
    fn has_room(&self) -> bool {
        let parameter = self.parameter.as_ref();
        parameter.is_some_and(|it| it.len() < PARAMETER_LEN)
    }
}

/// The key that a sequence stands for, if it means something here.
fn sequence(parameter: &str, last: char) -> Option<KeyEvent> {
    let code = match (parameter, last) {
        (_, 'A') => KeyCode::Up,
        (_, 'B') => KeyCode::Down,
        (_, 'H') | ("1" | "7", '~') => KeyCode::Home,
        (_, 'F') | ("4" | "8", '~') => KeyCode::End,
        ("5", '~') => KeyCode::PageUp,
        ("6", '~') => KeyCode::PageDown,
        _ => return None,
    };
    Some(code.into())
}

/// The action that follows a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Todo {
    Nothing,
    Quit,
    /// A command for the process.
    Command(String),
}

/// Does what a key means now.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of keys, each so many milliseconds after the one before.
    fn joined(keys: &[(u64, KeyCode)]) -> Vec<KeyCode> {
        let mut escapes = Escapes::default();
        let mut now = Instant::now();
        let mut found = Vec::new();
        for (pause, key) in keys {
            now += Duration::from_millis(*pause);
            found.extend(escapes.take((*key).into(), now));
        }
        found.extend(escapes.due(now + ESCAPE_TIME));
        found.into_iter().map(|it| it.code).collect()
    }

    #[test]
    fn an_escape_sequence_in_pieces_is_one_key() {
        use KeyCode::{Char, Down, Esc, PageUp, Up};
        for (keys, expected) in [
            (&[(0, Esc)][..], &[Esc][..]),
            (&[(0, Up)], &[Up]),
            (&[(0, Esc), (30, Char('[')), (30, Char('A'))], &[Up]),
            (&[(0, Esc), (30, Char('O')), (99, Char('B'))], &[Down]),
            (
                &[(0, Esc), (1, Char('[')), (1, Char('5')), (1, Char('~'))],
                &[PageUp],
            ),
            // One that means nothing here, and one that is cut off.
            (&[(0, Esc), (1, Char('[')), (1, Char('Z'))], &[]),
            (&[(0, Esc), (1, Char('[')), (1, Char('5'))], &[]),
            // The key Esc, and another one.
            (&[(0, Esc), (1, Char('d'))], &[Esc, Char('d')]),
            (&[(0, Esc), (1, Esc)], &[Esc, Esc]),
            (&[(0, Esc), (200, Char('['))], &[Esc, Char('[')]),
        ] {
            assert_eq!(joined(keys), expected, "{keys:?}");
        }
        // Endless parameters come to an end, and quit nothing.
        let mut endless = vec![(0, Esc), (1, Char('['))];
        endless.resize(100, (1, Char('1')));
        assert!(!joined(&endless).contains(&Esc));
    }
}
