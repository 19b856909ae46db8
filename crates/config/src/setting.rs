//! Reading of an option, and its description.
//!
//! [`options!`] defines a table of options: key, type, default and help, each
//! once. Reading, the checks for unknown and missing keys, the reference page,
//! the JSON Schema and the effective configuration all derive from it.
//!
//! A table `for` a type also emits that type, with a field for each option in the form that the
//! program uses. `key as field` names the field. A row that ends in `=> by_hand` has no field:
//! code makes one of the fields below `with` from it.

mod bounded;
mod containers;

use super::diagnostics::Report;
use super::form;
use super::shape::{Presence, Shape};
use super::tree::{self, Node, SourcePlace, Value};

pub use bounded::Bounded;
pub use containers::{Boxed, Map, Named, OneOrMore, Placed, Secret};

/// A type that can stand as the value of an option.
pub trait Setting: Sized {
    /// Reads it; `None` after reporting why not.
    fn read(node: &Node, report: &mut Report) -> Option<Self>;

    /// The values that it accepts.
    fn shape() -> Shape;
}

/// Reports that the value at `node` has the wrong type.
pub(super) fn wrong_type<T: Setting>(node: &Node, report: &mut Report) -> Option<T> {
    report
        .mistake(&node.place, format!("expected {}", T::shape().words()))
        .label(format!("this is {}", node.kind()));
    None
}

/// An option as read.
#[derive(Debug)]
pub struct Field<T> {
    /// Its value or default; `None` where it has neither or is mistaken.
    pub value: Option<T>,
    /// The place of the option, or of the table that it is missing from.
    pub place: SourcePlace,
    /// Whether it was written.
    pub written: bool,
}

/// Reads the option `key` of the table at `node`.
pub(super) fn read_field<T: Setting>(
    node: &Node,
    title: &str,
    key: &str,
    presence: Presence,
    report: &mut Report,
) -> Field<T> {
    if let Some(entry) = node.entry(key) {
        let value = read_or_advise(&entry.node, None, report);
        return Field {
            value,
            place: entry.node.place.clone(),
            written: true,
        };
    }
    let is_required = match presence {
        Presence::Required => true,
        Presence::RequiredWithout(other) => node.entry(other).is_none(),
        _ => false,
    };
    if is_required && !report.is_syntax_broken() && !is_misspelt(node, key) {
        report.mistake(&node.place, format!("{title} needs the key `{key}`"));
    }
    let at = |_| node.place.clone();
    let default = presence.default_in(node);
    let value = default
        .and_then(|text| tree::read_value(&text, &at))
        .and_then(|default| T::read(&default, report));
    Field {
        value,
        place: node.place.clone(),
        written: false,
    }
}

/// Reads a value, and says how to write one of another type. `name` is its key where
/// that is a name.
fn read_or_advise<T: Setting>(node: &Node, name: Option<&str>, report: &mut Report) -> Option<T> {
    let value = T::read(node, report);
    if value.is_none() {
        let shape = T::shape();
        let help = name.and_then(|it| form::nameless(it, &shape));
        let help = help.or_else(|| form::advice(node, &shape, report.text_at(&node.place)));
        if let Some(help) = help {
            report.advise(&node.place, help);
        }
    }
    value
}

/// The value of another option of a table, for a default that depends on it; `None`
/// where it is mistaken, which reading that option reports.
pub(super) fn sibling<T: Setting>(table: &Node, key: &str) -> Option<T> {
    T::read(&table.entry(key)?.node, &mut Report::default())
}

/// Whether a key of the table at `node` was probably meant to be `key`.
fn is_misspelt(node: &Node, key: &str) -> bool {
    let Value::Table(entries) = &node.value else {
        return false;
    };
    entries
        .iter()
        .any(|it| super::diagnostics::nearest(&it.key, [key]).is_some())
}

/// The resolved form of an option: from the type as written to the type that the program uses.
pub trait Resolve {
    /// The type that the program uses.
    type Resolved;

    /// The value; `None` where something in it is mistaken.
    fn resolve(&self) -> Option<Self::Resolved>;
}

/// The type and the value of a resolved option, by its presence.
macro_rules! resolved {
    (@type Optional [$type:ty]) => {
        Option<<$type as $crate::setting::Resolve>::Resolved>
    };
    (@type $presence:ident [$type:ty]) => {
        <$type as $crate::setting::Resolve>::Resolved
    };
    (@value Optional $field:expr) => {
        match &$field.value {
            Some(it) => Some($crate::setting::Resolve::resolve(it)?),
            None => None,
        }
    };
    (@value $presence:ident $field:expr) => {
        $crate::setting::Resolve::resolve($field.value.as_ref()?)?
    };
}
pub(super) use resolved;

