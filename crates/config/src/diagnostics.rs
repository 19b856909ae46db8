//! Mistakes and warnings, each with its place, and how they are shown.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::peers;
use super::secret;
use super::shape::Shape;
use super::tree::SourcePlace;
use super::twice::Twice;

/// Everything found wrong or doubtful in one configuration.
#[derive(Debug, Default)]
pub struct Report {
    sources: Vec<Source>,
    findings: Vec<Finding>,
    syntax_broken: bool,
    /// Sources whose passwords are hidden already.
    without_passwords: usize,
    /// Files that were looked for.
    pub(super) sought: Vec<PathBuf>,
    /// Folders in which the patterns of `include` look.
    pub(super) folders: Vec<PathBuf>,
}

/// The layer that a text of the configuration comes from.
#[derive(Debug)]
pub(super) enum Origin {
    /// The file of this path.
    File(String),
    /// A variable of the environment, with its name.
    Variable,
    /// A `--set`.
    Set,
}

impl Origin {
    /// How a mistake names it.
    fn name(&self) -> &str {
        match self {
            Origin::File(path) => path,
            Origin::Variable => "environment variable",
            Origin::Set => "--set",
        }
    }
}

/// A text that part of the configuration came from.
#[derive(Debug)]
struct Source {
    origin: Origin,
    text: String,
}

impl Source {
    /// Replaces these bytes by stars, except quotes and ends of lines.
    fn hide(&mut self, hidden: &[Range<usize>]) {
        let mut text = std::mem::take(&mut self.text).into_bytes();
        for range in hidden {
            let is_hidden = |byte: &&mut u8| !matches!(**byte, b'\n' | b'"' | b'\'');
            let bytes = text[range.clone()].iter_mut();
            bytes.filter(is_hidden).for_each(|byte| *byte = b'*');
        }
        self.text = String::from_utf8_lossy(&text).into_owned();
    }
}

/// Whether a finding stops the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Mistake,
    /// The configuration can be used, but is probably not as meant.
    Warning,
}

/// Whether a report is shown with colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// With terminal escapes.
    On,
    /// Plain text.
    Off,
}

/// One mistake or warning.
#[derive(Debug)]
pub struct Finding {
    severity: Severity,
    place: Option<SourcePlace>,
    title: String,
    label: Option<String>,
    help: Option<String>,
    related: Option<(SourcePlace, String)>,
    /// Whether it is the parser's, of a text that is not TOML.
    syntax: bool,
}

impl Finding {
    /// Adds what to say under the offending text.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        self.label = Some(label.into());
        self
    }

    /// Adds what to do about it.
    pub fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.help = Some(secret::without_passwords(&help.into()));
        self
    }

    /// Proposes the nearest of `candidates` to `word`, where one is near.
    pub fn propose<'a>(
        &mut self,
        word: &str,
        candidates: impl IntoIterator<Item = &'a str>,
    ) -> &mut Self {
        if let Some(nearest) = nearest(word, candidates) {
            self.help = Some(format!("did you mean `{nearest}`?"));
        }
        self
    }

    /// Proposes one of `words`: the equivalent of another program's word, or else the nearest
    /// to `word`.
    pub(super) fn propose_word(&mut self, word: &str, words: &[&str]) -> &mut Self {
        match peers::value(word, words) {
            Some(help) => self.help(help),
            None => self.propose(word, words.iter().copied()),
        }
    }

    /// Shows a second place that has to do with it.
    pub fn related(&mut self, place: &SourcePlace, label: impl Into<String>) -> &mut Self {
        self.related = Some((place.clone(), label.into()));
        self
    }

    fn is_mistake(&self) -> bool {
        self.severity == Severity::Mistake
    }
}

impl Report {
    /// Adds a text that places can point into; returns its index.
    pub(super) fn add_source(&mut self, origin: Origin, text: impl Into<String>) -> usize {
        self.sources.push(Source {
            origin,
            text: text.into(),
        });
        self.sources.len() - 1
    }

    /// The layers that were read, in their order: files by path, variables by
    /// name, and each `--set`.
    pub fn layers(&self) -> impl Iterator<Item = String> {
        self.sources.iter().map(|source| match &source.origin {
            Origin::Variable => source.text.split('=').next().unwrap_or_default().to_owned(),
            Origin::Set => format!("{} {}", Origin::Set.name(), source.text),
            Origin::File(path) => path.clone(),
        })
    }

