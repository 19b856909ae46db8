//! Error pages that come from an upstream.
//!
//! ```text
//! error ─▶ a page has come before ─▶ it answers; one fetch a second brings the next
//!        └▶ one fetch for all who wait ─┬▶ 200: it answers, and is kept
//!                                       └▶ else: a short text
//! ```
//!
//! What is kept of pages is the context's, and the fetch is `page_fetch`'s.

use std::rc::Rc;

use super::Exchange;
use super::context::FetchedPage;
use crate::config::ErrorPage;

/// The page of its upstream; `None` where there is none, which is counted. It waits where
/// none has come before, and no longer than the page's `timeout`.
pub(super) async fn fetched(exchange: &Exchange<'_>, page: &ErrorPage) -> Option<Rc<FetchedPage>> {
    let source = page.source.as_ref()?;
    // A cache or another exchange only hears that it failed.
    if exchange.side.is_store() {
        return None;
    }
    let context = exchange.context;
    let fetch = context.fetch_of_page(&exchange.client.listener, source);
    // The last page does until the next one is there.
    if let (Some(fetch), None) = (fetch, context.last_page(source)) {
        exchange.set_timeout(source.timeout);
        // Its end has no word, and a late page is for the next error.
        let _ = context.until_deadline(&exchange.timer, fetch).await;
    }
    let found = context.last_page(source);
    if found.is_none() {
        context.counters.own.error_pages_missed.add(1);
    }
    found
}
