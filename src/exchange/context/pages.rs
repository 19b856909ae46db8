//! Error pages of a generation that come from upstreams, for one worker.
//!
//! Invariant: however many errors there are, there is one fetch of a page at a time, and one in
//! [`KEPT`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_policy::Instant;
use tokio::sync::oneshot;

use super::{Context, ListenerSide};
use crate::config::PageSource;
use crate::net::{clock, tasks};

/// Time for which a page answers further errors, and for which a failed fetch is not repeated.
const KEPT: Duration = Duration::from_secs(1);

/// A page of an upstream.
#[derive(Debug)]
pub struct FetchedPage {
    /// Value of `Content-Type`, where it has one.
    pub content_type: Option<String>,
    /// Its body.
    pub body: Vec<u8>,
}

/// A page to fetch.
#[derive(Debug)]
pub struct WantedPage {
    /// The worker, and the generation with the page.
    pub context: Context,
    /// The listener of the exchange that first wants it.
    pub listener: Rc<ListenerSide>,
    /// The upstream and path of the page.
    pub source: PageSource,
}

/// Fetches a page; `None` if none arrives in time.
pub type FetchPage = fn(WantedPage) -> Pin<Box<dyn Future<Output = Option<FetchedPage>>>>;

/// The pages that were fetched or are being fetched.
#[derive(Debug, Default)]
pub(super) struct FetchedPages(RefCell<HashMap<PageKey, KeptPage>>);

/// Index of the upstream, and the path.
type PageKey = (usize, String);

#[derive(Debug, Default)]
struct KeptPage {
    /// The last page that arrived.
    page: Option<Rc<FetchedPage>>,
    /// End of the last fetch.
    fetched: Option<Instant>,
    /// The exchanges that wait for the fetch in flight; `None` without one.
    waiting: Option<Vec<oneshot::Sender<()>>>,
}

fn key_of(source: &PageSource) -> PageKey {
    (source.proxying.upstream, source.path.clone())
}

impl Context {
    /// The last page from this source.
    pub(in crate::exchange) fn last_page(&self, source: &PageSource) -> Option<Rc<FetchedPage>> {
        let pages = self.generation().fetched_pages.0.borrow();
        pages.get(&key_of(source))?.page.clone()
    }

    /// The end of the fetch to wait for; `None` if the page is fresh. Starts a fetch if there is
    /// none.
    pub(in crate::exchange) fn fetch_of_page(
        &self,
        listener: &Rc<ListenerSide>,
        source: &PageSource,
    ) -> Option<oneshot::Receiver<()>> {
        let key = key_of(source);
        let mut pages = self.generation().fetched_pages.0.borrow_mut();
        let kept = pages.entry(key.clone()).or_default();
        let (sender, receiver) = oneshot::channel();
        if let Some(waiting) = &mut kept.waiting {
            waiting.push(sender);
            return Some(receiver);
        }
        if kept.fetched.is_some_and(|it| clock::since(it) < KEPT) {
            return None;
        }
        kept.waiting = Some(vec![sender]);
        let fetching = (self.fetch_page)(WantedPage {
            context: self.clone(),
            listener: listener.clone(),
            source: source.clone(),
        });
        let context = self.clone();
        tasks::spawn(async move {
            let page = fetching.await;
            let mut pages = context.generation().fetched_pages.0.borrow_mut();
            let kept = pages.entry(key).or_default();
            kept.fetched = Some(clock::now());
            if let Some(page) = page {
                kept.page = Some(Rc::new(page));
            }
            // They wake up, and find the page.
            kept.waiting = None;
        });
        Some(receiver)
    }
}
