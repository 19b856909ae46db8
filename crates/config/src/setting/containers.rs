//! Values that hold other values: lists, tables by name, and values with their place.

use super::{FromText, Resolve, Setting, read_or_advise, read_text, wrong_type};
use crate::diagnostics::Report;
use crate::shape::Shape;
use crate::tree::{Node, SourcePlace, Value};

impl<T: Setting> Setting for Vec<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::List(items) => {
                // Allocated in one piece: growing to 20,000 routes would leave twice their
                // memory behind.
                let mut values = Self::with_capacity(items.len());
                values.extend(items.iter().filter_map(|it| T::read(it, report)));
                Some(values)
            }
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }
}

impl<T: Resolve> Resolve for Vec<T> {
    type Resolved = Vec<T::Resolved>;

    fn resolve(&self) -> Option<Self::Resolved> {
        self.iter().map(T::resolve).collect()
    }
}

/// An option that few of many tables have, boxed so that it takes little room in the others.
#[derive(Debug)]
pub struct Boxed<T>(Box<T>);

impl<T> std::ops::Deref for Boxed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Setting> Setting for Boxed<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        T::read(node, report).map(|it| Self(Box::new(it)))
    }

    fn shape() -> Shape {
        T::shape()
    }
}

/// One value, or a list of them.
#[derive(Debug)]
pub struct OneOrMore<T>(pub Vec<T>);

impl<T: Setting> Setting for OneOrMore<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::List(items) if items.is_empty() => {
                report.mistake(&node.place, "the list is empty, so nothing could match");
                None
            }
            Value::List(_) => Vec::read(node, report).map(Self),
            _ => T::read(node, report).map(|it| Self(vec![it])),
        }
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![T::shape(), Shape::List(Box::new(T::shape()))])
    }
}

impl<T: Resolve> Resolve for OneOrMore<T> {
    type Resolved = Vec<T::Resolved>;

    fn resolve(&self) -> Option<Self::Resolved> {
        self.0.resolve()
    }
}

/// A value with its place.
#[derive(Debug)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// The place of the value.
    pub place: SourcePlace,
}

impl<T: Setting> Setting for Placed<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        Some(Self {
            value: T::read(node, report)?,
            place: node.place.clone(),
        })
    }

    fn shape() -> Shape {
        T::shape()
    }
}

impl<T: Resolve> Resolve for Placed<T> {
    type Resolved = T::Resolved;

    fn resolve(&self) -> Option<Self::Resolved> {
        self.value.resolve()
    }
}

/// A table whose keys are names of this kind.
#[derive(Debug)]
pub struct Map<K, T>(pub Vec<Named<K, T>>);

/// One entry of a [`Map`].
#[derive(Debug)]
pub struct Named<K, T> {
    /// The key as written.
    pub name: String,
    /// The key; `None` where it is mistaken.
    pub key: Option<K>,
    /// The place of the key.
    pub place: SourcePlace,
    /// The value; `None` where it is mistaken.
    pub value: Option<T>,
}

impl<K: FromText, T: Setting> Setting for Map<K, T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let Value::Table(entries) = &node.value else {
            return wrong_type(node, report);
        };
        let named = entries.iter().map(|entry| Named {
            name: entry.key.clone(),
            key: read_text(&entry.key, &entry.key_place, report),
            place: entry.key_place.clone(),
            value: read_or_advise(&entry.node, Some(&entry.key), report),
        });
        Some(Self(named.collect()))
    }

    fn shape() -> Shape {
        Shape::Map(Box::new(T::shape()))
    }
}

impl<K: Resolve, T: Resolve> Resolve for Map<K, T> {
    type Resolved = Vec<(K::Resolved, T::Resolved)>;

    fn resolve(&self) -> Option<Self::Resolved> {
        let pairs = self.0.iter();
        let pairs =
            pairs.map(|it| Some((it.key.as_ref()?.resolve()?, it.value.as_ref()?.resolve()?)));
        pairs.collect()
    }
}

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

impl<T: Resolve> Resolve for Secret<T> {
    type Resolved = T::Resolved;

    fn resolve(&self) -> Option<Self::Resolved> {
        self.0.resolve()
    }
}