    /// The files that were looked for, in order, including missing ones.
    pub fn files(&self) -> &[PathBuf] {
        &self.sought
    }

    /// Folders in which the patterns of `include` look: a new file there may become a
    /// part of the configuration.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Shows the texts at these places, and all passwords in URLs, as stars. Places stay valid.
    pub(super) fn hide(&mut self, secrets: &[SourcePlace]) {
        for source in &mut self.sources[self.without_passwords..] {
            let passwords = secret::passwords(&source.text);
            source.hide(&passwords);
        }
        self.without_passwords = self.sources.len();
        // A configuration of thousands of files is looked through once.
        let mut by_source = HashMap::<usize, Vec<Range<usize>>>::new();
        for secret in secrets {
            let own = by_source.entry(secret.source).or_default();
            own.push(secret.range.clone());
        }
        for (source, hidden) in by_source {
            self.sources[source].hide(&hidden);
        }
    }

    /// Has what may be a secret shown as stars in the lines of a source that are no
    /// TOML.
    pub(super) fn hide_in_broken_lines(&mut self, source: usize, file: &Shape) {
        let places = self.findings.iter().filter(|it| it.syntax);
        let places = places.filter_map(|it| it.place.as_ref());
        let own = places.filter(|it| it.source == source);
        let mistakes: Vec<_> = own.cloned().collect();
        for mistake in mistakes {
            self.hide_in_broken_text(&mistake, file);
        }
    }

    /// The same, of the lines of one place.
    pub(super) fn hide_in_broken_text(&mut self, place: &SourcePlace, file: &Shape) {
        let source = &mut self.sources[place.source];
        let hidden = secret::in_broken_lines(&source.text, &place.range, file);
        source.hide(&hidden);
    }

    pub(super) fn source_text(&self, source: usize) -> &str {
        &self.sources[source].text
    }

    /// Records a mistake at a place.
    pub fn mistake(&mut self, place: &SourcePlace, title: impl Into<String>) -> &mut Finding {
        self.add(Severity::Mistake, Some(place.clone()), title.into())
    }

    /// Records a mistake without a place, such as a file that cannot be read.
    pub fn mistake_without_place(&mut self, title: impl Into<String>) -> &mut Finding {
        self.add(Severity::Mistake, None, title.into())
    }

    /// Records a warning at a place.
    pub fn warning(&mut self, place: &SourcePlace, title: impl Into<String>) -> &mut Finding {
        self.add(Severity::Warning, Some(place.clone()), title.into())
    }

    /// Records a warning without a place.
    pub fn warning_without_place(&mut self, title: impl Into<String>) -> &mut Finding {
        self.add(Severity::Warning, None, title.into())
    }

    pub(super) fn syntax_mistake(&mut self, place: SourcePlace, title: &str) -> &mut Finding {
        self.syntax_broken = true;
        let found = self.add(Severity::Mistake, Some(place), title.replace('\n', ", "));
        found.syntax = true;
        found
    }

    /// Records that a layer could not be read at all.
    pub(super) fn syntax_mistake_without_place(&mut self, title: &str) -> &mut Finding {
        self.syntax_broken = true;
        let found = self.add(Severity::Mistake, None, title.to_owned());
        found.syntax = true;
        found
    }

    /// The index of the source that is added next.
    pub(super) fn next_source(&self) -> usize {
        self.sources.len()
    }

    /// Records that a layer is in another program's language. Only this place of it is shown,
    /// because the rest of the line could be a secret.
    pub(super) fn no_toml(&mut self, place: &SourcePlace, language: &str) {
        self.syntax_broken = true;
        self.sources[place.source].text.truncate(place.range.end);
        self.mistake(place, format!("this looks like {language}; Evenkeel reads TOML"))
            .help("write it as in:\n[[listener]]\nbind = \":8080\"\n\n[[route]]\nupstream = \"app\"\n\n[upstream.app]\nendpoints = [\"10.0.0.1:8080\"]");
    }

    /// Records that something is written twice.
    pub(super) fn twice(&mut self, place: SourcePlace, first: Option<SourcePlace>, what: &Twice) {
        let found = match what {
            Twice::Table { name } => self
                .syntax_mistake(place, &format!("the table `[{name}]` is defined twice"))
                .help("move all keys into the first one"),
            Twice::Key { name } => self
                .syntax_mistake(place, &format!("the key `{name}` is defined twice"))
                .help("leave one of them out"),
        };
        if let Some(first) = first {
            found.related(&first, "the first time");
        }
    }

