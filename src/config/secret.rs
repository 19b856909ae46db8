//! Secrets: values that are secret by their option, and passwords in URLs.
//!
//! Invariant: no output has the text of a secret. `print` leaves it out of the
//! effective configuration, and [`Report::hide`] out of the texts that mistakes,
//! warnings and layers are shown with. Everything else that is shown (the status
//! page, `explain`, the control socket) comes from the resolved configuration,
//! where only the exporter and the prober look at secrets.

use super::diagnostics::Report;
use super::setting::{FromText, Setting, Shape, wrong_type};
use super::tree::{Node, Place, Value};

/// Shown in the place of a secret.
pub(super) const HIDDEN: &str = "***";

/// A value that is not shown.
#[derive(Debug)]
pub struct Secret<T>(pub T);

impl<T: FromText> Setting for Secret<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let Value::Text(text) = &node.value else {
            return wrong_type(node, report);
        };
        // The fault of the text would name it.
        let read = T::from_text(text).ok().map(Self);
        if read.is_none() {
            report.mistake(&node.place, format!("this is not {}", T::FORM));
        }
        read
    }

    fn shape() -> Shape {
        Shape::Secret(Box::new(T::shape()))
    }
}

/// Gives every value in the tree that is secret by its option to `found`.
pub(super) fn each(node: &mut Node, shape: &Shape, found: &mut dyn FnMut(&mut Node)) {
    match (&mut node.value, shape) {
        (_, Shape::Secret(_)) => found(node),
        (Value::Table(entries), Shape::Table(table)) => {
            let table_of_secrets = table.keys.iter().find(|it| is_of_secrets(&it.shape));
            for entry in entries {
                let key = table.keys.iter().find(|it| it.key == entry.key);
                // A table under an unknown key may be meant to be the one of secrets.
                let key = match entry.node.value {
                    Value::Table(_) => key.or(table_of_secrets),
                    _ => key,
                };
                if let Some(key) = key {
                    each(&mut entry.node, &key.shape, found);
                }
            }
        }
        (Value::Table(entries), Shape::Map(item)) => {
            entries
                .iter_mut()
                .for_each(|it| each(&mut it.node, item, found));
        }
        (Value::List(items), Shape::List(item)) => {
            items.iter_mut().for_each(|it| each(it, item, found));
        }
        (_, Shape::AnyOf(shapes)) => {
            for shape in shapes {
                each(node, shape, found);
            }
        }
        _ => {}
    }
}

fn is_of_secrets(shape: &Shape) -> bool {
    matches!(shape, Shape::Map(item) if matches!(**item, Shape::Secret(_)))
}

/// The places of every value that is secret by its option.
pub(super) fn places(node: &mut Node, shape: &Shape) -> Vec<Place> {
    let mut places = Vec::new();
    each(node, shape, &mut |secret| places.push(secret.place.clone()));
    places
}

/// The passwords in the URLs of a text: `scheme://user:PASSWORD@host`.
pub(super) fn passwords(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    for (at, mark) in text.match_indices("://") {
        let start = at + mark.len();
        let is_end = |c: char| c.is_whitespace() || "/?#\"'`<>".contains(c);
        let end = text[start..]
            .find(is_end)
            .map_or(text.len(), |len| start + len);
        // The last @ is the one before the host.
        let Some(user) = text[start..end].rfind('@') else {
            continue;
        };
        if let Some(colon) = text[start..start + user].find(':') {
            found.push(start + colon + 1..start + user);
        }
    }
    found
}

/// The text with [`HIDDEN`] in place of passwords.
pub(super) fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for range in passwords(text) {
        shown.push_str(&text[from..range.start]);
        shown.push_str(HIDDEN);
        from = range.end;
    }
    shown.push_str(&text[from..]);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_urls() {
        for (text, shown) in [
            ("http://a:b@host:80/x", "http://a:***@host:80/x"),
            ("`http://a:b:c@d@host` is", "`http://a:***@host` is"),
            (
                "x = \"udp://u:p@h\" # http://v:w@i",
                "x = \"udp://u:***@h\" # http://v:***@i",
            ),
            ("http://user@host", "http://user@host"),
            ("http://host:80/a@b:c@d", "http://host:80/a@b:c@d"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("a:b@c", "a:b@c"),
            ("://", "://"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
