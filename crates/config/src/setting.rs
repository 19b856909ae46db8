//! How one option is read, and what can be said about it.
//!
//! [`options!`] defines a table of options: key, type, default and help, each
//! once. Reading, the checks for unknown and missing keys, the reference page,
//! the JSON Schema and the effective configuration all derive from it.

use super::diagnostics::Report;
use super::form;
use super::tree::{self, Node, Place, Value};

/// A type that can stand as the value of an option.
pub trait Setting: Sized {
    /// Reads it; `None` after reporting why not.
    fn read(node: &Node, report: &mut Report) -> Option<Self>;

    /// What may be written.
    fn shape() -> Shape;
}

/// What may be written as a value.
#[derive(Debug, Clone)]
pub enum Shape {
    /// `true` or `false`.
    Boolean,
    /// An integer between bounds, both included.
    Integer {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A number from 0 to 1.
    Part,
    /// Text of some form.
    Text {
        /// The form, in words.
        form: &'static str,
        /// The form as a regular expression (ECMA 262), where it has one.
        pattern: Option<&'static str>,
    },
    /// One of a few words.
    Choice(Vec<Choice>),
    /// A table of options.
    Table(TableShape),
    /// A list.
    List(Box<Shape>),
    /// A table whose keys are names.
    Map(Box<Shape>),
    /// This, which is not shown.
    Secret(Box<Shape>),
    /// Any of these.
    AnyOf(Vec<Shape>),
}

/// One of a few words.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The word.
    pub word: &'static str,
    /// What it stands for.
    pub help: &'static str,
}

/// A table of options.
#[derive(Debug, Clone)]
pub struct TableShape {
    /// What it is for.
    pub about: String,
    /// Its options, in the order to show.
    pub keys: Vec<KeyShape>,
}

/// One option.
#[derive(Debug, Clone)]
pub struct KeyShape {
    /// The key.
    pub key: &'static str,
    /// What it does.
    pub help: String,
    /// What may be written.
    pub shape: Shape,
    /// Whether it must be.
    pub presence: Presence,
}

