//! Exchanges on their way from a worker to the thread that writes their lines.
//!
//! A worker notes what a line will tell, in the form in which it has it, and
//! the thread makes the lines of many exchanges in a row. To make a line takes
//! the same instructions in both; but between two requests a worker goes
//! through so much of the kernel that it would find none of them in the
//! processor's nearest cache, and wait for them longer than they take.

use std::sync::Arc;

use evenkeel_proto::{FieldKind, RequestHead, Version};

use super::Layout;
use super::clock::Clock;
use super::escape::are_plain;
use super::record::{Exchange, Figures, Open, Record, Request};
use crate::config::AccessLogFormat;
use crate::config::access_log::{LogField, Part, Template};

/// Entries of this size are handed over, in bytes. Each time costs two changes
/// of threads, where a worker shares its core with the thread that writes, and
/// much of what was in the processor's nearest caches.
pub const HAND_OVER_LEN: usize = 1024 * 1024;

/// Exchanges whose lines go to one destination.
#[derive(Debug, Default)]
pub struct Entries {
    entries: Vec<Entry>,
    /// The text of all of them, one behind the other.
    text: Vec<u8>,
}

/// What the lines of exchanges are made of and from.
#[derive(Debug)]
pub struct Batch {
    /// The exchanges.
    pub entries: Entries,
    /// Formats and names.
    pub layout: Arc<Layout>,
    /// What time it is.
    pub(super) clock: Clock,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    figures: Figures,
    /// Index of the log.
    log: u32,
    /// The version, where the request's head was read.
    version: Option<Version>,
    /// What was open, where the log's format shows it.
    open: Open,
    /// Lengths of the texts, in the order of [`Text`].
    lens: [u32; Text::COUNT],
    /// Bytes of the texts that only this log's template shows.
    extras_len: u32,
}

/// The texts of an exchange, in the order in which they are noted.
#[derive(Clone, Copy)]
enum Text {
    Client,
    Method,
    /// Or the line that came in place of a head.
    Target,
    Host,
    Referer,
    UserAgent,
    RequestId,
    TraceId,
}

impl Text {
    const COUNT: usize = Text::TraceId as usize + 1;
    /// Length of one that is not there.
    const ABSENT: u32 = u32::MAX;
}

impl Entries {
    /// How many there are.
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What they take, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Entry>() * self.entries.len() + self.text.len()
    }

    /// Whether they are enough to be handed over.
    pub fn is_full(&self) -> bool {
        self.size() >= HAND_OVER_LEN
    }

    /// Forgets them and keeps their memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
    }

    /// Notes an exchange for the log with this index and format.
    pub fn push(&mut self, log: usize, format: &AccessLogFormat, exchange: &Exchange<'_>) {
        let buf = exchange.buf;
        let mut lens = [Text::ABSENT; Text::COUNT];
        let text = &mut self.text;
        let mut note = |text_of: Text, value: Option<&[u8]>| {
            if let Some(value) = value {
                lens[text_of as usize] = value.len() as u32;
                text.extend_from_slice(value);
            }
        };
        note(Text::Client, Some(exchange.client));
        match exchange.head {
            Some(head) => {
                note(Text::Method, Some(head.method_span.of(buf)));
                note(Text::Target, Some(head.target.of(buf)));
                note(Text::Host, Some(head.host.of(buf)));
                note(Text::Referer, head.value_of(FieldKind::Referer, buf));
                note(Text::UserAgent, head.value_of(FieldKind::UserAgent, buf));
            }
            None => note(Text::Target, Some(exchange.raw_line())),
        }
        note(Text::RequestId, exchange.request_id);
        note(Text::TraceId, exchange.trace_id);
        let mut open = Open::default();
        let mut extras_len = 0;
        match format {
            AccessLogFormat::Combined | AccessLogFormat::Json => {}
            AccessLogFormat::Httplog => open = (exchange.open)(),
            AccessLogFormat::Template(template) => {
                extras_len = self.push_extras(template, exchange.head, buf);
            }
        }
        self.entries.push(Entry {
            figures: *exchange.figures,
            log: log as u32,
            version: exchange.head.map(|head| head.version),
            open,
            lens,
            extras_len,
        });
    }

    /// Notes what only a template shows, in the order of its parts. Gives its
    /// length.
    #[inline(never)]
    fn push_extras(&mut self, template: &Template, head: Option<&RequestHead>, buf: &[u8]) -> u32 {
        let before = self.text.len();
        for part in &template.parts {
            let value = match part {
                Part::Field(LogField::Path) => head.map(|head| head.path.of(buf)),
                Part::Field(LogField::Query) => head.map(|head| head.query.of(buf)),
                Part::Header(name) => head.and_then(|head| {
                    let mut fields = head.fields.iter();
                    let found = fields.find(|field| field.is_named(name.as_bytes(), buf))?;
                    Some(found.value.of(buf))
                }),
                Part::Text(_) | Part::Field(_) => continue,
            };
            let len = value.map_or(Text::ABSENT, |value| value.len() as u32);
            self.text.extend_from_slice(&len.to_ne_bytes());
            self.text.extend_from_slice(value.unwrap_or_default());
        }
        (self.text.len() - before) as u32
    }
}

