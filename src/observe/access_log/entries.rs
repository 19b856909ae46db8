//! Exchanges on their way from a worker to the thread that writes their lines.
//!
//! A worker notes the facts of a line as it has them, and the thread formats the lines of many
//! exchanges in a row. A line takes the same instructions in both. But between two requests a
//! worker runs through much of the kernel. It would find none of these instructions in the
//! processor's nearest cache, and would wait for them longer than they run.

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

/// Size of entries at which they are handed over, in bytes. Where worker and thread share a core,
/// each hand-over costs two context switches, and much of the processor's nearest caches.
pub const HAND_OVER_LEN: usize = 1024 * 1024;

/// Exchanges whose lines go to one destination.
#[derive(Debug, Default)]
pub struct Entries {
    entries: Vec<LogEntry>,
    /// Details of the exchanges whose format shows them, in order.
    details: Vec<Details>,
    /// The texts of all exchanges, one after another.
    text: Vec<u8>,
}

/// Exchanges, with everything needed to format their lines.
#[derive(Debug)]
pub struct Batch {
    /// The exchanges.
    pub entries: Entries,
    /// Formats and names.
    pub layout: Arc<Layout>,
    /// Converts instants to wall-clock time.
    pub(super) clock: Clock,
}

/// The facts that all formats show. `combined` shows no others. The texts are the client's
/// address, the method, the target or the line that came in place of a head, the referrer, the
/// user agent and the user.
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

/// The facts that all formats except `combined` show too. They are separate because a worker
/// waits for each cache line that it writes here. The texts are the host, the ids of the request
/// and of the trace, and the texts that only a template shows.
#[derive(Debug, Clone, Copy)]
struct Details {
    figures: Figures,
    /// The last endpoint tried.
    endpoint: Option<EndpointId>,
    /// The stream of the exchange, over HTTP/2.
    place: StreamPlace,
    /// Open connections and exchanges, where the log's format shows them.
    open: Open,
    /// Length of the texts that only this log's template shows.
    extras_len: u32,
}

impl Entries {
    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Size of the entries in bytes.
    pub fn size(&self) -> usize {
        size_of_val(&self.entries[..]) + size_of_val(&self.details[..]) + self.text.len()
    }

    /// Whether it is time to hand the entries over.
    pub fn is_full(&self) -> bool {
        self.size() >= HAND_OVER_LEN
    }

    /// Removes the entries, and keeps their memory.
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

    /// Notes the texts that only a template shows, in the order of its parts. Returns their
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
    /// Reads the exchanges in order.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader {
            batch: self,
            entries: self.entries.entries.iter(),
            details: self.entries.details.iter(),
            text: &self.entries.text,
        }
    }
}

/// Reads exchanges one after another.
pub(super) struct Reader<'a> {
    batch: &'a Batch,
    entries: slice::Iter<'a, LogEntry>,
    details: slice::Iter<'a, Details>,
    text: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next exchange, and the format of its log. For all formats except `combined`, its
    /// details have to be read before the next exchange.
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

    /// The full record of the exchange whose basics were read last.
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
        /// This many exchanges without any results.
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