    /// Whether a layer could be read only in part. A value that seems to be missing may then be
    /// in the unread part.
    pub(super) fn is_syntax_broken(&self) -> bool {
        self.syntax_broken
    }

    /// Adds help to the last finding, if that is one at this place without any.
    pub(super) fn advise(&mut self, place: &SourcePlace, help: String) {
        let last = self.findings.last_mut();
        let last = last.filter(|it| it.place.as_ref() == Some(place) && it.help.is_none());
        last.into_iter().for_each(|it| _ = it.help(help.as_str()));
    }

    /// The text at a place, with its secrets hidden.
    pub(super) fn text_at(&self, place: &SourcePlace) -> &str {
        let text = self.sources.get(place.source).map(|it| it.text.as_str());
        let text = text.and_then(|it| it.get(place.range.clone()));
        text.unwrap_or_default()
    }

    fn add(
        &mut self,
        severity: Severity,
        place: Option<SourcePlace>,
        title: String,
    ) -> &mut Finding {
        let finding = Finding {
            severity,
            place,
            title: secret::without_passwords(&title),
            label: None,
            help: None,
            related: None,
            syntax: false,
        };
        self.findings.push(finding);
        let last = self.findings.len() - 1;
        &mut self.findings[last]
    }

    /// Whether there is a mistake among the findings.
    pub fn has_mistakes(&self) -> bool {
        self.findings.iter().any(Finding::is_mistake)
    }

    /// Number of mistakes.
    pub fn mistake_count(&self) -> usize {
        self.findings.iter().filter(|it| it.is_mistake()).count()
    }

    /// Number of warnings.
    pub fn warning_count(&self) -> usize {
        self.findings.len() - self.mistake_count()
    }

    /// Sorts by place, layer by layer; findings without a place come first. Drops findings that
    /// only follow from a syntax error on the same line.
    pub(super) fn settle(&mut self) {
        let lines: Vec<_> = self
            .sources
            .iter()
            .map(|it| line_starts(&it.text))
            .collect();
        let line = |it: &Finding| {
            let place = it.place.as_ref()?;
            Some((
                place.source,
                line_of(&lines[place.source], place.range.start),
            ))
        };
        let broken = self.findings.iter().filter(|it| it.syntax).map(line);
        let broken: HashSet<_> = broken.collect();
        let mut findings = std::mem::take(&mut self.findings);
        if self.syntax_broken {
            // A value that the parser made up for a missing one has an empty range.
            let made_up = |it: &Finding| it.place.as_ref().is_some_and(|it| it.range == (0..0));
            findings.retain(|it| it.syntax || !(made_up(it) || broken.contains(&line(it))));
        }
        findings.sort_by_key(|it| {
            it.place
                .as_ref()
                .map(|place| (place.source, place.range.start))
        });
        self.findings = findings;
    }

    /// Every finding with `file:line:column`, the line itself and the help
    /// that there is, ending in a newline; empty where there is nothing.
    pub fn render(&self, colour: Colour) -> String {
        let renderer = match colour {
            Colour::On => Renderer::styled(),
            Colour::Off => Renderer::plain(),
        };
        let lines: Vec<_> = self
            .sources
            .iter()
            .map(|it| line_starts(&it.text))
            .collect();
        let mut shown = String::new();
        for finding in &self.findings {
            let mut text = renderer.render(&[self.group(finding, &lines)]);
            // The renderer leaves blanks where a label would begin.
            text = text
                .lines()
                .map(str::trim_end)
                .collect::<Vec<_>>()
                .join("\n");
            shown.push_str(&text);
            shown.push_str("\n\n");
        }
        shown.truncate(shown.len().saturating_sub(1));
        shown
    }

