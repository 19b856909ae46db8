//! Operators' orders to the process as a whole. The control thread executes them.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::config::duration;

/// The result of an order: the text for the operator.
///
/// # Errors
/// Why nothing was done.
pub type Outcome = Result<String, String>;

/// Options of a reload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReloadOptions {
    /// Time for its confirmation, after which it is rolled back. `None`: it stays.
    pub confirm_within: Option<Duration>,
    /// The condition for its new endpoints.
    pub new_endpoints: NewEndpoints,
}

/// The condition for an upstream whose endpoints are all new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NewEndpoints {
    /// None.
    #[default]
    Any,
    /// One of its endpoints must pass a probe.
    Healthy,
}

/// The word before a time to confirm.
const CONFIRM: &str = "confirm";
/// The word for [`NewEndpoints::Healthy`].
const REQUIRE_HEALTHY: &str = "require-healthy";
/// The shortest and the longest time to confirm.
const MIN_CONFIRM: Duration = Duration::from_secs(1);
const MAX_CONFIRM: Duration = Duration::from_secs(24 * 3600);

/// Reads the time within which a configuration is to be confirmed, such as `60s`.
///
/// # Errors
/// The text is not a time, or it is too short or too long.
pub fn confirm_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if (MIN_CONFIRM..=MAX_CONFIRM).contains(&time) {
        Ok(time)
    } else {
        Err(format!("the time to confirm must be 1s to 24h, not {text}"))
    }
}

impl ReloadOptions {
    /// Reads options as words of a command.
    ///
    /// # Errors
    /// A word is not an option.
    pub(super) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = ReloadOptions::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                CONFIRM => {
                    let time = words.next().ok_or("confirm needs a time, such as 60s")?;
                    let shown = time.escape_debug().to_string();
                    options.confirm_within = Some(confirm_time(&shown)?);
                }
                REQUIRE_HEALTHY => options.new_endpoints = NewEndpoints::Healthy,
                _ => {
                    let word = word.escape_debug();
                    return Err(format!(
                        "unknown option `{word}`: reload takes {CONFIRM} TIME and {REQUIRE_HEALTHY}"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// The words of a command with these options.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(time) = self.confirm_within {
            words.extend([CONFIRM.to_owned(), format!("{}us", time.as_micros())]);
        }
        if self.new_endpoints == NewEndpoints::Healthy {
            words.push(REQUIRE_HEALTHY.to_owned());
        }
        words
    }
}

/// An order, with the channel for its result.
#[derive(Debug)]
pub enum Order {
    /// Reload the configuration.
    Reload(ReloadOptions, oneshot::Sender<Outcome>),
    /// Confirm the configuration in force, which would be rolled back otherwise.
    Confirm(oneshot::Sender<Outcome>),
    /// Report the changes that a reload would bring.
    Diff(oneshot::Sender<Outcome>),
    /// Hand over to another process: of this program, or else of the running one.
    Upgrade(Option<PathBuf>, oneshot::Sender<Outcome>),
    /// Drain, and stop.
    Stop(oneshot::Sender<Outcome>),
    /// Stop at once.
    StopNow(oneshot::Sender<Outcome>),
}

/// Sends orders to the control thread.
pub type Orders = mpsc::UnboundedSender<Order>;

/// Gives an order, and waits until it is done.
///
/// # Errors
/// Why nothing was done.
pub(super) async fn order(
    orders: &Orders,
    of: impl FnOnce(oneshot::Sender<Outcome>) -> Order,
) -> Outcome {
    let (reply, outcome) = oneshot::channel();
    // If the process ends, the result's channel is closed too.
    let _ = orders.send(of(reply));
    outcome
        .await
        .unwrap_or_else(|_| Err("the process is stopping".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_reload_are_words() {
        for confirm_within in [None, Some(MIN_CONFIRM), Some(Duration::from_millis(90_500))] {
            for new_endpoints in [NewEndpoints::Any, NewEndpoints::Healthy] {
                let options = ReloadOptions {
                    confirm_within,
                    new_endpoints,
                };
                let words = options.words();
                let words: Vec<_> = words.iter().map(String::as_str).collect();
                assert_eq!(ReloadOptions::parse(&words), Ok(options));
            }
        }
    }

    #[test]
    fn a_time_to_confirm_has_bounds() {
        for (text, time) in [("1s", 1), ("60s", 60), ("1m30s", 90), ("24h", 86_400)] {
            assert_eq!(confirm_time(text), Ok(Duration::from_secs(time)));
        }
        for (text, says) in [
            ("0s", "1s to 24h"),
            ("999ms", "1s to 24h"),
            ("24h1s", "1s to 24h"),
            ("60", "a duration needs a unit"),
            ("-1s", "not a valid duration"),
            ("", "cannot be empty"),
            ("soon", "not a valid duration"),
        ] {
            let error = confirm_time(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        for (words, says) in [
            (&["confirm"][..], "needs a time"),
            (&["confirm", "0s"], "1s to 24h"),
            (&["frob"], "unknown option `frob`"),
        ] {
            let error = ReloadOptions::parse(words).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
