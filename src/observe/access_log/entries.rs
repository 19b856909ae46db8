//! Exchanges on their way from a worker to the thread that writes their lines.
//!
//! A worker notes what a line will tell, in the form in which it has it, and
//! the thread makes the lines of many exchanges in a row. To make a line takes
//! the same instructions in both; but between two requests a worker goes
//! through so much of the kernel that it would find none of them in the
//! processor's nearest cache, and wait for them longer than they take.

use std::slice;
use std::sync::Arc;

use evenkeel_policy::Instant;
use evenkeel_policy::endpoint::EndpointId;
use evenkeel_proto::{FieldKind, RequestHead, Version};

use super::Layout;
use super::clock::Clock;
use super::record::{Basics, Exchange, Figures, LoggedRequest, Open, Record, StreamPlace};
use super::texts::{Extras, Texts, push_texts, take_texts};
use crate::config::AccessLogFormat;
use crate::config::access_log::{LogField, Part, Template};

/// Entries of this size are handed over, in bytes. Each time costs two changes
/// of threads, where a worker shares its core with the thread that writes, and
/// much of what was in the processor's nearest caches.
pub const HAND_OVER_LEN: usize = 1024 * 1024;

/// Exchanges whose lines go to one destination.
#[derive(Debug, Default)]
pub struct Entries {
    entries: Vec<LogEntry>,
    /// Of those whose format shows them, in order.
    details: Vec<Details>,
    /// The texts of all of them, one behind the other.
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

/// What `combined` shows of an exchange, and others show too. Its texts are the
/// client's address, the method, the target or the line that came in place of a
/// head, the referrer, the user agent and the user.
#[derive(Debug, Clone, Copy)]
struct LogEntry {
    ended: Instant,
    body_bytes_out: u64,
    /// Index of the log.
    log: u32,
    status: u16,
    /// The version, where the request's head was read.
    version: Option<Version>,
}

/// What all formats but `combined` show besides: each line of memory that a worker
/// writes here is one that it has to wait for. Its texts are the host, the
/// request's id and the trace's, and those that only a template shows.
#[derive(Debug, Clone, Copy)]
struct Details {
    figures: Figures,
    /// The last endpoint tried.
    endpoint: Option<EndpointId>,
    /// Where it took place.
    place: StreamPlace,
    /// What was open, where the log's format shows it.
    open: Open,
    /// Bytes of the texts that only this log's template shows.
    extras_len: u32,
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
        size_of_val(&self.entries[..]) + size_of_val(&self.details[..]) + self.text.len()
    }

    /// Whether they are enough to be handed over.
    pub fn is_full(&self) -> bool {
        self.size() >= HAND_OVER_LEN
    }

    /// Forgets them and keeps their memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.details.clear();
        self.text.clear();
    }

    /// Notes an exchange for the log with this index and format.
    pub fn push(&mut self, log: usize, format: &AccessLogFormat, exchange: &Exchange<'_>) {
        let (head, buf) = (exchange.head, exchange.buf);
        let value_of = |kind| head.and_then(|head| head.value_of(kind, buf));
        push_texts(
            &mut self.text,
            [
                Some(exchange.client),
                head.map(|head| head.method_span.of(buf)),
                Some(head.map_or_else(|| exchange.raw_line(), |head| head.target.of(buf))),
                value_of(FieldKind::Referer),
                value_of(FieldKind::UserAgent),
                exchange.user,
            ],
        );
        if !matches!(format, AccessLogFormat::Combined) {
            self.push_details(format, exchange);
        }
        let figures = exchange.figures;
        self.entries.push(LogEntry {
            ended: figures.ended,
            body_bytes_out: figures.body_bytes_out,
            log: log as u32,
            status: figures.status,
            version: head.map(|head| head.version),
        });
    }

    fn push_details(&mut self, format: &AccessLogFormat, exchange: &Exchange<'_>) {
        let (head, buf) = (exchange.head, exchange.buf);
        push_texts(
            &mut self.text,
            [
                head.map(|head| head.host.of(buf)),
                exchange.request_id,
                exchange.trace_id,
            ],
        );
        let extras_len = match format {
            AccessLogFormat::Template(template) => self.push_extras(template, head, buf),
            _ => 0,
        };
        self.details.push(Details {
            figures: *exchange.figures,
            endpoint: exchange.endpoint.map(|it| it.id),
            place: exchange.place,
            open: match format {
                AccessLogFormat::Httplog => (exchange.open)(),
                _ => Open::default(),
            },
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
                Part::Field(LogField::Path) => head.map(|head| head.path(buf)),
                Part::Field(LogField::Query) => head.map(|head| head.query.of(buf)),
                Part::Header(name) => head.and_then(|head| {
                    let mut fields = head.fields.iter();
                    let found = fields.find(|field| field.is_read_as(name.as_bytes(), buf))?;
                    Some(found.value.of(buf))
                }),
                Part::Text(_) | Part::Field(_) => continue,
            };
            push_texts(&mut self.text, [value]);
        }
        (self.text.len() - before) as u32
    }
}