    /// `lines` are where the lines of each source begin.
    fn group<'a>(&'a self, finding: &'a Finding, lines: &[Vec<usize>]) -> Group<'a> {
        let level = match finding.severity {
            Severity::Mistake => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(finding.title.as_str());
        let mut group = Group::with_title(title);
        if let Some(place) = &finding.place {
            let related = finding.related.as_ref();
            let is_beside = |it: &&(SourcePlace, String)| it.0.source == place.source;
            let beside = related.filter(is_beside);
            let excerpt = self.excerpt(lines, place, beside.map(|it| &it.0));
            let mark = AnnotationKind::Primary.span(excerpt.span(self.visible(place)));
            let mut snippet = excerpt.snippet();
            snippet = snippet.annotation(mark.label(finding.label.as_deref()));
            let context = |excerpt: &Excerpt<'a>, (other, label): &'a (SourcePlace, String)| {
                let span = excerpt.span(self.visible(other));
                AnnotationKind::Context.span(span).label(label.as_str())
            };
            if let Some(beside) = beside {
                snippet = snippet.annotation(context(&excerpt, beside));
            }
            group = group.element(snippet);
            if let Some(other) = related.filter(|it| !is_beside(it)) {
                let excerpt = self.excerpt(lines, &other.0, None);
                let mark = context(&excerpt, other);
                group = group.element(excerpt.snippet().annotation(mark));
            }
        }
        match &finding.help {
            Some(help) => group.element(Level::HELP.message(help.as_str())),
            None => group,
        }
    }

    /// The lines from one of two places to the other: the renderer reads all that
    /// it is given, for each finding.
    fn excerpt<'a>(
        &'a self,
        lines: &[Vec<usize>],
        place: &SourcePlace,
        beside: Option<&SourcePlace>,
    ) -> Excerpt<'a> {
        let Source { origin, text } = &self.sources[place.source];
        let lines = &lines[place.source];
        let spans = [Some(place), beside].into_iter().flatten();
        let spans = spans.map(|it| self.visible(it));
        let (start, end) = spans.fold((text.len(), 0), |(start, end), span| {
            (start.min(span.start), end.max(span.end))
        });
        let first = line_of(lines, start);
        let next = lines.get(line_of(lines, end) + 1).copied();
        let (first, next) = if lines[first] < text.len() {
            (first, next)
        } else {
            // Behind the last line there is no line to show.
            (0, None)
        };
        Excerpt {
            name: origin.name(),
            text: &text[lines[first]..next.unwrap_or(text.len())],
            offset: lines[first],
            first_line: first + 1,
        }
    }

    /// The part of `place` on its first line: a table that runs over half the
    /// file is shown by where it begins.
    fn visible(&self, place: &SourcePlace) -> Range<usize> {
        let text = &self.sources[place.source].text;
        let start = place.range.start.min(text.len());
        let end = place.range.end.min(text.len());
        let line_len = text[start..end].find('\n').unwrap_or(end - start);
        start..start + line_len
    }
}

/// Lines of a source.
struct Excerpt<'a> {
    name: &'a str,
    text: &'a str,
    /// The index in the source at which the lines begin, in bytes.
    offset: usize,
    /// The number of the first line, from 1.
    first_line: usize,
}

impl<'a> Excerpt<'a> {
    fn snippet(&self) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
        let snippet = Snippet::source(self.text).line_start(self.first_line);
        snippet.path(self.name)
    }

    /// Bytes of the source as bytes of these lines.
    fn span(&self, range: Range<usize>) -> Range<usize> {
        range.start - self.offset..range.end - self.offset
    }
}

/// The index of the first byte of each line of a text.
fn line_starts(text: &str) -> Vec<usize> {
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    std::iter::once(0)
        .chain(ends.map(|(at, _)| at + 1))
        .collect()
}

/// The line, from 0, that a byte is in.
fn line_of(starts: &[usize], at: usize) -> usize {
    starts
        .partition_point(|start| *start <= at)
        .saturating_sub(1)
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render(Colour::Off))
    }
}

impl std::error::Error for Report {}

/// The candidate that `word` was most likely meant to be.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let distance = |candidate: &str| {
        let candidate = candidate.to_lowercase().replace('-', "_");
        strsim::damerau_levenshtein(&word, &candidate)
    };
    let near = |candidate: &str, distance: usize| distance <= word.len().max(candidate.len()) / 3;
    let ranked = candidates.into_iter().map(|it| (distance(it), it));
    let best = ranked.min_by_key(|(distance, _)| *distance)?;
    near(best.1, best.0).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near() {
        let keys = ["upstream", "listener", "max_idle", "round-robin"];
        for (word, expected) in [
            ("upstrem", Some("upstream")),
            ("Listner", Some("listener")),
            ("max-idle", Some("max_idle")),
            ("round_robin", Some("round-robin")),
            ("roundrobin", Some("round-robin")),
            ("colour", None),
        ] {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
    }
}
