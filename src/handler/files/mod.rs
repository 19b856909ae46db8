//! Files: chooses the file that answers a request, and the form of the answer.
//!
//! Owns the side of HTTP: paths, conditions, ranges, codings, fields. `crate::files` owns files
//! in memory and waits for the disk; `send` owns sending.

mod compress;
mod fields;
mod listing;
mod send;
mod wanted;

use std::borrow::Cow;

use evenkeel_proto::Method;
use evenkeel_proto::coding::Coding;
use evenkeel_proto::http1::write::Persistence;
use evenkeel_proto::representation::{Conditions, Precondition, Ranges};
use rustix::io::Errno;

use super::proxy::forward;
use super::{Handler, Plan, RedirectStep, RequestFacts};
use crate::config::{self, Candidate, Config};
use crate::exchange::answer::{self, Answer};
use crate::exchange::{Context, Exchange, Gone, Next, Outcome, box_cold, room};
use crate::files::{Found, Look, Missing, Refused};
use crate::metrics::end::{End, Failure};
use crate::net::tasks;
use crate::observe::access_log::Source;
use send::Sending;
use wanted::folder_location;
pub(crate) use wanted::{Try, WantedFile, fallback};

impl Handler for config::Files {
    fn handle<'a>(
        &'a self,
        route: usize,
        exchange: &mut Exchange<'a>,
    ) -> impl Future<Output = Outcome> {
        let request = FileRequest {
            route,
            settings: self,
            conditions: Conditions::of(exchange.head, exchange.bytes),
        };
        answer(request, exchange)
    }

    fn plan<'a>(&'a self, request: &RequestFacts<'a>) -> Plan<'a> {
        let RequestFacts { bytes, head, .. } = *request;
        match WantedFile::by(head, bytes, self) {
            WantedFile::ToFolder => Plan::Redirect(RedirectStep {
                status: 301,
                location: folder_location(head, bytes),
            }),
            wanted => Plan::Files(FilesPlan {
                settings: self,
                wanted,
            }),
        }
    }

    fn label(&self, _config: &Config) -> String {
        format!("files {}", self.root.display())
    }

    fn passes_on(&self) -> bool {
        true
    }
}

/// The files that a request would look for.
pub(crate) struct FilesPlan<'a> {
    pub settings: &'a config::Files,
    pub wanted: WantedFile<'a>,
}

/// The file side of a request, beside its exchange.
#[derive(Clone, Copy)]
struct FileRequest<'a> {
    /// Index of the route.
    pub route: usize,
    pub settings: &'a config::Files,
    pub conditions: Conditions,
}

impl FileRequest<'_> {
    /// Logs which file of the folder could not be read, and why; or the folder itself.
    #[cold]
    fn complain(&self, context: &Context, path: Option<&[u8]>, error: &dyn std::fmt::Display) {
        let now = context.wheel.now();
        let files = &context.generation().files;
        files.complain(self.route, path, error, now);
    }
}

/// The file that answers a request.
struct Representation<'a> {
    /// The path of the file in its folder, without the coding's ending.
    path: Cow<'a, [u8]>,
    found: Found,
    /// The coding of its bytes.
    coding: Option<Coding>,
    status: u16,
}

/// The kind of answer to a request.
enum Answering<'a> {
    /// A file.
    File(Representation<'a>),
    /// A redirect to the folder: its path lacked the slash at the end.
    ToFolder,
    /// A listing of the folder at this path.
    Listing(Vec<u8>),
    /// A refusal.
    Refused(Failure),
}

/// Answers with a file of the route's folder, or by the upstream behind it.
///
/// # Cancellation
/// Dropping the future abandons the exchange.
// Not an `async fn`, which would hold its arguments twice.
fn answer<'a>(
    request: FileRequest<'a>,
    exchange: &mut Exchange<'a>,
) -> impl Future<Output = Outcome> {
    async move {
        let mut is_second_try = false;
        loop {
            let representation = match find(&request, exchange).await {
                Answering::File(representation) => representation,
                Answering::ToFolder => {
                    return box_cold(to_folder(exchange)).await;
                }
                Answering::Listing(path) => {
                    let listing = listing::answer(&request, &path, exchange);
                    return box_cold(listing).await;
                }
                Answering::Refused(failure) => {
                    if let Some(proxying) = fallback(failure, request.settings) {
                        exchange.progress.figures.source = None;
                        return box_cold(forward(exchange, &proxying)).await;
                    }
                    return box_cold(refuse(exchange, failure)).await;
                }
            };
            let sent = send(&request, representation, !is_second_try, exchange);
            match sent.await {
                Some(outcome) => return outcome,
                None => is_second_try = true,
            }
        }
    }
}

