//! Configurations that a call alone makes: `evenkeel proxy`, `evenkeel files` and
//! `evenkeel init`.
//!
//! Each is a commented text. `--print-config` shows it, `init` writes it to a file, and the
//! program runs it as it would a file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;

/// The shape of `evenkeel proxy`.
#[derive(Debug, Default, Args)]
pub struct ProxyOptions {
    /// Its listener.
    #[command(flatten)]
    pub front: FrontOptions,
    /// Send requests to this endpoint; may be repeated
    #[arg(long, required = true, value_name = "ADDRESS")]
    pub to: Vec<String>,
    /// Check the health of endpoints with this path
    #[arg(long, value_name = "PATH")]
    pub health: Option<String>,
    /// Store responses that allow it, and serve them again
    #[arg(long)]
    pub cache: bool,
    /// Compress responses
    #[arg(long)]
    pub compress: bool,
}

/// The shape of `evenkeel files`.
#[derive(Debug, Default, Args)]
pub struct FilesOptions {
    /// The folder to serve
    #[arg(default_value = ".")]
    pub folder: PathBuf,
    /// Its listener.
    #[command(flatten)]
    pub front: FrontOptions,
    /// Serve /index.html for paths without a file
    #[arg(long)]
    pub single_page_app: bool,
    /// Compress files
    #[arg(long)]
    pub compress: bool,
    /// List the contents of folders
    #[arg(long)]
    pub browse: bool,
}

/// The shape of `evenkeel init`.
#[derive(Debug, Default, Args)]
pub struct InitOptions {
    /// The file to write
    #[arg(default_value = "evenkeel.toml", value_name = "FILE")]
    pub file: PathBuf,
    /// Send requests to this endpoint; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub to: Vec<String>,
    /// Serve the files of this folder
    #[arg(long, conflicts_with_all = ["to", "health", "cache"], value_name = "FOLDER")]
    pub files: Option<PathBuf>,
    /// Its listener.
    #[command(flatten)]
    pub front: FrontOptions,
    /// Check the health of endpoints with this path
    #[arg(long, requires = "to", value_name = "PATH")]
    pub health: Option<String>,
    /// Store responses that allow it, and serve them again
    #[arg(long, requires = "to")]
    pub cache: bool,
    /// Serve /index.html for paths without a file
    #[arg(long, requires = "files", conflicts_with = "to")]
    pub single_page_app: bool,
    /// Compress responses
    #[arg(long)]
    pub compress: bool,
    /// Replace the file if there is one
    #[arg(long)]
    pub force: bool,
}

/// The side of the clients.
#[derive(Debug, Clone, Default, Args)]
pub struct FrontOptions {
    /// Where to listen [default: :8080, or :443 with HTTPS]
    #[arg(short, long, visible_alias = "from", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Answer only requests to this host; may be repeated
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Serve HTTPS with a certificate from Let's Encrypt; EMAIL is the contact address
    #[arg(long, requires = "host", conflicts_with = "tls", value_name = "EMAIL")]
    pub acme: Option<String>,
    /// Serve HTTPS with the certificate in this PEM file
    #[arg(long, value_name = "CHAIN")]
    pub tls: Option<PathBuf>,
    /// The key of the certificate, unless its file has it too
    #[arg(long, requires = "tls", value_name = "KEY")]
    pub key: Option<PathBuf>,
}

impl FrontOptions {
    /// Whether it serves HTTPS.
    pub fn is_encrypted(&self) -> bool {
        self.acme.is_some() || self.tls.is_some()
    }
}

/// A configuration that a call stands for.
#[derive(Debug)]
pub struct OneLine {
    /// The configuration.
    pub text: String,
    /// A sentence on its work.
    pub introduction: String,
}