/// The texts that only a template shows, in the order of its parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extras<'a>(&'a [u8]);

impl<'a> Extras<'a> {
    /// The next of them; `None` where the exchange has nothing for it.
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk()?;
        let len = u32::from_ne_bytes(*len);
        if len == Text::ABSENT {
            self.0 = rest;
            return None;
        }
        let (value, rest) = rest.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(value)
    }
}

impl Batch {
    /// What the line of each exchange tells, and the format of its log.
    pub(super) fn records(&self) -> impl Iterator<Item = (&AccessLogFormat, Record<'_>)> {
        let layout = &*self.layout;
        let mut rest = self.entries.text.as_slice();
        self.entries.entries.iter().map(move |entry| {
            let record = entry.record(layout, self.clock, &mut rest);
            (&layout.formats[entry.log as usize], record)
        })
    }
}

impl Entry {
    /// The record, with the texts that are next in `rest`.
    fn record<'a>(&'a self, layout: &'a Layout, clock: Clock, rest: &mut &'a [u8]) -> Record<'a> {
        let before = *rest;
        let mut texts = [None; Text::COUNT];
        for (text, &len) in texts.iter_mut().zip(&self.lens) {
            if len != Text::ABSENT {
                *text = Some(take(rest, len));
            }
        }
        let [
            client,
            method,
            target,
            host,
            referer,
            user_agent,
            request_id,
            trace_id,
        ] = texts;
        let target = target.unwrap_or_default();
        let is_plain = are_plain(&before[..before.len() - rest.len()]);
        let extras = take(rest, self.extras_len);
        let figures = &self.figures;
        let names = &layout.names;
        let upstream = figures
            .upstream
            .map(|index| &names.upstreams[index as usize]);
        let endpoint = upstream.zip(figures.endpoint);
        Record {
            unix_us: clock.unix_us(figures.ended),
            figures,
            client: client.unwrap_or_default(),
            listener: &names.listeners[figures.listener as usize],
            route: figures.route.map(|index| &names.routes[index as usize]),
            upstream: upstream.map(|(name, _)| name),
            endpoint: endpoint.map(|((_, endpoints), index)| &endpoints[index as usize]),
            request: match self.version {
                Some(version) => Request::Read {
                    method: method.unwrap_or_default(),
                    target,
                    host: host.unwrap_or_default(),
                    version,
                },
                None => Request::Refused(target),
            },
            referer,
            user_agent,
            request_id,
            trace_id,
            is_plain,
            extras: Extras(extras),
            open: self.open,
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], len: u32) -> &'a [u8] {
    let text;
    (text, *rest) = rest.split_at(len as usize);
    text
}

#[cfg(test)]
mod tests {
    use super::super::names::Names;
    use super::*;

    impl Batch {
        /// So many exchanges that came to nothing.
        pub fn of_nothing(count: usize) -> Self {
            let exchange = Exchange {
                figures: &Figures::begun(0, 0, crate::net::clock::now()),
                client: b"unix",
                buf: b"",
                head: None,
                request_id: None,
                trace_id: None,
                open: &Open::default,
            };
            let formats = vec![AccessLogFormat::Json];
            let names = Names::default();
            let mut entries = Entries::default();
            for _ in 0..count {
                entries.push(0, &formats[0], &exchange);
            }
            Batch {
                entries,
                layout: Arc::new(Layout { formats, names }),
                clock: Clock::new(),
            }
        }
    }
}
