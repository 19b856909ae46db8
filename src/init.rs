//! `evenkeel init`: writes a first configuration, from options or from answers on a terminal.

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use evenkeel::config::{self, NameLookup};

use crate::oneline::{self, FilesOptions, FrontOptions, InitOptions, OneLine, ProxyOptions};
use crate::{Failed, cli, complain, print, show, written};

/// Writes the file, and says what to do next.
pub fn run(options: InitOptions) -> Result<(), Failed> {
    let (file, force) = (options.file.clone(), options.force);
    let shown = file.display();
    if !force && file.symlink_metadata().is_ok() {
        return Err(complain(&format!(
            "{shown} already exists: replace it with --force, or write another file with \
             `evenkeel init FILE`"
        )));
    }
    if file.is_dir() {
        return Err(complain(&format!("{shown} is a folder: name a file")));
    }
    let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|it| !it.is_dir()) {
        let folder = folder.display();
        return Err(complain(&format!(
            "there is no folder {folder} for {shown}"
        )));
    }
    let site = site(options)?;
    let line = site.line().map_err(|error| complain(&error))?;
    let text = format!("{}{}", introduction(&file), line.text);
    let text = config::format::format(&file, text.as_bytes()).and_then(|text| {
        config::load_text(&file.to_string_lossy(), &text, NameLookup::Later).map(|_| text)
    });
    let text = text.map_err(|report| {
        show(&report);
        complain("nothing was written")
    })?;
    let outcome = if force && file.exists() {
        written::replace(&file, text.as_bytes())
    } else {
        written::new_file(&file, text.as_bytes())
    };
    outcome.map_err(|error| complain(&format!("write {shown}: {error}")))?;
    let option = option(&file);
    print(&format!(
        "{shown} is written: {}.\n\n  evenkeel check{option}    # show all mistakes\n  evenkeel \
         run{option}\n",
        line.introduction
    ))
}

/// The option that names the file in a call, unless the program finds it by itself.
fn option(file: &Path) -> String {
    if file == Path::new("evenkeel.toml") {
        String::new()
    } else {
        format!(" --config {}", file.display())
    }
}

/// What stands in front of the listeners.
fn introduction(file: &Path) -> String {
    let option = option(file);
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let socket = if whole.starts_with("/etc/evenkeel") {
        // The service of a package may write there, and not beside its configuration.
        PathBuf::from("/run/evenkeel/control.sock")
    } else {
        whole.with_file_name("evenkeel.sock")
    };
    let control = if socket.as_os_str().len() <= config::MAX_SOCKET_PATH {
        let socket = oneline::quoted(&socket.to_string_lossy());
        format!(
            "[server]\n\
             # The socket by which `evenkeel reload`, `evenkeel ctl` and `evenkeel top` reach the process.\n\
             control = {socket}\n\n"
        )
    } else {
        String::new()
    };
    format!(
        "# Evenkeel's configuration.\n\
         #   evenkeel check{option}     show all mistakes\n\
         #   evenkeel run{option}       start\n\
         #   evenkeel reload{option}    apply changes, without losing a request\n\n\
         # The status page: http://localhost:8404\n\
         status = true\n\n\
         {control}"
    )
}

/// What is to be served.
enum Site {
    Proxy(ProxyOptions),
    Files(FilesOptions),
}

impl Site {
    fn line(&self) -> Result<OneLine, String> {
        match self {
            Site::Proxy(options) => Ok(oneline::proxy(options)),
            Site::Files(options) => oneline::files(options),
        }
    }

    fn front(&mut self) -> &mut FrontOptions {
        match self {
            Site::Proxy(options) => &mut options.front,
            Site::Files(options) => &mut options.front,
        }
    }

    fn compress(&mut self) -> &mut bool {
        match self {
            Site::Proxy(options) => &mut options.compress,
            Site::Files(options) => &mut options.compress,
        }
    }

    /// Why the program would not start with it, shown.
    fn check(&self) -> Result<(), ()> {
        let line = self.line().map_err(|error| {
            complain(&error);
        })?;
        config::load_text("evenkeel.toml", &line.text, NameLookup::Skip)
            .map(|_| ())
            .map_err(|report| show(&report))
    }
}

