//! `show listeners` and `show routes`: incoming requests, and their routes.

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use super::{of_limit, or_nothing, quantile};
use crate::metrics::quantity::bytes;
use crate::observe::figures::{ExchangeFigures, Figures, ListenerFigures, RouteFigures};

/// The cells that listeners and routes share, under these titles.
const EXCHANGE_TITLES: [&str; 6] = [">REQUESTS", ">ERRORS", ">IN", ">OUT", ">P50", ">P99"];

fn exchange_cells(exchanges: &ExchangeFigures) -> [String; 6] {
    [
        exchanges.requests.to_string(),
        exchanges.errors.to_string(),
        bytes(exchanges.bytes_in as f64),
        bytes(exchanges.bytes_out as f64),
        quantile(&exchanges.phases.total_us, 0.5),
        quantile(&exchanges.phases.total_us, 0.99),
    ]
}

fn with_exchange_titles(titles: &[&'static str]) -> Table {
    Table::new(&[titles, &EXCHANGE_TITLES].concat())
}

pub(in super::super) fn listeners(figures: &Figures, format: Format) -> Answer {
    format.show(&figures.listeners, |listeners| {
        let titles = ["LISTENER", "BIND", ">OPEN", ">CONNECTIONS", ">REFUSED"];
        let mut table = with_exchange_titles(&titles);
        for listener in listeners {
            table.row(
                listener_cells(listener)
                    .into_iter()
                    .chain(exchange_cells(&listener.exchanges)),
            );
        }
        table.text(0)
    })
}

fn listener_cells(listener: &ListenerFigures) -> [String; 5] {
    [
        listener.name.clone(),
        listener.bind.clone(),
        of_limit(listener.open, listener.connections_limit),
        listener.connections.to_string(),
        listener.connections_refused.to_string(),
    ]
}

pub(in super::super) fn routes(figures: &Figures, format: Format) -> Answer {
    format.show(&figures.routes, |routes| {
        let mut table = with_exchange_titles(&["ROUTE", "UPSTREAM"]);
        for route in routes {
            table.row(
                route_cells(route)
                    .into_iter()
                    .chain(exchange_cells(&route.exchanges)),
            );
        }
        table.text(0)
    })
}

fn route_cells(route: &RouteFigures) -> [String; 2] {
    [route.name.clone(), or_nothing(route.upstream.clone())]
}
