//! Listings of folders, as pages for people.

use std::fmt::Write;
use std::sync::Arc;

use evenkeel_proto::{Method, file_path};
use rustix::rand::{GetRandomFlags, getrandom};

use super::send::{follow_before, put_slices};
use super::{FileRequest, failure_of, from_disk, outcome, refuse};
use crate::exchange::answer::{self, begin_head, end_head, put};
use crate::exchange::{Context, Exchange, Outcome, box_cold, room};
use crate::files::{Contents, FolderEntry, HeldPage, Kind, MAX_ENTRIES, Missing, Page};
use crate::metrics::end::{End, Failure};
use crate::observe::calendar::Moment;

const STYLE: &str = include_str!("listing.css");

/// The place of a folder, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListingPlace {
    /// The decoded path, without its leading slash. It ends in a slash unless it is empty.
    path: Vec<u8>,
    /// Length of the part for the route's folder.
    root_len: usize,
}

/// Answers with a listing of the folder at `path` beneath the root.
///
/// # Cancellation
/// Dropping the future abandons the exchange.
pub(super) async fn answer(
    request: &FileRequest<'_>,
    path: &[u8],
    exchange: &mut Exchange<'_>,
) -> Outcome {
    let page = match make_with_room(request, path, exchange).await {
        Ok(page) => page,
        Err(failure) => return refuse(exchange, failure).await,
    };
    let (context, head) = (exchange.context, exchange.head);
    let persistence = answer::persistence(exchange);
    let mut out = Vec::with_capacity(1024);
    exchange.progress.figures.status = 200;
    begin_head(&mut out, context, 200, exchange.progress.arrived());
    let lines = format!(
        "Content-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'nonce-{}'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'\r\n",
        page.html.len(),
        page.nonce
    );
    out.extend_from_slice(lines.as_bytes());
    end_head(&mut out, exchange, persistence);
    let html = match head.method {
        Method::Head => &[],
        _ => &page.html[..],
    };
    let follow = follow_before(html.len(), exchange, persistence);
    let sent = match put(exchange, &out, out.len(), follow).await {
        Ok(()) => put_slices(exchange, html, persistence).await,
        Err(failure) => Err(failure),
    };
    let sent = sent.map(|()| End::Complete).map_err(End::Failure);
    outcome(exchange, persistence, sent)
}

/// Makes the page. Makes room where there is no free descriptor.
async fn make_with_room(
    request: &FileRequest<'_>,
    path: &[u8],
    exchange: &mut Exchange<'_>,
) -> Result<Arc<HeldPage>, Failure> {
    for _ in 1..room::TRIES {
        let made = make(request, path, exchange).await?;
        let is_lacking = matches!(made, Err(Missing::NoDescriptor));
        if !is_lacking || !box_cold(room::make_for_exchange(exchange.context)).await {
            return made.map_err(|missing| reason(request, exchange.context, path, missing));
        }
    }
    let made = make(request, path, exchange).await?;
    made.map_err(|missing| reason(request, exchange.context, path, missing))
}

fn reason(request: &FileRequest<'_>, context: &Context, path: &[u8], missing: Missing) -> Failure {
    match missing {
        Missing::Folder => Failure::NoFile,
        missing => failure_of(request, context, path, missing),
    }
}

/// Has a thread of the disk read the folder and write the page.
async fn make(
    request: &FileRequest<'_>,
    path: &[u8],
    exchange: &mut Exchange<'_>,
) -> Result<Result<Arc<HeldPage>, Missing>, Failure> {
    let FileRequest {
        route, settings, ..
    } = *request;
    let asked = exchange.head.path(exchange.bytes);
    let decoded = file_path::decode(asked).map_err(|_| Failure::BadPath)?;
    let strip = settings.strip.trim_start_matches('/');
    let place = ListingPlace {
        root_len: match strip {
            "" => 0,
            strip => strip.len() + 1,
        },
        path: decoded.into_owned(),
    };
    let shown = place.path.clone().into();
    let write = move |contents: &Contents, nonce: Option<&str>| match nonce {
        Some(nonce) => Ok(page(&place, contents, nonce)),
        None => Ok(page(&place, contents, &new_nonce()?)),
    };
    let listing =
        exchange
            .context
            .generation()
            .files
            .list(route, path, shown, settings.shows_hidden, write);
    from_disk(exchange, listing).await
}