/// Takes the options, or else asks.
fn site(mut options: InitOptions) -> Result<Site, Failed> {
    if let Some(folder) = options.files.take() {
        return Ok(Site::Files(FilesOptions {
            folder,
            front: options.front,
            single_page_app: options.single_page_app,
            compress: options.compress,
            browse: false,
        }));
    }
    if !options.to.is_empty() {
        return Ok(Site::Proxy(ProxyOptions {
            front: options.front,
            to: options.to,
            health: options.health,
            cache: options.cache,
            compress: options.compress,
        }));
    }
    if !io::stdin().is_terminal() {
        cli::wrong_call(
            "choose what to serve: `--to ADDRESS` for an application, or `--files FOLDER`; on a \
             terminal `evenkeel init` asks",
        );
    }
    let example = Site::Proxy(ProxyOptions {
        to: vec!["127.0.0.1:3000".to_owned()],
        front: options.front.clone(),
        ..ProxyOptions::default()
    });
    if example.check().is_err() {
        return Err(complain("nothing was written"));
    }
    let mut asker = Prompter {
        input: io::stdin().lock(),
        output: io::stderr(),
    };
    asker
        .site(&options)
        .map_err(|error| complain(&format!("{error}; nothing was written")))
}

/// Asks for one thing after the other.
struct Prompter<R, W> {
    input: R,
    output: W,
}

impl<R: BufRead, W: Write> Prompter<R, W> {
    /// Asks for what the options leave open, each question until its answer can be used.
    ///
    /// # Errors
    /// The answers ended, or can't be read.
    fn site(&mut self, options: &InitOptions) -> io::Result<Site> {
        let front = &options.front;
        let kinds = "What do you want to serve?\n  1  an application: requests go to its \
            servers\n  2  a folder of files\n";
        write!(self.output, "{kinds}")?;
        let is_folder = loop {
            match self.ask("1 or 2", "1")?.as_str() {
                "1" => break false,
                "2" => break true,
                _ => {}
            }
        };
        let mut site = if is_folder {
            self.until_fine("Folder", "public", |folder| {
                Site::Files(FilesOptions {
                    folder: folder.into(),
                    front: front.clone(),
                    ..FilesOptions::default()
                })
            })?
        } else {
            let question = "Addresses of the servers, separated by spaces";
            self.until_fine(question, "127.0.0.1:3000", |to| {
                Site::Proxy(ProxyOptions {
                    to: words(to),
                    front: front.clone(),
                    ..ProxyOptions::default()
                })
            })?
        };
        let question = "Host names to serve, or Enter for all";
        if site.front().host.is_empty() {
            self.change(&mut site, question, "", |site, hosts| {
                site.front().host = words(hosts);
            })?;
        }
        if !site.front().host.is_empty() && !site.front().is_encrypted() {
            let question = "E-mail address for certificates from Let's Encrypt (HTTPS), or Enter \
                            for HTTP only";
            self.change(&mut site, question, "", |site, email| {
                site.front().acme = Some(email.to_owned()).filter(|it| !it.is_empty());
            })?;
        }
        if site.front().listen.is_none() && !site.front().is_encrypted() {
            self.change(&mut site, "Listen on", ":8080", |site, address| {
                site.front().listen = Some(address.to_owned());
            })?;
        }
        match &site {
            Site::Proxy(_) => {
                let question = "Path of a health check, such as /healthz, or Enter for none";
                self.change(&mut site, question, "", |site, path| {
                    if let Site::Proxy(options) = site {
                        options.health = Some(path.to_owned()).filter(|it| !it.is_empty());
                    }
                })?;
                let is_cached = self.agrees("Cache responses that allow it?")?;
                if let Site::Proxy(options) = &mut site {
                    options.cache = is_cached;
                }
            }
            Site::Files(_) => {
                let question = "Is it a single-page application?";
                let is_one_page = self.agrees(question)?;
                if let Site::Files(options) = &mut site {
                    options.single_page_app = is_one_page;
                }
            }
        }
        *site.compress() = options.compress || self.agrees("Compress responses?")?;
        Ok(site)
    }

