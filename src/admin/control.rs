//! The control socket: a command a line, an answer, and the connection is
//! closed, as HAProxy has it.

use std::io;
use std::rc::Rc;

use evenkeel_policy::endpoint::Admin as Wanted;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::operate::{Operation, operate};
use super::{Admin, accept};
use crate::net::listen::Listener;
use crate::net::stream::Stream;

/// Longest command, in bytes.
const MAX_COMMAND_LEN: u64 = 16 * 1024;

/// Takes commands for ever.
pub(super) async fn serve(admin: Rc<Admin>, listener: Listener) {
    loop {
        let (stream, _) = accept("control socket", &listener).await;
        let Stream::Unix(stream) = stream else {
            continue;
        };
        let admin = admin.clone();
        tokio::task::spawn_local(async move {
            // Who leaves before the answer has no use for it.
            let _ = answer(&admin, stream).await;
        });
    }
}

async fn answer(admin: &Admin, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(MAX_COMMAND_LEN))
        .read_line(&mut line)
        .await?;
    let answer = run(admin, line.trim());
    write.write_all(answer.as_bytes()).await?;
    write.shutdown().await
}

/// Carries out a command, and gives its answer.
fn run(admin: &Admin, command: &str) -> String {
    let words: Vec<_> = command.split_ascii_whitespace().collect();
    let change = |place: &str, operation| {
        let (upstream, endpoint) = place.split_once('/').unwrap_or((place, ""));
        match operate(&admin.sources, upstream, endpoint, operation) {
            Ok(done) => format!("{done}\n"),
            Err(unknown) => format!("{unknown}\n"),
        }
    };
    match words[..] {
        ["drain", place] => change(place, Operation::Admin(Wanted::Drain)),
        ["ready", place] => change(place, Operation::Admin(Wanted::Ready)),
        ["stop", place] => change(place, Operation::Admin(Wanted::Stop)),
        ["weight", place, weight] => match weight.parse() {
            Ok(weight) => change(place, Operation::Weight(weight)),
            Err(_) => format!("`{weight}` is no weight\n"),
        },
        _ => format!("unknown command: `{command}`\n"),
    }
}
