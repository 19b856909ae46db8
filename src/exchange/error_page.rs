//! Error pages that come from an upstream.
//!
//! ```text
//! error ─▶ a page has come before ─▶ it answers; one fetch a second brings the next
//!        └▶ one fetch for all who wait ─┬▶ 200: it answers, and is kept
//!                                       └▶ else: a short text
//! ```
//!
//! The context keeps the pages, and `page_fetch` fetches them.

use std::rc::Rc;

use super::Exchange;
use super::context::FetchedPage;
use crate::config::ErrorPage;

/// The page from its upstream; `None` if there is none, which is counted. Waits only if no page
/// has come before, and at most for the page's `timeout`.
pub(super) async fn fetched(exchange: &Exchange<'_>, page: &ErrorPage) -> Option<Rc<FetchedPage>> {
    let source = page.source.as_ref()?;
    // A cache or another exchange only gets the failure.
    if exchange.side.is_store() {
        return None;
    }
    let context = exchange.context;
    let fetch = context.fetch_of_page(&exchange.client.listener, source);
    // The last page is used until the next one arrives.
    if let (Some(fetch), None) = (fetch, context.last_page(source)) {
        exchange.set_timeout(source.timeout);
        // Ignored: the fetch returns nothing, and a late page is for the next error.
        let _ = context.until_deadline(&exchange.timer, fetch).await;
    }
    let found = context.last_page(source);
    if found.is_none() {
        context.counters.own.error_pages_missed.add(1);
    }
    found
}
