//! What an operator asks of the process as a whole. The control thread does it.

use std::path::PathBuf;

use tokio::sync::{mpsc, oneshot};

/// How an order ended: what is said to the operator.
///
/// # Errors
/// Why nothing was done.
pub type Outcome = Result<String, String>;

/// An order, with the way back.
#[derive(Debug)]
pub enum Order {
    /// To load the configuration again.
    Reload(oneshot::Sender<Outcome>),
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
