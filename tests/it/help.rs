//! The help of the command line, in a terminal.

use std::process::Command;

use crate::setup::{program, test};
use crate::top::Terminal;

#[test]
fn help_is_as_wide_as_the_terminal() {
    test(|| {
        for (columns, widest) in [(60, 60), (180, 100)] {
            let mut command = Command::new(program());
            command.arg("--help").env_remove("COLUMNS");
            let mut terminal = Terminal::start(command, 100, columns);
            assert!(terminal.await_end().success());
            terminal.await_text("evenkeel run --config evenkeel.toml");
            let text = terminal.text();
            let width = text.lines().map(|it| it.trim_end().len()).max();
            assert!(width <= Some(widest), "{text}");
            assert!(width > Some(widest - 20), "{text}");
        }
    });
}