/// A configuration that passes requests on.
pub fn proxy(options: &ProxyOptions) -> OneLine {
    let front = Front::of(&options.front);
    let mut text = front.listeners();
    front.push_route(&mut text);
    text.push_str("upstream = \"app\"\n");
    if options.cache {
        text.push_str("cache = true       # store responses that allow it\n");
    }
    if options.compress {
        text.push_str("compress = true    # responses, for clients that accept it\n");
    }
    text.push_str("\n# The servers of the application.\n[upstream.app]\n");
    if let Some(path) = &options.health {
        text.push_str(
            "# Probe each server with this path; a server that fails gets no requests.\n",
        );
        let _ = writeln!(text, "health = {{ path = {} }}", quoted(path));
    }
    let endpoints: Vec<_> = options.to.iter().map(|it| quoted(it)).collect();
    let _ = writeln!(text, "endpoints = [{}]", endpoints.join(", "));
    let introduction = format!(
        "requests to {} go to {}",
        front.url(),
        enumerated(&options.to)
    );
    OneLine { text, introduction }
}

/// A configuration that answers from a folder.
///
/// # Errors
/// A sentence: there is no such folder.
pub fn files(options: &FilesOptions) -> Result<OneLine, String> {
    let folder = folder(&options.folder)?;
    let front = Front::of(&options.front);
    let mut text = front.listeners();
    front.push_route(&mut text);
    text.push_str("\n[route.files]\n");
    let _ = writeln!(text, "root = {}", quoted(&folder));
    if options.single_page_app {
        text.push_str("try = [\"$path\", \"/index.html\"]    # one page for every path\n");
    }
    if options.compress {
        text.push_str("compress = true    # files, for clients that accept it\n");
    }
    if options.browse {
        text.push_str(
            "listing = true     # show the names of files where there is no index.html\n",
        );
    }
    let introduction = format!("{} serves the files of {folder}", front.url());
    Ok(OneLine { text, introduction })
}

/// The whole path of a folder that is to be served.
fn folder(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let found = std::fs::metadata(path)
        .map_err(|error| format!("the folder {shown} can't be served: {error}"))?;
    if !found.is_dir() {
        return Err(format!(
            "{shown} is not a folder: name the folder that contains it"
        ));
    }
    if path.to_str().is_none() {
        return Err(format!("the path of {shown} is not valid UTF-8"));
    }
    Ok(whole(path))
}

/// The path from the root. A link in it stays: it may lead to another version tomorrow.
fn whole(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // Without a `/` at its end.
    let whole: PathBuf = whole.components().collect();
    whole.to_string_lossy().into_owned()
}

/// The side of the clients.
struct Front<'a> {
    options: &'a FrontOptions,
    bind: String,
}

impl<'a> Front<'a> {
    fn of(options: &'a FrontOptions) -> Self {
        let default = if options.is_encrypted() {
            ":443"
        } else {
            ":8080"
        };
        Front {
            options,
            bind: options.listen.clone().unwrap_or_else(|| default.to_owned()),
        }
    }

    /// The tables of the listeners.
    fn listeners(&self) -> String {
        let mut text = "# Where clients connect.\n[[listener]]\n".to_owned();
        let _ = writeln!(text, "bind = {}", quoted(&self.bind));
        if let Some(contact) = &self.options.acme {
            text.push_str("# Certificates from Let's Encrypt, for the hosts of the routes.\n");
            let _ = writeln!(text, "tls = {{ acme = {} }}", quoted(contact));
        } else if let Some(chain) = &self.options.tls {
            let key = self.options.key.as_deref();
            let key = key.map(|it| format!(", key = {}", quoted(&whole(it))));
            let key = key.unwrap_or_default();
            let chain = quoted(&whole(chain));
            let _ = writeln!(
                text,
                "tls = {{ certificates = [{{ chain = {chain}{key} }}] }}"
            );
        }
        text.push('\n');
        // An authority asks for its proof there, and people do not write `https`.
        if self.options.is_encrypted() && self.bind == ":443" {
            text.push_str("# Redirects plain HTTP to HTTPS.\n");
            text.push_str("[[listener]]\nbind = \":80\"\nredirect_to_https = true\n\n");
        }
        text
    }

    /// The head of the route, with its condition if it has one.
    fn push_route(&self, text: &mut String) {
        text.push_str("# The first route that matches a request is used.\n[[route]]\n");
        let hosts: Vec<_> = self.options.host.iter().map(|it| quoted(it)).collect();
        if !hosts.is_empty() {
            let _ = writeln!(text, "match = {{ host = [{}] }}", hosts.join(", "));
        }
    }

