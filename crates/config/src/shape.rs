//! What may be written as a value, as data.
//!
//! Diagnostics, the reference page, the JSON Schema and the effective configuration go
//! by it. The shape of a table comes from [`options!`](super::setting).

use super::tree::{Node, Value};

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
    /// The shape of a table that this stands in, once more.
    Again(Again),
}

/// A shape that has itself in it.
#[derive(Debug, Clone, Copy)]
pub struct Again {
    /// The shape.
    pub shape: fn() -> Shape,
    /// How it is named, as in "a table as in `match`".
    pub words: &'static str,
    /// Where it stands in the JSON Schema.
    pub pointer: &'static str,
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
    /// How a mistake names it, as in "a listener".
    pub title: &'static str,
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
    /// It must be written where this other key is not.
    RequiredWithout(&'static str),
    /// This value, as TOML.
    Default(&'static str),
    /// This, in words.
    Optional(&'static str),
    /// What the other keys of the table say, as TOML and in words.
    Depends(fn(&Node) -> Option<String>, &'static str),
}

impl Presence {
    /// Whether it must be written in the plain case.
    pub(super) fn is_required(self) -> bool {
        matches!(self, Self::Required | Self::RequiredWithout(_))
    }

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
            Self::Required | Self::RequiredWithout(_) | Self::Optional(_) => None,
        }
    }
}

impl TableShape {
    /// Whether its only key tells the kind of the value in it, as in `{ regex = "…" }`.
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
            Value::Table(_) => |it| it.is_table(),
            Value::List(_) => |it| matches!(it, Shape::List(_)),
            _ => |it| !it.is_table() && !matches!(it, Shape::List(_)),
        })
    }

    /// What an alternative may be, by `words`.
    fn alternative(&self, words: fn(&Shape) -> String) -> String {
        match self {
            Self::Table(table) if table.is_form() => {
                format!("`{{ {} = … }}`", table.keys[0].key)
            }
            _ => words(self),
        }
    }

    fn is_table(&self) -> bool {
        matches!(self, Self::Table(_) | Self::Map(_) | Self::Again(_))
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
                _ => {
                    let words = shapes.iter().map(|it| it.alternative(Shape::brief));
                    alternatives(&words.collect::<Vec<_>>())
                }
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
            Self::Again(again) => again.words.into(),
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
