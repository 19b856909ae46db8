//! The new process's side: its inheritance, and when it begins to serve.

use std::io;
use std::time::Duration;

use tokio::sync::oneshot;

use super::counts_before::CountsBefore;
use super::message::{
    Answer, CHANNEL_VARIABLE, Offer, Role, VERSION, Versioned, Word, address, read, say,
};
use super::state::Known;
use crate::admin::STATUS_PAGE;
use crate::discovery::SourcesSnapshot;
use crate::net::Address;
use crate::net::given::{self, InheritedSocket, InheritedSockets, SocketProvider};
use crate::net::handover::Channel;
use crate::observe::figures::CurrentSources;

/// How long the old process has for its offer, and for its word to serve.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The process that this one takes over from.
#[derive(Debug)]
pub(in crate::runtime) struct Predecessor {
    channel: Channel,
    /// Address of its control socket.
    control: Option<String>,
    discovered: SourcesSnapshot,
}

/// The inheritance that a start begins with, beside its configuration.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Inheritance {
    pub predecessor: Option<Predecessor>,
    pub sockets: InheritedSockets,
}

impl Inheritance {
    /// The offer of the old process, if one has started this one; else that of the service
    /// manager. Blocks.
    ///
    /// # Errors
    /// The offer can't be taken; the old process has been told why.
    pub fn of_environment() -> io::Result<Self> {
        let Some(channel) = Channel::of_variable(CHANNEL_VARIABLE)? else {
            return Ok(Inheritance {
                predecessor: None,
                sockets: given::of_service_manager()?,
            });
        };
        channel.set_timeout(Some(TIMEOUT))?;
        let taken = take(&channel);
        match taken {
            Ok((offer, sockets)) => Ok(Inheritance {
                predecessor: Some(Predecessor {
                    channel,
                    control: offer.control,
                    discovered: offer.discovered,
                }),
                sockets,
            }),
            Err(error) => {
                refuse(&channel, &error.to_string());
                Err(io::Error::other(format!("upgrade: {error}")))
            }
        }
    }
}

impl Inheritance {
    /// The address of the control socket of the process before.
    pub fn control_of_another(&self) -> Option<Address> {
        address(self.predecessor.as_ref()?.control.as_deref()?)
    }

    /// Closes the sockets that nobody wants any more, and says so.
    pub fn close_rest(&mut self) {
        for socket in std::mem::take(&mut self.sockets).iter() {
            let (name, address) = (socket.name(), socket.address());
            tracing::info!("the socket {name} at {address} is closed: no listener uses it");
        }
    }

    /// The answers of the sources of endpoints to the process before.
    pub fn discovered(&self) -> Option<&SourcesSnapshot> {
        Some(&self.predecessor.as_ref()?.discovered)
    }

    /// Tells the process before why this one can't start.
    pub fn refuse(&self, error: &io::Error) {
        if let Some(predecessor) = &self.predecessor {
            refuse(&predecessor.channel, &error.to_string());
        }
    }
}

/// Reads the offer.
fn take(channel: &Channel) -> io::Result<(Offer, InheritedSockets)> {
    let received = channel.receive()?;
    let (bytes, descriptors) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
    let Versioned { version } = read(&bytes)?;
    if version != VERSION {
        return Err(io::Error::other(format!(
            "the old process offers version {version} of the handover, but this program needs \
             version {VERSION}"
        )));
    }
    let offer: Offer = read(&bytes)?;
    let mut sockets = InheritedSockets::default();
    let mut descriptors = descriptors.into_iter();
    for offered in &offer.sockets {
        for descriptor in descriptors.by_ref().take(offered.count) {
            let name = match offered.role {
                Role::Listener => &offered.name,
                Role::StatusPage => STATUS_PAGE,
            };
            let mut socket = InheritedSocket::new(SocketProvider::Predecessor, name, descriptor)?;
            if let Some(wanted) = address(&offered.wanted) {
                socket = socket.wanted_at(wanted);
            }
            sockets.add(socket.with_file(offered.file));
        }
    }
    Ok((offer, sockets))
}

fn refuse(channel: &Channel, why: &str) {
    // If the message is lost, the old process sees that this process ends.
    let _ = say(channel, &Answer::Refused(why.to_owned()));
}

impl Predecessor {
    /// Says that this process is ready, and waits until it is to serve. Gives what the
    /// process before knows at that moment. Blocks.
    ///
    /// # Errors
    /// The old process goes on.
    pub fn ready(&self) -> io::Result<Known> {
        say(&self.channel, &Answer::Ready)?;
        let mut known = Known::default();
        loop {
            let Some((bytes, _)) = self.channel.receive()? else {
                // It was killed: nobody else serves.
                return Ok(known);
            };
            match read(&bytes)? {
                Word::Known(told) => known = *told,
                Word::Serve => return Ok(known),
                Word::Counts(_) | Word::Before { .. } => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
    }

    /// Says that this process serves: the old one may stop.
    pub fn serving(&self) {
        if let Err(error) = say(&self.channel, &Answer::Serving) {
            // Nobody else serves then.
            tracing::warn!("upgrade: the old process could not be notified: {error}");
        }
    }

    /// Goes on counting from what the old process has counted, as long as it does.
    /// `first` hears of the first counts.
    pub fn follow_counts(
        self,
        current: CurrentSources,
        first: oneshot::Sender<()>,
    ) -> Option<CountsBefore> {
        let counts = CountsBefore::hear(self.channel, current, first);
        counts
            .inspect_err(|error| tracing::warn!("upgrade: counters start from 0: {error}"))
            .ok()
    }
}