/// What holds where an option is not written.
#[derive(Debug, Clone, Copy)]
pub enum Presence {
    /// It must be written.
    Required,
    /// This value, as TOML.
    Default(&'static str),
    /// This, in words.
    Optional(&'static str),
    /// What the other keys of the table say, as TOML and in words.
    Depends(fn(&Node) -> Option<String>, &'static str),
}

impl Presence {
    /// Whether an empty table holds where the key is not written.
    pub(super) fn is_empty_table(self) -> bool {
        matches!(self, Self::Default("{}"))
    }

    /// The value that holds in the table at `node` where the key is not
    /// written, as TOML.
    pub(super) fn default_in(self, node: &Node) -> Option<String> {
        match self {
            Self::Default(text) => Some(text.to_owned()),
            Self::Depends(default, _) => default(node),
            Self::Required | Self::Optional(_) => None,
        }
    }
}

impl TableShape {
    /// Whether it has an option with this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|it| it.key == key)
    }
}

impl Shape {
    /// Whether it is of a kind, or one of its alternatives is.
    pub(super) fn is_any(&self, is: fn(&Shape) -> bool) -> bool {
        match self {
            Self::AnyOf(shapes) => shapes.iter().any(|it| it.is_any(is)),
            _ => is(self),
        }
    }

    /// Whether a value is of the kind that it takes: a table, a list, or neither.
    pub(super) fn takes(&self, value: &Value) -> bool {
        self.is_any(match value {
            Value::Table(_) => |it| matches!(it, Shape::Table(_) | Shape::Map(_)),
            Value::List(_) => |it| matches!(it, Shape::List(_)),
            _ => |it| !matches!(it, Shape::Table(_) | Shape::Map(_) | Shape::List(_)),
        })
    }

    /// What may be written, in words and without examples.
    pub fn brief(&self) -> String {
        let brief = |text: &'static str| text.split(", such as").next().unwrap_or(text);
        match self {
            Self::Text { form, .. } => brief(form).to_owned(),
            Self::Secret(shape) => shape.brief(),
            Self::List(item) if !matches!(**item, Self::Table(_)) => {
                format!("a list, each {}", item.brief())
            }
            Self::AnyOf(shapes) => match &shapes[..] {
                [one, Self::List(_)] => format!("{}, or a list", one.brief()),
                _ => alternatives(&shapes.iter().map(Shape::brief).collect::<Vec<_>>()),
            },
            _ => self.words(),
        }
    }

    /// The words of a choice; of another shape there are none.
    pub(super) fn choices(&self) -> &[Choice] {
        match self {
            Self::Choice(choices) => choices,
            _ => &[],
        }
    }

    /// The first example of a text, in its quotes.
    pub(super) fn example(&self) -> Option<String> {
        match self {
            Self::Text { form, .. } => {
                let (_, examples) = form.split_once("such as `")?;
                Some(examples.split('`').next()?.to_owned())
            }
            Self::List(item) => item.example(),
            Self::AnyOf(shapes) => shapes.iter().find_map(Self::example),
            _ => None,
        }
    }

    /// What may be written, in words.
    pub fn words(&self) -> String {
        match self {
            Self::Boolean => "`true` or `false`".into(),
            Self::Integer { min, max } => match (*min, *max) {
                (min, i64::MAX | 0xFFFF_FFFF) => format!("an integer from {min}"),
                (min, max) => format!("an integer from {min} to {max}"),
            },
            Self::Part => "a number from 0 to 1".into(),
            Self::Text { form, .. } => (*form).into(),
            Self::Choice(choices) => {
                let words: Vec<_> = choices
                    .iter()
                    .map(|it| format!("`\"{}\"`", it.word))
                    .collect();
                alternatives(&words)
            }
            Self::Table(_) => "a table".into(),
            Self::Secret(shape) => shape.words(),
            Self::List(item) => match &**item {
                Self::Table(_) => "a list of tables".into(),
                item => format!("a list, each {}", item.words()),
            },
            Self::Map(value) => match &**value {
                Self::Table(_) => "a table of tables by name".into(),
                _ => "a table by name".into(),
            },
            Self::AnyOf(shapes) => match &shapes[..] {
                [one, Self::List(_)] => format!("{}, or a list", one.words()),
                _ => {
                    let mut words: Vec<_> = shapes.iter().map(Shape::words).collect();
                    // Examples go on to the end of the sentence.
                    words.sort_by_key(|it| it.contains(", such as"));
                    alternatives(&words)
                }
            },
        }
    }
}

/// `a, b or c`.
pub(super) fn alternatives(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Says what was expected in place of what stands at `node`.
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
    /// Where it stands, or else the table that it would stand in.
    pub place: Place,
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
    if matches!(presence, Presence::Required)
        && !report.is_syntax_broken()
        && !is_misspelt(node, key)
    {
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

/// Whether a key of the table at `node` was probably meant to be `key`.
fn is_misspelt(node: &Node, key: &str) -> bool {
    let Value::Table(entries) = &node.value else {
        return false;
    };
    entries
        .iter()
        .any(|it| super::diagnostics::nearest(&it.key, [key]).is_some())
}

/// What the program uses in place of what is written.
pub trait Resolve {
    /// The type that the program uses.
    type Resolved;

    /// The value; `None` where something in it is mistaken.
    fn resolve(&self) -> Option<Self::Resolved>;
}

/// The type and the value of a resolved option, by its presence.
macro_rules! resolved {
    (@type Optional $type:ty) => {
        Option<<$type as $crate::setting::Resolve>::Resolved>
    };
    (@type $presence:ident $type:ty) => {
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

/// Defines a table of options. See the head of this file.
macro_rules! options {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident as $title:literal for $(#[$attribute:meta])* $resolved:ident {
            $(
                $(#[doc = $help:literal])*
                $key:ident: $type:ty = $presence:ident $(($($argument:tt)*))?,
            )*
        }
    ) => {
        $crate::setting::options! {
            $(#[doc = $about])*
            pub struct $name as $title {
                $(
                    $(#[doc = $help])*
                    $key: $type = $presence $(($($argument)*))?,
                )*
            }
        }

        $(#[doc = $about])*
        $(#[$attribute])*
        pub struct $resolved {
            $(
                $(#[doc = $help])*
                pub $key: $crate::setting::resolved!(@type $presence $type),
            )*
        }

        impl $crate::setting::Resolve for $name {
            type Resolved = $resolved;

            fn resolve(&self) -> Option<$resolved> {
                Some($resolved {
                    $( $key: $crate::setting::resolved!(@value $presence self.$key), )*
                })
            }
        }
    };
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident as $title:literal {
            $(
                $(#[doc = $help:literal])*
                $key:ident: $type:ty = $presence:expr,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug)]
        pub struct $name {
            $( $(#[doc = $help])* pub $key: $crate::setting::Field<$type>, )*
        }

        impl $crate::setting::Setting for $name {
            fn read(
                node: &$crate::tree::Node,
                report: &mut $crate::diagnostics::Report,
            ) -> Option<Self> {
                use $crate::setting::{self, Presence::*};
                let $crate::tree::Value::Table(entries) = &node.value else {
                    return setting::wrong_type(node, report);
                };
                let known = [$( setting::key_name(stringify!($key)) ),*];
                $crate::unknown::check_keys(entries, $title, &known, report);
                Some(Self {
                    $( $key: {
                        let key = setting::key_name(stringify!($key));
                        setting::read_field(node, $title, key, $presence, report)
                    }, )*
                })
            }

            fn shape() -> $crate::setting::Shape {
                use $crate::setting::{self, Presence::*};
                setting::Shape::Table(setting::TableShape {
                    about: setting::prose(&[$($about),*]),
                    keys: vec![$( setting::KeyShape {
                        key: setting::key_name(stringify!($key)),
                        help: setting::prose(&[$($help),*]),
                        shape: <$type as setting::Setting>::shape(),
                        presence: $presence,
                    }, )*],
                })
            }
        }
    };
}
pub(super) use options;

/// The key that a Rust identifier stands for (`r#match` is `match`).
pub(super) fn key_name(identifier: &'static str) -> &'static str {
    identifier.trim_start_matches("r#")
}

/// The lines of a doc comment as one text.
pub(super) fn prose(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ").replace("  ", "\n\n")
}

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

/// An integer between bounds, both included, in the type that the program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounded<T, const MIN: i64, const MAX: i64>(T);

/// A type that a [`Bounded`] can have.
pub trait Whole: Copy {
    /// The least that it holds.
    const LEAST: i64;
    /// The most that it holds, as far as the file can say it.
    const MOST: i64;

    /// The same number; it lies between the two.
    fn from_i64(number: i64) -> Self;
}

macro_rules! whole {
    ($($type:ty),*) => {
        $(
            impl Whole for $type {
                const LEAST: i64 = 0;
                const MOST: i64 = if size_of::<$type>() < size_of::<i64>() {
                    <$type>::MAX as i64
                } else {
                    i64::MAX
                };

                fn from_i64(number: i64) -> Self {
                    number as $type
                }
            }
        )*
    };
}

whole!(u8, u16, u32, usize);

impl<T: Whole, const MIN: i64, const MAX: i64> Bounded<T, MIN, MAX> {
    /// Bounds that the type does not hold are a build error.
    const FITS: () = assert!(T::LEAST <= MIN && MIN <= MAX && MAX <= T::MOST);

    /// The number, if it is within the bounds.
    fn new(number: i64) -> Option<Self> {
        let () = Self::FITS;
        (MIN..=MAX)
            .contains(&number)
            .then(|| Self(T::from_i64(number)))
    }

    /// The number.
    pub fn get(self) -> T {
        self.0
    }
}

impl<T: Whole, const MIN: i64, const MAX: i64> Setting for Bounded<T, MIN, MAX> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let Value::Integer(number) = node.value else {
            return wrong_type(node, report);
        };
        let value = Self::new(number);
        if value.is_none() {
            let expected = Self::shape().words();
            report
                .mistake(&node.place, format!("{number} is out of range"))
                .label(format!("expected {expected}"));
        }
        value
    }

    fn shape() -> Shape {
        Shape::Integer { min: MIN, max: MAX }
    }
}

impl<T: Whole, const MIN: i64, const MAX: i64> Resolve for Bounded<T, MIN, MAX> {
    type Resolved = T;

    fn resolve(&self) -> Option<T> {
        Some(self.get())
    }
}

/// A value read from text.
pub trait FromText: Sized {
    /// The form of the text, in words.
    const FORM: &'static str;
    /// The form as a regular expression, where it has one.
    const PATTERN: Option<&'static str> = None;

    /// Reads it.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what to write instead.
    fn from_text(text: &str) -> Result<Self, Fault>;

    /// What is doubtful about a text that is a value.
    fn doubt(_text: &str) -> Option<Fault> {
        None
    }
}

/// Why text is no value, or a doubtful one.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong, following "`text` is not …".
    pub what: String,
    /// What to write instead.
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

/// Reads a value from text, reporting what is wrong at `place`.
pub(super) fn read_text<T: FromText>(text: &str, place: &Place, report: &mut Report) -> Option<T> {
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
                // Help that has the number in quotes, as a port without its colon.
                let help = match Self::from_text(&number.to_string()) {
                    Ok(_) => Some(format!("write it in quotes: \"{number}\"")),
                    Err(fault) => fault.help,
                };
                help.into_iter()
                    .for_each(|help| report.advise(&node.place, help));
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

impl<T: Setting> Setting for Vec<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::List(items) => {
                // In one piece: 20,000 routes that grow leave twice their memory behind.
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

/// What few of many tables have, so that it takes little room in the others.
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

/// A value with its place.
#[derive(Debug)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub place: Place,
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

/// A table whose keys are names.
#[derive(Debug)]
pub struct Map<T>(pub Vec<Named<T>>);

/// One entry of a [`Map`].
#[derive(Debug)]
pub struct Named<T> {
    /// The key.
    pub name: String,
    /// Where the key stands.
    pub place: Place,
    /// The value; `None` where it is mistaken.
    pub value: Option<T>,
}

impl<T: Setting> Setting for Map<T> {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let Value::Table(entries) = &node.value else {
            return wrong_type(node, report);
        };
        let named = entries.iter().map(|entry| Named {
            name: entry.key.clone(),
            place: entry.key_place.clone(),
            value: read_or_advise(&entry.node, Some(&entry.key), report),
        });
        Some(Self(named.collect()))
    }

    fn shape() -> Shape {
        Shape::Map(Box::new(T::shape()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_its_value_in_the_type_of_the_program() {
        type Most = Bounded<u32, 1, { u32::MAX as i64 }>;
        assert_eq!(
            Most::new(i64::from(u32::MAX)).map(Bounded::get),
            Some(u32::MAX)
        );
        assert_eq!(Most::new(1).map(Bounded::get), Some(1));
        for number in [0, -1, i64::MIN, i64::from(u32::MAX) + 1, i64::MAX] {
            assert_eq!(Most::new(number), None, "{number}");
        }
        assert_eq!(Bounded::<u8, 0, 9>::new(9).map(Bounded::get), Some(9));
    }
}