    /// The address for a browser.
    fn url(&self) -> String {
        let scheme = if self.options.is_encrypted() {
            "https"
        } else {
            "http"
        };
        if self.bind.starts_with("unix:") {
            return self.bind.clone();
        }
        let (host, port) = self.bind.rsplit_once(':').unwrap_or(("", &self.bind));
        let host = match (self.options.host.first(), host) {
            (Some(name), _) => name,
            (None, "" | "*" | "0.0.0.0" | "[::]") => "localhost",
            (None, host) => host,
        };
        match (scheme, port) {
            ("http", "80") | ("https", "443") => format!("{scheme}://{host}"),
            _ => format!("{scheme}://{host}:{port}"),
        }
    }
}

/// A string of TOML.
pub fn quoted(text: &str) -> String {
    // Its strings are as those of JSON are, but for DEL.
    serde_json::json!(text)
        .to_string()
        .replace('\u{7f}', "\\u007f")
}

/// `a`, `a or b`, `a, b or c`.
fn enumerated(names: &[String]) -> String {
    match names {
        [rest @ .., end] if !rest.is_empty() => format!("{} or {end}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel::config::{self, Colour, NameLookup};

    use super::*;

    /// Loads a text that has to be right.
    #[track_caller]
    fn load(text: &str) -> config::Config {
        match config::load_text("a.toml", text, NameLookup::Skip) {
            Ok(loaded) => loaded.config,
            Err(report) => panic!("{}\n{text}", report.render(Colour::Off)),
        }
    }

    #[test]
    fn requests_are_passed_on() {
        let options = ProxyOptions {
            to: vec!["127.0.0.1:3000".to_owned(), "127.0.0.1:3001".to_owned()],
            cache: true,
            compress: true,
            health: Some("/healthz".to_owned()),
            ..ProxyOptions::default()
        };
        let OneLine { text, introduction } = proxy(&options);
        let expected = "requests to http://localhost:8080 go to 127.0.0.1:3000 or 127.0.0.1:3001";
        assert_eq!(introduction, expected);
        let config = load(&text);
        assert_eq!(config.listeners.len(), 1);
        assert_eq!(config.upstreams[0].endpoints.len(), 2);
        assert!(config.routes[0].cache.is_some());
    }

    #[test]
    fn a_site_has_https_and_a_way_there() {
        let options = ProxyOptions {
            front: FrontOptions {
                acme: Some("me@example.com".to_owned()),
                host: vec!["www.example.com".to_owned()],
                ..FrontOptions::default()
            },
            to: vec!["127.0.0.1:3000".to_owned()],
            ..ProxyOptions::default()
        };
        let OneLine { text, introduction } = proxy(&options);
        let expected = "requests to https://www.example.com go to 127.0.0.1:3000";
        assert_eq!(introduction, expected);
        let config = load(&text);
        assert_eq!(config.listeners.len(), 2);
        assert!(config.listeners[1].redirect_to_https.is_some());
    }

    #[test]
    fn a_folder_is_served() {
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        let options = |folder: &Path| FilesOptions {
            front: FrontOptions {
                listen: Some("127.0.0.1:9000".to_owned()),
                ..FrontOptions::default()
            },
            folder: folder.to_owned(),
            single_page_app: true,
            compress: true,
            browse: true,
        };
        let OneLine { text, introduction } = files(&options(dir.path())).unwrap();
        let whole = dir.path().canonicalize().unwrap();
        let expected = format!(
            "http://127.0.0.1:9000 serves the files of {}",
            whole.display()
        );
        assert_eq!(introduction, expected);
        assert_eq!(load(&text).routes.len(), 1);
        let nothing = dir.join("nothing");
        let error = files(&options(&nothing)).unwrap_err();
        assert!(error.starts_with("the folder "), "{error}");
        std::fs::write(&nothing, "").unwrap();
        let error = files(&options(&nothing)).unwrap_err();
        assert!(
            error.ends_with("is not a folder: name the folder that contains it"),
            "{error}"
        );
    }
}