/// A new nonce for a page's style. Clients that get the same page get the same nonce.
///
/// # Errors
/// The system gives no random bytes.
fn new_nonce() -> Result<String, Missing> {
    let mut random = [0_u8; 16];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(Missing::Failed)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

/// Writes the page.
fn page(place: &ListingPlace, contents: &Contents, nonce: &str) -> Page {
    let mut out = String::with_capacity(4096 + contents.entries.len() * 200);
    out.push_str(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>/",
    );
    push_text(&mut out, &place.path);
    let _ = write!(
        out,
        "</title>\n<style nonce=\"{nonce}\">\n{STYLE}</style>\n</head>\n<body>\n{SYMBOLS}"
    );
    push_crumbs(&mut out, place);
    push_table(&mut out, place, contents);
    push_summary(&mut out, contents);
    out.push_str("</body>\n</html>\n");
    Page {
        nonce: nonce.into(),
        html: out.into_bytes(),
    }
}

/// An icon that is defined once and used by every row.
const SYMBOLS: &str = "<svg class=\"symbols\" aria-hidden=\"true\">\
    <symbol id=\"d\" viewBox=\"0 0 16 16\"><path d=\"M1 3.5A1.5 1.5 0 0 1 2.5 2h3.2l1.8 2h6A1.5 1.5 0 0 1 15 5.5v7a1.5 1.5 0 0 1-1.5 1.5h-11A1.5 1.5 0 0 1 1 12.5z\"/></symbol>\
    <symbol id=\"f\" viewBox=\"0 0 16 16\"><path d=\"M3 1.5h6.5L13 5v9.5H3zM9.5 1.5V5H13\"/></symbol>\
    <symbol id=\"u\" viewBox=\"0 0 16 16\"><path d=\"M8 14V3M3.5 7.5 8 3l4.5 4.5\"/></symbol>\
    </svg>\n";

/// The path, with a link for each folder in it.
fn push_crumbs(out: &mut String, place: &ListingPlace) {
    out.push_str("<h1>");
    let path = place.path.as_slice();
    let (root, below) = path.split_at(place.root_len.min(path.len()));
    let root = [b"/", root.strip_suffix(b"/").unwrap_or(root)].concat();
    let mut end = path.len() - below.len();
    push_crumb(out, path, end, &root);
    for name in below.split_inclusive(|&byte| byte == b'/') {
        // The root has a slash of its own.
        if end > 0 {
            out.push_str("<i>/</i>");
        }
        end += name.len();
        push_crumb(out, path, end, name.strip_suffix(b"/").unwrap_or(name));
    }
    out.push_str("</h1>\n");
}

/// The folders of the path that ends at `end`; all but the last are links.
fn push_crumb(out: &mut String, path: &[u8], end: usize, name: &[u8]) {
    if end == path.len() {
        out.push_str("<span class=\"here\">");
        push_name(out, name);
        out.push_str("</span>");
    } else {
        out.push_str("<a href=\"/");
        push_link(out, &path[..end]);
        out.push_str("\">");
        push_name(out, name);
        out.push_str("</a>");
    }
}

fn push_table(out: &mut String, place: &ListingPlace, contents: &Contents) {
    out.push_str(
        "<table>\n<thead><tr><th scope=\"col\">Name</th><th scope=\"col\" class=\"len\">Size</th>\
         <th scope=\"col\" class=\"at\">Modified<i> (UTC)</i></th></tr></thead>\n<tbody>\n",
    );
    if place.path.len() > place.root_len {
        let parent = parent(&place.path);
        out.push_str("<tr><td colspan=\"3\"><a href=\"/");
        push_link(out, parent);
        out.push_str(
            "\"><svg aria-hidden=\"true\"><use href=\"#u\"/></svg>Parent folder</a></td></tr>\n",
        );
    }
    for entry in &contents.entries {
        push_row(out, entry);
    }
    out.push_str("</tbody>\n</table>\n");
}

/// The folder that a folder is in.
fn parent(path: &[u8]) -> &[u8] {
    let name = path.strip_suffix(b"/").unwrap_or(path);
    let len = memchr::memrchr(b'/', name).map_or(0, |slash| slash + 1);
    &path[..len]
}

fn push_row(out: &mut String, entry: &FolderEntry) {
    out.push_str("<tr><td><a href=\"");
    push_link(out, &entry.name);
    match entry.kind {
        Kind::Folder => {
            out.push_str("/\"><svg class=\"folder\" aria-hidden=\"true\"><use href=\"#d\"/></svg>");
            push_name(out, &entry.name);
            out.push_str("</a></td><td class=\"len\"></td>");
        }
        Kind::File { len } => {
            out.push_str("\"><svg aria-hidden=\"true\"><use href=\"#f\"/></svg>");
            push_name(out, &entry.name);
            let size = human_size(len);
            let _ = write!(
                out,
                "</a></td><td class=\"len\" title=\"{len} bytes\">{size}</td>"
            );
        }
    }
    let Some(modified) = entry.modified else {
        out.push_str("<td class=\"at\"></td></tr>\n");
        return;
    };
    let at = Moment::from_unix(modified).rfc3339();
    let (date, clock) = at.split_once('T').unwrap_or((&at, ""));
    let clock = clock.get(..5).unwrap_or_default();
    let _ = writeln!(
        out,
        "<td class=\"at\"><time datetime=\"{at}Z\">{date}<i> {clock}</i></time></td></tr>"
    );
}

fn push_summary(out: &mut String, contents: &Contents) {
    let (mut folders, mut files, mut len_sum) = (0, 0, 0_u64);
    for entry in &contents.entries {
        match entry.kind {
            Kind::Folder => folders += 1,
            Kind::File { len } => {
                files += 1;
                len_sum = len_sum.saturating_add(len);
            }
        }
    }
    let (folder_s, file_s) = (plural(folders), plural(files));
    let size = human_size(len_sum);
    let summary = match (folders, files) {
        (0, 0) => "This folder is empty.".to_owned(),
        (0, _) => format!("{files} file{file_s}, {size}"),
        (_, 0) => format!("{folders} folder{folder_s}"),
        _ => format!("{folders} folder{folder_s}, {files} file{file_s}, {size}"),
    };
    let _ = writeln!(out, "<p>{summary}</p>");
    if !contents.is_all {
        let _ = writeln!(
            out,
            "<p><strong>This folder has more entries: only the first {MAX_ENTRIES} are \
             listed.</strong></p>"
        );
    }
}

fn plural(count: usize) -> &'static str {
    match count {
        1 => "",
        _ => "s",
    }
}

