//! Windows of the time of day.

use evenkeel_policy::route::{Hours, TimeError, TimeWindow};
use jiff::tz::TimeZone;

use crate::setting::{Fault, FromText};

/// A window of the time of day, with its days and its zone.
#[derive(Debug)]
pub struct Window(pub TimeWindow);

impl FromText for Window {
    const FORM: &'static str = "a time of day, such as `\"22:00-06:00\"`, \
                                `\"mon-fri 08:00-18:00\"` or `\"22:00-06:00 Europe/Berlin\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = || Fault::new(format!("`{text}` is not a valid time of day"));
        let hours: Hours = text.parse().map_err(|error| match error {
            TimeError::NoHours => fault().help("write it as in \"22:00-06:00\""),
            TimeError::Day => {
                fault().help("days come first, as in \"mon-fri 08:00-18:00\" or \"sat,sun …\"")
            }
            TimeError::Empty => fault().help("the whole day is \"00:00-24:00\""),
        })?;
        let zone = match hours.zone.as_deref() {
            // A machine that does not say where it is has UTC.
            None => TimeZone::try_system().unwrap_or(TimeZone::UTC),
            Some("UTC") => TimeZone::UTC,
            Some(name) => TimeZone::get(name).map_err(|_| {
                Fault::new(format!("the time zone `{name}` is unknown on this machine")).help(
                    "write a name of the time zone database, as in \"Europe/Berlin\"; Debian's \
                     package for it is `tzdata`",
                )
            })?,
        };
        Ok(Self(TimeWindow::new(hours, zone, text)))
    }
}