/// Sends a file. `None`: the file has changed before anything was sent, and is to be found again,
/// where it `may_be_found_again`.
// Not an `async fn`, as `answer`.
fn send<'a>(
    request: &FileRequest<'a>,
    representation: Representation<'a>,
    may_be_found_again: bool,
    exchange: &mut Exchange<'a>,
) -> impl Future<Output = Option<Outcome>> {
    async move {
        let sending = Sending {
            request,
            path: &representation.path,
            file: &representation.found.file,
            bytes: representation.found.bytes.as_deref(),
            coding: representation.coding,
            persistence: answer::persistence(exchange),
        };
        let sent = respond(&sending, representation.status, exchange).await;
        if sent == Err(Failure::FileChanged.into()) {
            // The file was truncated after it was opened: the next request opens it again.
            sending.file.doubt();
        }
        Some(match sent {
            Err(End::Failure(failure)) if exchange.progress.figures.bytes_out == 0 => {
                if failure == Failure::FileChanged && may_be_found_again {
                    return None;
                }
                box_cold(refuse(exchange, failure)).await
            }
            sent => {
                // The log's word does not depend on the page.
                let complete = match representation.status {
                    404 => Failure::NoFile.into(),
                    _ => End::Complete,
                };
                let sent = sent.map(|()| complete);
                outcome(exchange, sending.persistence, sent)
            }
        })
    }
}

/// The outcome of the exchange after its answer.
fn outcome(exchange: &Exchange<'_>, persistence: Persistence, sent: Result<End, End>) -> Outcome {
    match sent {
        Err(end @ End::Failure(Failure::ClientGone)) => {
            Outcome::after_head(exchange, end, Next::Close)
        }
        // Abort, so that the client does not take a cut body for a whole one.
        Err(end) => Outcome::after_head(exchange, end, Next::Abort),
        Ok(end) => answer::outcome(exchange, end, persistence),
    }
}

/// Sends the answer that the request's conditions leave.
async fn respond(
    sending: &Sending<'_>,
    status: u16,
    exchange: &mut Exchange<'_>,
) -> Result<(), End> {
    let conditions = &sending.request.conditions;
    let (head, bytes) = (exchange.head, exchange.bytes);
    if let Some(coding) = sending.wanted_coding(exchange)
        && box_cold(sending.compressed(coding, status, exchange)).await?
    {
        return Ok(());
    }
    if conditions.is_plain() || status != 200 {
        return sending.whole(status, exchange).await;
    }
    let fields = sending.fields();
    let validators = fields::validators(fields);
    match conditions.precondition(bytes, &validators) {
        Precondition::Met => {}
        Precondition::NotModified => return sending.head_only(304, exchange).await,
        Precondition::Failed => return sending.head_only(412, exchange).await,
    }
    let ranges = match head.method {
        Method::Get => conditions.ranges(bytes, &validators, sending.file.id.len),
        _ => Ranges::Whole,
    };
    match ranges {
        Ranges::Whole => sending.whole(200, exchange).await,
        Ranges::Unsatisfiable => sending.head_only(416, exchange).await,
        Ranges::Some(ranges) => box_cold(sending.ranges(&ranges, exchange)).await,
    }
}

