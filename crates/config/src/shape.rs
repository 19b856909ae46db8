//! The values that an option accepts, as data.
//!
//! Diagnostics, the reference page, the JSON Schema and the effective configuration are derived
//! from it. The shape of a table comes from [`options!`](super::setting).

use super::tree::{Node, Value};

/// The values that an option accepts.
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
    /// A value that no output shows.
    Secret(Box<Shape>),
    /// Any of these.
    AnyOf(Vec<Shape>),
    /// The shape of an enclosing table again.
    Recursive(Recursive),
}

/// A shape that contains itself.
#[derive(Debug, Clone, Copy)]
pub struct Recursive {
    /// The shape.
    pub shape: fn() -> Shape,
    /// Its name in words, as in "a table as in `match`".
    pub words: &'static str,
    /// Its JSON pointer in the JSON Schema.
    pub pointer: &'static str,
}

/// One of a few words.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The word.
    pub word: &'static str,
    /// The meaning of the word.
    pub help: &'static str,
}

/// A table of options.
#[derive(Debug, Clone)]
pub struct TableShape {
    /// The name of the table in a mistake, as in "a listener".
    pub title: &'static str,
    /// The purpose of the table.
    pub about: String,
    /// Its options, in the order to show.
    pub keys: Vec<KeyShape>,
}

/// One option.
#[derive(Debug, Clone)]
pub struct KeyShape {
    /// The key.
    pub key: &'static str,
    /// The effect of the option.
    pub help: String,
    /// The values that it accepts.
    pub shape: Shape,
    /// Whether it must be written, or its default.
    pub presence: Presence,
}

/// Whether an option must be written, or its default.
#[derive(Debug, Clone, Copy)]
pub enum Presence {
    /// The option must be written.
    Required,
    /// The option must be written if this other key is not.
    RequiredWithout(&'static str),
    /// The default is this value, as TOML.
    Default(&'static str),
    /// The default in words.
    Optional(&'static str),
    /// The default depends on other keys of the table: as TOML, and in words.
    Depends(fn(&Node) -> Option<String>, &'static str),
}

impl Presence {
    /// Whether the option must be written, whatever the other keys.
    pub(super) fn is_required(self) -> bool {
        matches!(self, Self::Required | Self::RequiredWithout(_))
    }

    /// Whether an empty table is the default.
    pub(super) fn is_empty_table(self) -> bool {
        matches!(self, Self::Default("{}"))
    }

    /// The default of the key in the table at `node`, as TOML.
    pub(super) fn default_in(self, node: &Node) -> Option<String> {
        match self {
            Self::Default(text) => Some(text.to_owned()),
            Self::Depends(default, _) => default(node),
            Self::Required | Self::RequiredWithout(_) | Self::Optional(_) => None,
        }
    }
}

impl TableShape {
    /// Whether its only key names the kind of the value, as in `{ regex = "…" }`.
    pub(super) fn is_form(&self) -> bool {
        let is_required = |it: &KeyShape| matches!(it.presence, Presence::Required);
        matches!(&self.keys[..], [only] if is_required(only))
    }

    /// Whether it has an option with this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|it| it.key == key)
    }
}

impl Shape {
    /// Whether this shape, or one of its alternatives, is of a kind.
    pub(super) fn is_any(&self, is: fn(&Shape) -> bool) -> bool {
        match self {
            Self::AnyOf(shapes) => shapes.iter().any(|it| it.is_any(is)),
            _ => is(self),
        }
    }

    /// Whether a value is of the right kind: a table, a list, or neither.
    pub(super) fn takes(&self, value: &Value) -> bool {
        self.is_any(match value {
            Value::Table(_) => |it| it.is_table(),
            Value::List(_) => |it| matches!(it, Shape::List(_)),
            _ => |it| !it.is_table() && !matches!(it, Shape::List(_)),
        })
    }

    /// The text for an alternative, made by `words`.
    fn alternative(&self, words: fn(&Shape) -> String) -> String {
        match self {
            Self::Table(table) if table.is_form() => {
                format!("`{{ {} = … }}`", table.keys[0].key)
            }
            _ => words(self),
        }
    }

    fn is_table(&self) -> bool {
        matches!(self, Self::Table(_) | Self::Map(_) | Self::Recursive(_))
    }

    /// The accepted values, in words and without examples.
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
                _ => {
                    let words = shapes.iter().map(|it| it.alternative(Shape::brief));
                    alternatives(&words.collect::<Vec<_>>())
                }
            },
            _ => self.words(),
        }
    }

    /// The words of a choice; empty for other shapes.
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

    /// The accepted values, in words.
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
            Self::Recursive(again) => again.words.into(),
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
                    let words = shapes.iter().map(|it| it.alternative(Shape::words));
                    let mut words: Vec<_> = words.collect();
                    // // Examples run on to the end of the sentence, so they come last.
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
