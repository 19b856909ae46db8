//! The documentation: what it shows works, what it links to is there, and no
//! end of an exchange is missing from it.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel::config::access_log::LogField;
use evenkeel::config::{self, Colour, NameLookup};
use evenkeel::observe::end::End;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// Every page: those at the top, and those below `docs`.
fn pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/decisions"];
    let files = folders.iter().flat_map(|folder| {
        let entries = fs::read_dir(repository().join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().path())
    });
    files
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect()
}

/// The targets of the links and pictures of a page.
fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in link_targets(&text) {
            let file = target.split('#').next().unwrap();
            if target.contains("://") || file.is_empty() {
                continue;
            }
            let path = page.parent().unwrap().join(file);
            assert!(path.exists(), "{}: {target}", page.display());
        }
    }
}

#[test]
fn the_configuration_of_the_readme_loads_without_a_warning() {
    let readme = read("README.md");
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let loaded = config::load_text("README.md", text, NameLookup::Skip);
    let warnings = loaded.map(|loaded| loaded.warnings.render(Colour::Off));
    assert_eq!(
        warnings.map_err(|it| it.render(Colour::Off)),
        Ok(String::new())
    );
}

#[test]
fn every_end_is_in_the_architecture_page() {
    let page = read("docs/architecture.md");
    let missing: Vec<String> = End::all()
        .map(|end| match end {
            End::Complete | End::Tunnel => format!("| `{}` |", end.word()),
            _ => format!("| `{}` | {} | {} |", end.word(), end.status(), end.text()),
        })
        .filter(|row| !page.contains(&format!("\n{row}")))
        .collect();
    assert!(missing.is_empty(), "missing:\n{}", missing.join("\n"));
}

#[test]
fn every_field_of_a_template_is_listed() {
    let page = read("docs/access-log.md");
    for field in LogField::ALL {
        let row = format!("| `{}` | {} |", field.word(), field.help());
        assert!(page.contains(&row), "docs/access-log.md lacks {row}");
    }
}

#[test]
fn the_access_logs_that_are_shown_load_without_a_warning() {
    let page = read("docs/access-log.md");
    let texts = page.split("```toml\n").skip(1);
    for (index, text) in texts
        .map(|rest| rest.split_once("```").unwrap().0)
        .enumerate()
    {
        // The first one is whole.
        let rest = "[[listener]]\nbind = ':1'\n[[route]]\nanswer = {}\n";
        let text = match index {
            0 => text.to_owned(),
            _ => format!("{text}\n{rest}"),
        };
        let loaded = config::load_text("access-log.md", &text, NameLookup::Skip);
        let warnings = loaded.map(|loaded| loaded.warnings.render(Colour::Off));
        assert_eq!(warnings.unwrap_or_else(|report| panic!("{report}")), "");
    }
}
