//! Shorter forms of tables: a switch, and the text of one key.

use std::borrow::Cow;

use crate::diagnostics::Report;
use crate::setting::{Resolve, Setting, wrong_type};
use crate::shape::Shape;
use crate::tree::{Node, TableEntry, Value};

/// A table that can be switched on and off: `true` for one with its defaults, or `false`.
#[derive(Debug)]
pub enum Switch<T> {
    /// `false`.
    Off,
    /// A table, or `true` for one with its defaults.
    On(Box<T>),
}

impl<T: Setting> Setting for Switch<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let on = |table| Self::On(Box::new(table));
        match node.value {
            Value::Boolean(false) => Some(Self::Off),
            Value::Boolean(true) => T::read(&empty_table(node), report).map(on),
            Value::Table(_) => T::read(node, report).map(on),
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![T::shape(), Shape::Boolean])
    }
}

impl<T: Resolve> Resolve for Switch<T> {
    type Resolved = Option<T::Resolved>;

    fn resolve(&self) -> Option<Self::Resolved> {
        Some(match self {
            Self::Off => None,
            Self::On(table) => Some(table.resolve()?),
        })
    }
}

/// An empty table, instead of the value at `node`.
pub(super) fn empty_table(node: &Node) -> Node {
    Node {
        place: node.place.clone(),
        value: Value::Table(Vec::new()),
    }
}

/// Defines a value written as a table, or as the text of one key of it.
macro_rules! short_for {
    ($(#[doc = $about:literal])* $name:ident, $table:ty, $key:literal, $text:ty) => {
        $(#[doc = $about])*
        #[derive(Debug)]
        pub struct $name(pub $table);

        impl $crate::setting::Setting for $name {
            fn read(
                node: &$crate::tree::Node,
                report: &mut $crate::diagnostics::Report,
            ) -> Option<Self> {
                match $crate::written::forms::as_table($key, node) {
                    Some(table) => $crate::setting::Setting::read(&table, report).map(Self),
                    None => $crate::setting::wrong_type(node, report),
                }
            }

            fn shape() -> $crate::shape::Shape {
                $crate::written::forms::either::<$text, $table>()
            }
        }
    };
}
pub(super) use short_for;

/// A table as it is, and a text as the table with only this key; `None` for other values.
pub(super) fn as_table<'a>(key: &str, node: &'a Node) -> Option<Cow<'a, Node>> {
    match node.value {
        Value::Text(_) => Some(Cow::Owned(table_of(key, node))),
        Value::Table(_) => Some(Cow::Borrowed(node)),
        _ => None,
    }
}

/// The shape of a value that has one of two types.
pub(super) fn either<T: Setting, U: Setting>() -> Shape {
    Shape::AnyOf(vec![T::shape(), U::shape()])
}

/// A table with only this key, which has the value at `node`.
pub(super) fn table_of(key: &str, node: &Node) -> Node {
    let place = node.place.clone();
    let entry = TableEntry {
        key: key.to_owned(),
        key_place: place.clone(),
        node: node.clone(),
    };
    Node {
        place,
        value: Value::Table(vec![entry]),
    }
}