impl Batch {
    /// Reads the exchanges in the order in which they were noted.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader {
            batch: self,
            entries: self.entries.entries.iter(),
            details: self.entries.details.iter(),
            text: &self.entries.text,
        }
    }
}

/// Reads what was noted of exchanges, one after the other.
pub(super) struct Reader<'a> {
    batch: &'a Batch,
    entries: slice::Iter<'a, LogEntry>,
    details: slice::Iter<'a, Details>,
    text: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next exchange, and the format of its log. In all formats but `combined`
    /// its details are to be taken before the exchange behind it.
    pub fn next(&mut self) -> Option<(&'a AccessLogFormat, Basics<'a>)> {
        let entry = self.entries.next()?;
        let Texts { texts, is_plain } = take_texts(&mut self.text);
        let [client, method, target, referer, user_agent, user] = texts;
        let target = target.unwrap_or_default();
        let basics = Basics {
            unix_us: self.batch.clock.unix_us(entry.ended),
            client: client.unwrap_or_default(),
            user,
            request: match entry.version {
                Some(version) => LoggedRequest::Read {
                    method: method.unwrap_or_default(),
                    target,
                    version,
                },
                None => LoggedRequest::Refused(target),
            },
            referer,
            user_agent,
            status: entry.status,
            body_bytes_out: entry.body_bytes_out,
            is_plain,
        };
        Some((&self.batch.layout.formats[entry.log as usize], basics))
    }

    /// All of the exchange whose basics were read last.
    pub fn record(&mut self, basics: Basics<'a>) -> Record<'a> {
        let details = self.details.next().expect("its format shows them");
        let Texts { texts, is_plain } = take_texts(&mut self.text);
        let [host, request_id, trace_id] = texts;
        let extras = Extras::take(&mut self.text, details.extras_len as usize);
        let figures = &details.figures;
        let names = &self.batch.layout.names;
        let upstream = figures
            .upstream
            .map(|index| &names.upstreams[index as usize]);
        let endpoint = upstream.zip(details.endpoint);
        Record {
            figures,
            listener: &names.listeners[figures.listener as usize],
            route: figures.route.map(|index| &names.routes[index as usize]),
            upstream: upstream.map(|it| &*it.name),
            endpoint: endpoint.and_then(|(names, id)| names.endpoint(id)),
            host: host.unwrap_or_default(),
            request_id,
            trace_id,
            is_plain: is_plain && basics.is_plain,
            extras,
            place: details.place,
            open: details.open,
            basics,
        }
    }
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
                endpoint: None,
                client: b"unix",
                buf: b"",
                head: None,
                user: None,
                request_id: None,
                trace_id: None,
                place: StreamPlace::default(),
                open: &Open::default,
            };
            let formats = vec![AccessLogFormat::Combined];
            let names = Names::default();
            let mut entries = Entries::default();
            for _ in 0..count {
                entries.push(0, &formats[0], &exchange);
            }
            Batch {
                entries,
                layout: Arc::new(Layout {
                    formats: formats.into(),
                    names,
                }),
                clock: Clock::new(),
            }
        }
    }
}
