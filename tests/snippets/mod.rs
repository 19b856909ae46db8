//! The code blocks of the documentation.

use std::fs;
use std::path::Path;

/// A code block of a page.
#[derive(Debug, Clone)]
pub struct Snippet {
    /// Its page and line, for messages.
    pub place: String,
    /// The heading that it stands under; empty for none.
    pub heading: String,
    /// The word behind the fence; empty for none.
    pub language: String,
    /// Its lines.
    pub text: String,
}

/// The code blocks of a page, in their order.
pub fn of_page(path: &Path) -> Vec<Snippet> {
    let page = fs::read_to_string(path).unwrap();
    let mut snippets = Vec::new();
    let mut heading = String::new();
    let mut open: Option<Snippet> = None;
    for (index, line) in page.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => snippets.extend(open.take()),
            (Some(language), None) => {
                open = Some(Snippet {
                    place: format!("{}:{}", path.display(), index + 1),
                    heading: heading.clone(),
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (None, Some(snippet)) => {
                snippet.text.push_str(line);
                snippet.text.push('\n');
            }
            (None, None) => {
                if let Some(title) = line.strip_prefix('#') {
                    heading = title.trim_start_matches('#').trim().to_owned();
                }
            }
        }
    }
    assert!(
        open.is_none(),
        "{}: a code block has no end",
        path.display()
    );
    snippets
}