    fn until_fine(
        &mut self,
        question: &str,
        default: &str,
        make: impl Fn(&str) -> Site,
    ) -> io::Result<Site> {
        loop {
            let site = make(&self.ask(question, default)?);
            if site.check().is_ok() {
                return Ok(site);
            }
        }
    }

    /// The same for a part of a site that is fine.
    fn change(
        &mut self,
        site: &mut Site,
        question: &str,
        default: &str,
        set: impl Fn(&mut Site, &str),
    ) -> io::Result<()> {
        loop {
            set(site, &self.ask(question, default)?);
            if site.check().is_ok() {
                return Ok(());
            }
        }
    }

    fn agrees(&mut self, question: &str) -> io::Result<bool> {
        loop {
            match self.ask(question, "no")?.as_str() {
                "y" | "Y" | "yes" => return Ok(true),
                "n" | "N" | "no" => return Ok(false),
                _ => {}
            }
        }
    }

    /// The line that follows the question, or the default for an empty one.
    fn ask(&mut self, question: impl Display, default: &str) -> io::Result<String> {
        if default.is_empty() {
            write!(self.output, "{question}: ")?;
        } else {
            write!(self.output, "{question} [{default}]: ")?;
        }
        self.output.flush()?;
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            writeln!(self.output)?;
            return Err(io::Error::other("the input ended"));
        }
        Ok(match line.trim() {
            "" => default.to_owned(),
            answer => answer.to_owned(),
        })
    }
}

fn words(text: &str) -> Vec<String> {
    let words = text.split([' ', ',']).filter(|it| !it.is_empty());
    words.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration that these answers make, and the questions.
    fn answered(options: &InitOptions, answers: &str) -> (io::Result<Site>, String) {
        let mut output = Vec::new();
        let mut asker = Prompter {
            input: answers.as_bytes(),
            output: &mut output,
        };
        let site = asker.site(options);
        (site, String::from_utf8(output).unwrap())
    }

    #[test]
    fn an_application() {
        let (site, asked) = answered(
            &InitOptions::default(),
            "3\n1\nnot an address\n10.0.0.1:80, 10.0.0.2:80\nwww.example.com\nyou@example.com\n\
             no-path\n/healthz\ny\n\n",
        );
        let text = site.unwrap().line().unwrap().text;
        for part in [
            "endpoints = [\"10.0.0.1:80\", \"10.0.0.2:80\"]",
            "match = { host = [\"www.example.com\"] }",
            "tls = { acme = \"you@example.com\" }",
            "health = { path = \"/healthz\" }",
            "cache = true",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("compress"), "{text}");
        // Each answer that can't be used is asked for again.
        let count = |part: &str| asked.matches(part).count();
        assert_eq!(count("1 or 2"), 2, "{asked}");
        assert_eq!(count("Addresses of the servers"), 2, "{asked}");
        assert_eq!(count("Path of a health check"), 2, "{asked}");
        assert_eq!(count("Listen on"), 0, "{asked}");
    }

    #[test]
    fn a_folder() {
        let (site, _) = answered(
            &InitOptions::default(),
            "2\n/no/such/folder\nsrc\n\n127.0.0.1:9000\nyes\nyes\n",
        );
        let text = site.unwrap().line().unwrap().text;
        for part in [
            "bind = \"127.0.0.1:9000\"",
            "/index.html",
            "compress = true",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn an_option_is_not_asked_for() {
        let options = InitOptions {
            compress: true,
            ..InitOptions::default()
        };
        let (site, asked) = answered(&options, "2\nsrc\n\n\nno\n");
        let text = site.unwrap().line().unwrap().text;
        assert!(text.contains("compress = true"), "{text}");
        assert!(!asked.contains("Compress"), "{asked}");
    }

    #[test]
    fn answers_that_end() {
        let (site, _) = answered(&InitOptions::default(), "1\n");
        assert!(site.is_err());
    }
}
