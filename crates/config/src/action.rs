//! Actions of routes: the checks of each, and its settings for the program.
//!
//! A new action needs a row in the table of `written::route`, and a file here. Its options as
//! written are a table of `written`. The program's handler has a file of its own.

mod answer;
pub(crate) mod files;
mod redirect;
mod split;
mod upstream;

use super::diagnostics::Report;
use super::setting::Placed;
use super::surroundings::Surroundings;
use super::value::Text;
use super::written::Split;
use super::written::{self, Names, actions};
use super::{Files, FixedAnswer, Proxying, Redirect};

macro_rules! define_action {
    ($($(#[doc = $help:literal])* $key:ident: $type:ty => $variant:ident($resolved:ty);)*) => {
        /// The action that answers a request.
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
    /// The upstreams that its requests may go to, by their indices: for files, that of
    /// requests for which none is found.
    pub fn upstreams(&self) -> impl Iterator<Item = usize> {
        let (one, parts) = match self {
            Action::Upstream(proxying) => (Some(*proxying), &[][..]),
            Action::Split(split) => (None, &split.parts[..]),
            Action::Files(files) => (files.fallback, &[][..]),
            Action::Answer(_) | Action::Redirect(_) => (None, &[][..]),
        };
        let parts = parts.iter().map(|it| it.proxying);
        one.into_iter().chain(parts).map(|it| it.upstream)
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
pub(super) struct ActionContext<'a> {
    pub route: &'a written::Route,
    pub names: &'a Names<'a>,
    pub surroundings: Surroundings<'a>,
}

impl ActionContext<'_> {
    /// How requests of the route go to the upstream of this name.
    pub fn proxying(&self, upstream: &Placed<Text>) -> Option<Proxying> {
        let upstream = self.names.upstream(&upstream.value.0)?;
        let lane = self.route.lane.value.as_ref();
        Some(Proxying {
            upstream,
            lane: lane.and_then(|it| self.names.lane(upstream, &it.0)),
            priority: self.route.priority.value?.get(),
        })
    }
}

/// An action as written.
pub(super) trait WrittenAction {
    /// Its settings for the program.
    type Action;

    /// Reports contradictions and doubts between its options.
    fn check(&self, _route: &written::Route, _report: &mut Report) {}

    /// The settings; `None` where something in them is mistaken.
    fn resolve(&self, around: ActionContext<'_>, report: &mut Report) -> Option<Self::Action>;
}
