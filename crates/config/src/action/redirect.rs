//! Redirects.

use super::super::diagnostics::Report;
use super::super::location::{is_of_variable, unknown_words, value_named};
use super::super::written::{self, RedirectTable};
use super::super::{Location, Redirect};
use super::{ActionContext, WrittenAction};

impl WrittenAction for written::Redirect {
    type Action = Box<Redirect>;

    fn check(&self, _: &written::Route, report: &mut Report) {
        check(&self.0, report);
    }

    fn resolve(&self, _: ActionContext<'_>, _: &mut Report) -> Option<Box<Redirect>> {
        Some(Box::new(Redirect {
            status: self.0.status.value.as_ref()?.value.get(),
            location: Location::new(&self.0.to.value.as_ref()?.value.0),
        }))
    }
}

fn check(redirect: &RedirectTable, report: &mut Report) {
    if let Some(status) = &redirect.status.value
        && let code @ 304..=306 = status.value.get()
    {
        report
            .mistake(
                &status.place,
                format!("{code} is not the status of a redirect"),
            )
            .help("use 301, 302, 303, 307 or 308");
    }
    let Some(to) = &redirect.to.value else { return };
    if Location::new(&to.value.0).may_lead_anywhere() {
        report
            .mistake(
                &to.place,
                "the host of this redirect comes from the client's request, so anyone can choose \
                it",
            )
            .help(
                "end the host with a fixed domain, as in https://{capture:tenant}.example.com/, \
                or write `$host`",
            );
    }
    if let Some(meant) = with_scheme(&to.value.0) {
        report
            .warning(
                &to.place,
                format!("`{}` is a path, not the URL of a host", to.value.0),
            )
            .help(format!("did you mean `{meant}`?"));
    }
    let words = unknown_variables(&to.value.0);
    if let Some(meant) = with_variables(&to.value.0).filter(|_| !words.is_empty()) {
        report
            .warning(
                &to.place,
                match &words[..] {
                    [only] => format!("{only} is not a variable, so it is sent as it is"),
                    all => format!(
                        "{} are not variables, so they are sent as they are",
                        all.join(" and ")
                    ),
                },
            )
            .help(format!("did you mean \"{meant}\"?"));
        return;
    }
    for word in words {
        report
            .warning(
                &to.place,
                format!("{word} is not a variable, so it is sent as it is"),
            )
            .help(
                "variables are `$scheme`, `$host`, `$path` and `$query`, and names in braces, \
                such as `{query:page}`",
            );
    }
}

/// The variables of other programs in a redirect, in marks of code: `$request_uri`
/// and `{uri}`.
fn unknown_variables(to: &str) -> Vec<String> {
    let words = unknown_words(to).map(|it| format!("`${it}`"));
    let mut words: Vec<_> = words.collect();
    let braces = to.match_indices('{').map(|(at, _)| &to[at..]);
    let names = braces.filter_map(|it| Some(&it[..=it.find('}')?]));
    let is_name = |it: &&str| it.len() > 2 && it[1..it.len() - 1].chars().all(is_in_braces);
    let is_unknown = |it: &&str| value_named(&it[1..it.len() - 1]).is_none();
    let unknown = names.filter(is_name).filter(is_unknown);
    words.extend(unknown.map(|it| format!("`{it}`")));
    words
}

fn is_in_braces(letter: char) -> bool {
    is_of_variable(letter) || letter == '.'
}

/// The redirect with variables of this program, if each variable in it has one.
fn with_variables(to: &str) -> Option<String> {
    /// Of nginx and Caddy, the longest first.
    const MEANT: [(&str, &str); 18] = [
        ("${host}", "$host"),
        ("${path}", "$path"),
        ("$request_uri", "$path$query"),
        ("$document_uri", "$path"),
        ("$server_name", "$host"),
        ("$http_host", "$host"),
        ("$is_args$args", "$query"),
        ("$uri", "$path"),
        ("{http.request.uri.path}", "$path"),
        ("{http.request.uri}", "$path$query"),
        ("{http.request.host}", "$host"),
        ("{http.request.scheme}", "$scheme"),
        ("{request_uri}", "$path$query"),
        ("{hostport}", "$host"),
        ("{scheme}", "$scheme"),
        ("{host}", "$host"),
        ("{path}", "$path"),
        ("{uri}", "$path$query"),
    ];
    let replaced = MEANT.iter().fold(to.to_owned(), |text, (theirs, ours)| {
        text.replace(theirs, ours)
    });
    unknown_variables(&replaced).is_empty().then_some(replaced)
}

/// The URL that a redirect was probably meant to lead to, if it names a host without
/// a scheme.
fn with_scheme(to: &str) -> Option<String> {
    /// Ends of names of files that could be taken for those of hosts.
    const FILES: [&str; 30] = [
        "asp", "aspx", "cgi", "css", "csv", "gif", "gz", "htm", "html", "ico", "jpeg", "jpg", "js",
        "json", "jsp", "md", "mp3", "mp4", "pdf", "php", "png", "svg", "tar", "tgz", "txt", "webm",
        "webp", "xml", "xz", "zip",
    ];
    // These begin with `/` and `?`.
    if ["$path", "$query", "{"].iter().any(|it| to.starts_with(it)) {
        return None;
    }
    for scheme in ["https:", "http:"] {
        if let Some(rest) = to.strip_prefix(scheme) {
            let is_broken = !rest.starts_with("//");
            return is_broken.then(|| format!("{scheme}//{}", rest.trim_start_matches('/')));
        }
    }
    let first = to.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = first.split_once(':').unwrap_or((first, ""));
    let is_host = match host.rsplit_once('.') {
        Some((name, end)) => {
            let is_label = |it: u8| it.is_ascii_alphanumeric() || b"-._$".contains(&it);
            let is_end = end.len() > 1 && end.bytes().all(|it| it.is_ascii_alphabetic());
            let is_address = host.parse::<std::net::Ipv4Addr>().is_ok();
            let is_file = FILES.contains(&end.to_ascii_lowercase().as_str());
            !name.is_empty() && name.bytes().all(is_label) && (is_end && !is_file || is_address)
        }
        None => host == "localhost" || host.starts_with("$host"),
    };
    let port = port.split('$').next().unwrap_or_default();
    let is_port = port.bytes().all(|it| it.is_ascii_digit());
    (is_host && is_port).then(|| format!("https://{to}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_without_a_scheme() {
        for (to, meant) in [
            ("www.example.com", Some("https://www.example.com")),
            ("www.example.com/a?b", Some("https://www.example.com/a?b")),
            ("example.com:8443/", Some("https://example.com:8443/")),
            (
                "example.com:8443$path",
                Some("https://example.com:8443$path"),
            ),
            ("10.0.0.1/x", Some("https://10.0.0.1/x")),
            ("localhost:8080", Some("https://localhost:8080")),
            ("$host$path", Some("https://$host$path")),
            ("$host/new$path", Some("https://$host/new$path")),
            ("https:/example.com", Some("https://example.com")),
            ("http:example.com/a", Some("http://example.com/a")),
            ("https://example.com", None),
            ("//example.com/", None),
            ("/new", None),
            ("new.html", None),
            ("manual.zip", None),
            ("$path.md", None),
            ("$query.md", None),
            ("login", None),
            ("../a.b", None),
            ("?a=b.c", None),
            ("mailto:me@example.com", None),
        ] {
            assert_eq!(with_scheme(to).as_deref(), meant, "{to}");
        }
    }
}
