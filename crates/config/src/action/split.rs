//! Splits of requests among upstreams.

use std::collections::HashMap;

use evenkeel_policy::split::Share;

use super::super::diagnostics::Report;
use super::super::setting::{Bounded, Placed, Resolve};
use super::super::tree::SourcePlace;
use super::super::written::{self, Split, SplitPart, SplitTable};
use super::{ActionContext, WrittenAction};

/// The names of upstreams, lane and priority are checked with all references.
impl WrittenAction for Vec<Placed<SplitTable>> {
    type Action = Box<Split>;

    fn check(&self, route: &written::Route, report: &mut Report) {
        let mut first_places: HashMap<&str, &SourcePlace> = HashMap::new();
        let names = self
            .iter()
            .filter_map(|it| it.value.upstream.value.as_ref());
        for Placed { value, place } in names {
            if let Some(first) = first_places.get(&*value.0) {
                report
                    .mistake(place, format!("`{}` is in the split twice", value.0))
                    .related(first, "the first time")
                    .help("give it a larger `weight` to send it more");
            } else {
                first_places.insert(&value.0, place);
            }
        }
        let weights = self
            .iter()
            .map(|it| it.value.weight.value.map(Bounded::get));
        if weights.into_iter().all(|it| it == Some(0)) {
            report
                .mistake(&route.split.place, "no upstream of this split gets a request")
                .help("name upstreams, and give one of them a `weight`: split = [{ upstream = \"app\", weight = 95 }, { upstream = \"next\", weight = 5 }]");
        }
    }

    fn resolve(&self, around: ActionContext<'_>, _: &mut Report) -> Option<Box<Split>> {
        let parts = self.iter().map(|Placed { value, .. }| {
            let upstream = value.upstream.value.as_ref()?;
            Some(SplitPart {
                proxying: around.proxying(upstream)?,
                share: Share::new(&upstream.value.0, value.weight.value?.get()),
            })
        });
        Some(Box::new(Split {
            parts: parts.collect::<Option<_>>()?,
            by: around.route.split_by.value.as_ref()?.resolve()?,
        }))
    }
}
