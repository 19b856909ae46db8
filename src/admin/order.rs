//! What an operator asks of the process as a whole. The control thread does it.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::config::duration;

/// How an order ended: what is said to the operator.
///
/// # Errors
/// Why nothing was done.
pub type Outcome = Result<String, String>;

/// How a configuration comes into force that is loaded again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReloadOptions {
    /// It goes back by itself unless it is confirmed within this time; `None`: it stays.
    pub confirm_within: Option<Duration>,
    /// What its endpoints must be.
    pub new_endpoints: NewEndpoints,
}

/// What is asked of an upstream whose endpoints are all new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NewEndpoints {
    /// Nothing.
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
/// It is none, or too short or too long.
pub fn confirm_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if (MIN_CONFIRM..=MAX_CONFIRM).contains(&time) {
        Ok(time)
    } else {
        Err(format!("the time to confirm is 1s to 24h, not {text}"))
    }
}

impl ReloadOptions {
    /// Reads them as they stand in a command.
    ///
    /// # Errors
    /// A word is none of theirs.
    pub(super) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = ReloadOptions::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                CONFIRM => {
                    let time = words.next().ok_or("confirm takes a time, such as 60s")?;
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

    /// The words of a command that has them.
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

/// An order, with the way back.
#[derive(Debug)]
pub enum Order {
    /// To load the configuration again.
    Reload(ReloadOptions, oneshot::Sender<Outcome>),
    /// To have the configuration in force stay that goes back otherwise.
    Confirm(oneshot::Sender<Outcome>),
    /// To say what the configuration, loaded again, would change.
    Diff(oneshot::Sender<Outcome>),
    /// To have another process take over: of this program, or else of the one running.
    Upgrade(Option<PathBuf>, oneshot::Sender<Outcome>),
    /// To finish what is open, and stop.
    Stop(oneshot::Sender<Outcome>),
    /// To stop at once.
    StopNow(oneshot::Sender<Outcome>),
}

/// Where orders are given.
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
    // Where the process ends, so does the way back.
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
            ("-1s", "no duration"),
            ("", "no duration"),
            ("soon", "no duration"),
        ] {
            let error = confirm_time(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        for (words, says) in [
            (&["confirm"][..], "takes a time"),
            (&["confirm", "0s"], "1s to 24h"),
            (&["frob"], "unknown option `frob`"),
        ] {
            let error = ReloadOptions::parse(words).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