/// A few digits, and a unit.
fn human_size(len: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if len < 1024 {
        return format!("{len} B");
    }
    let mut size = len as f64 / 1024.0;
    let mut unit = 0;
    // 999.5 is shown with four digits.
    while size >= 999.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if size < 9.95 {
        format!("{size:.1} {}", UNITS[unit])
    } else {
        format!("{size:.0} {}", UNITS[unit])
    }
}

/// Writes a name with its own text direction, so that a name in Hebrew turns no other around.
fn push_name(out: &mut String, name: &[u8]) {
    out.push_str("<bdi>");
    push_text(out, name);
    out.push_str("</bdi>");
}

/// Writes text for HTML. Characters that can't be shown become U+FFFD.
fn push_text(out: &mut String, text: &[u8]) {
    for letter in String::from_utf8_lossy(text).chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter if letter.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            letter => out.push(letter),
        }
    }
}

/// Writes a path for a link. Only unreserved characters stay unescaped (RFC 3986 §2.3), so that a
/// name with a colon is not a scheme.
fn push_link(out: &mut String, path: &[u8]) {
    for &byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(path: &[u8]) -> String {
        let mut out = String::new();
        push_link(&mut out, path);
        out
    }

    fn html(place: &ListingPlace, contents: &Contents) -> String {
        let page = page(place, contents, "nonce");
        String::from_utf8(page.html).expect("UTF-8")
    }

    fn file(name: &[u8], len: u64) -> FolderEntry {
        FolderEntry {
            name: name.into(),
            kind: Kind::File { len },
            modified: Some(951_782_399),
        }
    }

    #[test]
    fn links_lead_back_to_the_name() {
        for (name, expected) in [
            (&b"a-b_c~1.txt"[..], "a-b_c~1.txt"),
            (b"a b", "a%20b"),
            (b"100%", "100%25"),
            (b"a?b#c", "a%3Fb%23c"),
            (b"\"<'>&", "%22%3C%27%3E%26"),
            (b"javascript:alert(1)", "javascript%3Aalert%281%29"),
            (b"\\..\n", "%5C..%0A"),
            ("caf\u{e9}".as_bytes(), "caf%C3%A9"),
            (b"\xff\xfe", "%FF%FE"),
        ] {
            let link = linked(name);
            assert_eq!(link, expected);
            let path = format!("/{link}");
            let decoded = file_path::decode(path.as_bytes());
            assert_eq!(decoded.as_deref(), Ok(name), "{link}");
        }
    }

    #[test]
    fn names_are_text_and_nothing_else() {
        let place = ListingPlace {
            path: b"<b>/\"x\"/".to_vec(),
            root_len: 0,
        };
        let contents = Contents {
            entries: vec![
                file(b"<script>alert(1)</script>", 1),
                file(b"\"onload=\"x", 2),
                file(b"\xff\x1b", 3),
            ],
            is_all: true,
        };
        let html = html(&place, &contents);
        for unsafe_text in ["<script>", "\"onload", "<b>", "\u{1b}"] {
            assert!(!html.contains(unsafe_text), "{unsafe_text:?} in {html}");
        }
        assert!(html.contains("<bdi>&lt;script&gt;alert(1)&lt;/script&gt;</bdi>"));
        assert!(html.contains("<bdi>\u{fffd}\u{fffd}</bdi>"));
        assert!(html.contains("<title>/&lt;b&gt;/&quot;x&quot;/</title>"));
        assert!(html.contains("<time datetime=\"2000-02-28T23:59:59Z\">2000-02-28<i> 23:59</i>"));
    }

    #[test]
    fn crumbs_lead_to_every_folder_down_from_the_root() {
        for (path, root_len, expected) in [
            ("", 0, "<h1><span class=\"here\"><bdi>/</bdi></span></h1>\n"),
            (
                "a b/",
                0,
                "<h1><a href=\"/\"><bdi>/</bdi></a><span class=\"here\"><bdi>a b</bdi></span></h1>\n",
            ),
            (
                "img/",
                4,
                "<h1><span class=\"here\"><bdi>/img</bdi></span></h1>\n",
            ),
            (
                "img/2007/may/",
                4,
                "<h1><a href=\"/img/\"><bdi>/img</bdi></a><i>/</i>\
                 <a href=\"/img/2007/\"><bdi>2007</bdi></a><i>/</i>\
                 <span class=\"here\"><bdi>may</bdi></span></h1>\n",
            ),
        ] {
            let place = ListingPlace {
                path: path.into(),
                root_len,
            };
            let mut out = String::new();
            push_crumbs(&mut out, &place);
            assert_eq!(out, expected, "{path}");
        }
        for (path, expected) in [("a/", ""), ("a/b/", "a/"), ("a/b/c/", "a/b/")] {
            assert_eq!(parent(path.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn sizes_are_short() {
        for (len, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4608, "4.5 KiB"),
            (10_188, "9.9 KiB"),
            (10_240, "10 KiB"),
            (1_023_000, "999 KiB"),
            (1_023_900, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(human_size(len), expected, "{len}");
        }
    }

    #[test]
    fn says_what_is_not_listed() {
        let place = ListingPlace {
            path: Vec::new(),
            root_len: 0,
        };
        let mut contents = Contents {
            entries: Vec::new(),
            is_all: true,
        };
        assert!(html(&place, &contents).contains("This folder is empty."));
        contents.entries.push(file(b"a", 1));
        assert!(html(&place, &contents).contains("<p>1 file, 1 B</p>"));
        contents.is_all = false;
        assert!(html(&place, &contents).contains("only the first 10000 are listed"));
    }
}
