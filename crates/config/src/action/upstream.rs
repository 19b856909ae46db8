//! Proxying to an upstream.

use super::super::Proxying;
use super::super::diagnostics::Report;
use super::super::setting::Placed;
use super::super::value::Text;
use super::{ActionContext, WrittenAction};

/// The name, lane and priority are checked with all references.
impl WrittenAction for Placed<Text> {
    type Action = Proxying;

    fn resolve(&self, around: ActionContext<'_>, _: &mut Report) -> Option<Proxying> {
        around.proxying(self)
    }
}