/// The file for a request.
async fn find<'a>(request: &FileRequest<'a>, exchange: &mut Exchange<'a>) -> Answering<'a> {
    let settings = request.settings;
    exchange.progress.figures.source = Some(Source::Hot);
    let path = match WantedFile::by(exchange.head, exchange.bytes, settings) {
        WantedFile::Refused(failure) => return Answering::Refused(failure),
        WantedFile::ToFolder => return Answering::ToFolder,
        WantedFile::Nothing => return box_cold(missing(request, exchange)).await,
        WantedFile::Path(path) => path,
    };
    for candidate in &settings.candidates {
        let Try::Path(path) = Try::of(candidate, path.as_ref(), settings) else {
            continue;
        };
        match open(request, exchange, path.clone()).await {
            Err(Failure::NoFile) => {}
            Err(failure) => return Answering::Refused(failure),
            Ok(Some(found)) => return Answering::File(found),
            Ok(None) => match box_cold(in_folder(request, exchange, candidate, path)).await {
                Answering::Refused(Failure::NoFile) => {}
                answering => return answering,
            },
        }
    }
    box_cold(missing(request, exchange)).await
}

/// The index file of a folder.
async fn in_folder<'a>(
    request: &FileRequest<'a>,
    exchange: &mut Exchange<'_>,
    candidate: &Candidate,
    path: Cow<'_, [u8]>,
) -> Answering<'a> {
    let settings = request.settings;
    let mut path = path.into_owned();
    let lacks_slash = !path.is_empty() && !path.ends_with(b"/");
    if lacks_slash {
        path.push(b'/');
    }
    // Relative links in the page are beneath the folder.
    let is_to_come_back = lacks_slash && candidate.is_path_alone();
    for index in &settings.index {
        let path = [&path, index.as_bytes()].concat();
        match open(request, exchange, path.into()).await {
            Err(Failure::NoFile) | Ok(None) => {}
            Err(failure) => return Answering::Refused(failure),
            Ok(Some(_)) if is_to_come_back => return Answering::ToFolder,
            Ok(Some(found)) => return Answering::File(found),
        }
    }
    match settings.is_listed {
        true if is_to_come_back => Answering::ToFolder,
        true => Answering::Listing(path),
        false => Answering::Refused(Failure::NoFile),
    }
}

/// The answer where there is no file: the configured file, or nothing.
async fn missing<'a>(request: &FileRequest<'a>, exchange: &mut Exchange<'_>) -> Answering<'a> {
    let settings = request.settings;
    if let (Some(path), None) = (&settings.not_found, &settings.fallback) {
        let path = path.trim_start_matches('/').as_bytes();
        match open(request, exchange, path.into()).await {
            Ok(Some(mut found)) => {
                found.status = 404;
                return Answering::File(found);
            }
            Err(
                failure @ (Failure::ClientGone
                | Failure::DiskTimeout
                | Failure::Stopped
                | Failure::GenerationTimeout),
            ) => {
                return Answering::Refused(failure);
            }
            Ok(None) | Err(_) => {}
        }
    }
    Answering::Refused(Failure::NoFile)
}

/// Opens `path` in the coding that suits the client best; `None` is a folder.
// Not an `async fn`, as `answer`.
fn open<'a>(
    request: &FileRequest<'a>,
    exchange: &mut Exchange<'_>,
    path: Cow<'a, [u8]>,
) -> impl Future<Output = Result<Option<Representation<'a>>, Failure>> {
    async move {
        let settings = request.settings;
        if !settings.precompressed.is_empty() && request.conditions.has_accept_encoding() {
            let compressed = open_compressed(request, exchange, &path);
            if let Some((found, coding)) = box_cold(compressed).await? {
                return Ok(Some(Representation {
                    path,
                    found,
                    coding: Some(coding),
                    status: 200,
                }));
            }
        }
        let found = open_file(request, exchange, 0, &path).await?;
        Ok(found.map(|found| Representation {
            path,
            found,
            coding: None,
            status: 200,
        }))
    }
}

/// Opens the compressed file beside `path` in the coding that suits the client best.
async fn open_compressed(
    request: &FileRequest<'_>,
    exchange: &mut Exchange<'_>,
    path: &[u8],
) -> Result<Option<(Found, Coding)>, Failure> {
    if path.is_empty() || path.ends_with(b"/") {
        return Ok(None);
    }
    let mut offered = request.settings.precompressed.clone();
    while let Some(coding) = request.conditions.coding(exchange.bytes, &offered) {
        let sibling = [path, coding.ending().as_bytes()].concat();
        match open_file(request, exchange, 1 + coding as u8, &sibling).await {
            Ok(Some(found)) => return Ok(Some((found, coding))),
            // The plain file may still be readable.
            Ok(None) | Err(Failure::NoFile | Failure::FileForbidden | Failure::FileFailed) => {}
            Err(failure) => return Err(failure),
        }
        offered.retain(|it| *it != coding);
    }
    Ok(None)
}

