//! Actions of routes: the checks of each, and its settings for the program.
//!
//! A new action has a row in the table of `written::route`, and a file here. The options
//! as written are a table of `written`. The program's handler is a file of its own.

mod answer;
mod files;
mod redirect;
mod upstream;

use super::diagnostics::Report;
use super::surroundings::Surroundings;
use super::written::{self, actions};
use super::{Files, FixedAnswer, Proxying, Redirect};

macro_rules! define_action {
    ($($(#[doc = $help:literal])* $key:ident: $type:ty => $variant:ident($resolved:ty);)*) => {
        /// What answers a request.
        #[derive(Debug, Clone)]
        pub enum Action {
            $(
                $(#[doc = $help])*
                $variant($resolved),
            )*
        }

        /// Evaluates an expression for the settings of an action, of whichever type:
        /// `with_action!(action, it => it.method())`.
        #[macro_export]
        macro_rules! with_action {
            ($action:expr, $it:ident => $do:expr) => {
                match $action {
                    $( $crate::Action::$variant($it) => $do, )*
                }
            };
        }
    };
}
actions!(define_action);

impl Action {
    /// How its requests go to an upstream: all, or those that no file is found
    /// for; `None` where none does.
    pub fn proxying(&self) -> Option<Proxying> {
        match self {
            Action::Upstream(proxying) => Some(*proxying),
            _ => self.files()?.fallback,
        }
    }

    /// The files that it answers with, if it does.
    pub fn files(&self) -> Option<&Files> {
        match self {
            Action::Files(files) => Some(files),
            _ => None,
        }
    }
}

/// The surroundings of an action, with which it is resolved.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    /// How requests of the route go to an upstream, if any do.
    pub proxying: Option<Proxying>,
    pub surroundings: Surroundings<'a>,
}

/// An action as written.
pub(super) trait WrittenAction {
    /// Its settings for the program.
    type Action;

    /// Reports what is wrong or doubtful between its options.
    fn check(&self, _route: &written::Route, _report: &mut Report) {}

    /// The settings; `None` where something in them is mistaken.
    fn resolve(&self, around: Around<'_>, report: &mut Report) -> Option<Self::Action>;
}