/// Emits the resolved struct of a table: takes its rows one by one, then writes a field
/// for each that is not resolved by hand.
macro_rules! resolved_table {
    ($head:tt [$($row:tt)*]
        $(#[doc = $help:literal])*
        $key:ident: $type:ty = $presence:ident $(($($argument:tt)*))?,
        $($rest:tt)*
    ) => {
        $crate::setting::resolved_table! {
            $head [$($row)* { [$($help)*] $key $key [$type] $presence }] $($rest)*
        }
    };
    ($head:tt [$($row:tt)*]
        $(#[doc = $help:literal])*
        $key:ident as $field:ident: $type:ty = $presence:ident $(($($argument:tt)*))?,
        $($rest:tt)*
    ) => {
        $crate::setting::resolved_table! {
            $head [$($row)* { [$($help)*] $key $field [$type] $presence }] $($rest)*
        }
    };
    ($head:tt [$($row:tt)*]
        $(#[doc = $help:literal])*
        $key:ident: $type:ty = $presence:ident $(($($argument:tt)*))? => by_hand,
        $($rest:tt)*
    ) => {
        $crate::setting::resolved_table! { $head [$($row)*] $($rest)* }
    };
    (
        { [$($about:literal)*] [$($attribute:meta)*] $name:ident $resolved:ident }
        [$({ [$($help:literal)*] $key:ident $field:ident [$type:ty] $presence:ident })*]
    ) => {
        $(#[doc = $about])*
        $(#[$attribute])*
        pub struct $resolved {
            $(
                $(#[doc = $help])*
                pub $field: $crate::setting::resolved!(@type $presence [$type]),
            )*
        }

        impl $crate::setting::Resolve for $name {
            type Resolved = $resolved;

            fn resolve(&self) -> Option<$resolved> {
                Some($resolved {
                    $( $field: $crate::setting::resolved!(@value $presence self.$key), )*
                })
            }
        }
    };
    (
        {
            [$($about:literal)*] [$($attribute:meta)*] $name:ident $resolved:ident
            $parts:ident [$({ [$($of:literal)*] $part:ident [$part_type:ty] })*]
        }
        [$({ [$($help:literal)*] $key:ident $field:ident [$type:ty] $presence:ident })*]
    ) => {
        $(#[doc = $about])*
        $(#[$attribute])*
        pub struct $resolved {
            $(
                $(#[doc = $of])*
                pub $part: $part_type,
            )*
            $(
                $(#[doc = $help])*
                pub $field: $crate::setting::resolved!(@type $presence [$type]),
            )*
        }

        /// The fields of a table that are resolved by hand.
        pub(crate) struct $parts {
            $( pub $part: $part_type, )*
        }

        impl $name {
            /// The resolved table; `None` if one of its options has a mistake.
            pub(crate) fn resolve_with(&self, parts: $parts) -> Option<$resolved> {
                Some($resolved {
                    $( $part: parts.$part, )*
                    $( $field: $crate::setting::resolved!(@value $presence self.$key), )*
                })
            }
        }
    };
}
pub(super) use resolved_table;

/// Defines a table of options. See the head of this file.
macro_rules! options {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident as $title:literal
        for $(#[$attribute:meta])* $resolved:ident
        $(with $parts:ident {
            $(
                $(#[doc = $of:literal])*
                $part:ident: $part_type:ty,
            )*
        })?
        { $($rows:tt)* }
    ) => {
        $crate::setting::options! {
            $(#[doc = $about])*
            pub struct $name as $title { $($rows)* }
        }

        $crate::setting::resolved_table! {
            {
                [$($about)*] [$($attribute)*] $name $resolved
                $( $parts [$({ [$($of)*] $part [$part_type] })*] )?
            }
            []
            $($rows)*
        }
    };
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident as $title:literal {
            $(
                $(#[doc = $help:literal])*
                $key:ident $(as $field:ident)?: $type:ty = $presence:ident $(($($argument:tt)*))?
                    $(=> $apart:ident)?,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug)]
        pub struct $name {
            /// The place of the table.
            #[allow(dead_code, reason = "checks point at few tables as a whole")]
            pub place: $crate::tree::SourcePlace,
            $( $(#[doc = $help])* pub $key: $crate::setting::Field<$type>, )*
        }

        impl $crate::setting::Setting for $name {
            fn read(
                node: &$crate::tree::Node,
                report: &mut $crate::diagnostics::Report,
            ) -> Option<Self> {
                use $crate::setting;
                use $crate::shape::Presence::*;
                if !matches!(node.value, $crate::tree::Value::Table(_)) {
                    return setting::wrong_type(node, report);
                }
                Some(Self {
                    place: node.place.clone(),
                    $( $key: {
                        let key = setting::key_name(stringify!($key));
                        let presence = $presence $(($($argument)*))?;
                        setting::read_field(node, $title, key, presence, report)
                    }, )*
                })
            }

            fn shape() -> $crate::shape::Shape {
                use $crate::setting;
                use $crate::shape::{self, Presence::*};
                shape::Shape::Table(shape::TableShape {
                    title: $title,
                    about: setting::prose(&[$($about),*]),
                    keys: vec![$( shape::KeyShape {
                        key: setting::key_name(stringify!($key)),
                        help: setting::prose(&[$($help),*]),
                        shape: <$type as setting::Setting>::shape(),
                        presence: $presence $(($($argument)*))?,
                    }, )*],
                })
            }
        }
    };
}
pub(super) use options;

/// The key of a Rust identifier (`r#match` is `match`).
pub(super) fn key_name(identifier: &'static str) -> &'static str {
    identifier.trim_start_matches("r#")
}

/// The lines of a doc comment as one text.
pub(super) fn prose(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ").replace("  ", "\n\n")
}

/// Values that resolve to their content.
macro_rules! resolve_to {
    ($($name:ty => $type:ty),* $(,)?) => {
        $(
            impl $crate::setting::Resolve for $name {
                type Resolved = $type;

                fn resolve(&self) -> Option<$type> {
                    Some(Clone::clone(&self.0))
                }
            }
        )*
    };
}
pub(super) use resolve_to;

impl Resolve for bool {
    type Resolved = bool;

    fn resolve(&self) -> Option<bool> {
        Some(*self)
    }
}

impl Setting for bool {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match node.value {
            Value::Boolean(value) => Some(value),
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::Boolean
    }
}

/// A value read from text.
pub trait FromText: Sized {
    /// The form of the text, in words.
    const FORM: &'static str;
    /// The form as a regular expression, where it has one.
    const PATTERN: Option<&'static str> = None;
    /// What to write if a list of several values stands in its place.
    const SEVERAL: Option<&'static str> = None;

    /// Reads it.
    ///
    /// # Errors
    ///
    /// The fault in the text, with what to write instead.
    fn from_text(text: &str) -> Result<Self, Fault>;

    /// A warning about a text that is valid but doubtful.
    fn doubt(_text: &str) -> Option<Fault> {
        None
    }
}

/// Why text is no value, or a doubtful one.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// The fault, to follow "`text` is not …".
    pub what: String,
    /// Advice on what to write instead.
    pub help: Option<String>,
}

impl Fault {
    /// A fault without advice.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            help: None,
        }
    }

    /// Adds what to write instead.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Reads a value from text, and reports a fault at `place`.
pub(super) fn read_text<T: FromText>(
    text: &str,
    place: &SourcePlace,
    report: &mut Report,
) -> Option<T> {
    let (value, fault) = match T::from_text(text) {
        Ok(value) => (Some(value), T::doubt(text)),
        Err(fault) => (None, Some(fault)),
    };
    if let Some(fault) = fault {
        let found = match value {
            Some(_) => report.warning(place, fault.what),
            None => report.mistake(place, fault.what),
        };
        if let Some(help) = fault.help {
            found.help(help);
        }
    }
    value
}

impl<T: FromText> Setting for T {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::Text(text) => read_text(text, &node.place, report),
            Value::Integer(number) => {
                let found = wrong_type(node, report);
                // Advice with the number in quotes, for a port without its colon.
                let help = match Self::from_text(&number.to_string()) {
                    Ok(_) => Some(format!("write it in quotes: \"{number}\"")),
                    Err(fault) => fault.help,
                };
                help.into_iter()
                    .for_each(|help| report.advise(&node.place, help));
                found
            }
            Value::List(items) if items.len() > 1 => {
                let found = wrong_type(node, report);
                let help = T::SEVERAL.into_iter();
                help.for_each(|help| report.advise(&node.place, help.to_owned()));
                found
            }
            _ => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        Shape::Text {
            form: T::FORM,
            pattern: T::PATTERN,
        }
    }
}