/// Opens a file, from memory or through the disk; `None` is a folder.
async fn open_file(
    request: &FileRequest<'_>,
    exchange: &mut Exchange<'_>,
    variant: u8,
    path: &[u8],
) -> Result<Option<Found>, Failure> {
    let (context, route) = (exchange.context, request.route);
    let mut found = Err(Missing::NoDescriptor);
    for _ in 0..room::TRIES {
        found = match context
            .generation()
            .files
            .look(route, variant, path, context.wheel.now())
        {
            Look::Known(found) => found,
            Look::Cold => {
                let fetching = context.generation().files.fetch(route, variant, path);
                box_cold(from_disk(exchange, fetching)).await?
            }
        };
        let is_lacking = matches!(found, Err(Missing::NoDescriptor));
        if !is_lacking || !box_cold(room::make_for_exchange(context)).await {
            break;
        }
    }
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Missing::Folder) => Ok(None),
        Err(missing) => Err(failure_of(request, context, path, missing)),
    }
}

/// Wake-ups for which a request that waited for the disk yields to requests that did not: for the
/// disk's answer, and for the next request, which will likely wait too.
const COLD_WAKES: u8 = 2;

/// Waits for the disk, while the client stays.
async fn from_disk<T>(
    exchange: &mut Exchange<'_>,
    fetching: impl Future<Output = Result<T, Refused>>,
) -> Result<T, Failure> {
    exchange.progress.figures.source = Some(Source::Cold);
    exchange.set_timeout(exchange.listener().timeouts.body);
    tasks::deprioritise(COLD_WAKES);
    match exchange.while_client_stays(fetching).await {
        Ok(Ok(fetched)) => Ok(fetched),
        Ok(Err(Refused)) => Err(Failure::DiskBusy),
        Err(Gone::Client) => Err(Failure::ClientGone),
        Err(Gone::TimedOut) => Err(exchange.timed_out(Failure::DiskTimeout)),
    }
}

/// Why files are not opened by a call that is older or not allowed.
const NO_OPENAT2: &str = "the system call openat2 is missing: it needs Linux 5.6, and a systemd \
                          unit without RestrictSUIDSGID=";

fn failure_of(
    request: &FileRequest<'_>,
    context: &Context,
    path: &[u8],
    missing: Missing,
) -> Failure {
    match missing {
        Missing::Absent | Missing::Folder => Failure::NoFile,
        Missing::Forbidden(barrier) => {
            request.complain(context, Some(path), &barrier);
            Failure::FileForbidden
        }
        Missing::NoDescriptor => Failure::NoDescriptor,
        Missing::NoMemory => Failure::AnswerMemory,
        Missing::NoRoot(error) => {
            request.complain(context, None, &std::io::Error::from(error));
            Failure::FileFailed
        }
        Missing::Failed(Errno::NOSYS) => {
            request.complain(context, Some(path), &NO_OPENAT2);
            Failure::FileFailed
        }
        Missing::Failed(error) => {
            request.complain(context, Some(path), &std::io::Error::from(error));
            Failure::FileFailed
        }
    }
}

/// Redirects the client to the same path with a slash at its end.
async fn to_folder(exchange: &mut Exchange<'_>) -> Outcome {
    let location = folder_location(exchange.head, exchange.bytes);
    let answer = Answer {
        status: 301,
        location: Some(&location),
        ..Answer::EMPTY
    };
    super::respond(exchange, &answer).await
}

async fn refuse(exchange: &mut Exchange<'_>, failure: Failure) -> Outcome {
    // The answer comes from neither memory nor disk.
    exchange.progress.figures.source = None;
    super::refuse(exchange, failure).await
}
