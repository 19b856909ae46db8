//! What a rule asks of a request. Each kind of condition is a file of this folder, and
//! a row of the table below.

mod alpn;
mod client;
mod client_certificate;
mod cookie;
mod first_bytes;
mod header;
mod host;
mod listener;
mod method;
mod path;
mod query;
mod scheme;
mod sni;
mod value;

use super::{Facts, RoutedRequest};
pub use alpn::Alpn;
pub use client::Client;
pub use client_certificate::ClientCertificate;
pub use cookie::{Cookie, cookies};
pub use first_bytes::FirstBytes;
pub use header::Header;
pub use host::Host;
pub use listener::Listener;
pub use method::Method;
pub use path::Path;
pub use query::{Query, parameters};
pub use scheme::Scheme;
pub use sni::Sni;
pub use value::ValuePattern;

/// What every kind of condition does.
trait Ask: Sized {
    /// What of a request it looks at, as the configuration names it: `host`,
    /// `header x-user`.
    fn subject(&self) -> String;

    /// What it asks for, one of these.
    fn wanted(&self) -> Vec<String>;

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool;

    /// What the request has of that; nothing where it has none.
    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>>;

    /// Conditions for the tests of all kinds together.
    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self>;
}

/// Defines the kinds of conditions, in the order in which a rule asks: what is cheap
/// to tell goes first.
macro_rules! conditions {
    ($($kind:ident,)*) => {
        /// One thing that a rule asks of a request. Where it holds a list, one item
        /// of the list is enough.
        #[derive(Debug, Clone)]
        pub enum Condition {
            $(
                #[doc = concat!("See [`", stringify!($kind), "`](struct@", stringify!($kind), ").")]
                $kind($kind),
            )*
        }

        $(
            impl From<$kind> for Condition {
                fn from(condition: $kind) -> Self {
                    Self::$kind(condition)
                }
            }
        )*

        impl Condition {
            /// Its place in the order in which a rule asks.
            pub(super) fn rank(&self) -> u8 {
                enum Rank {
                    $( $kind, )*
                }
                match self {
                    $( Self::$kind(_) => Rank::$kind as u8, )*
                }
            }

            pub(super) fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
                match self {
                    $( Self::$kind(it) => it.holds(request), )*
                }
            }

            /// What of a request it looks at, as the configuration names it: `host`,
            /// `header x-user`.
            pub fn subject(&self) -> String {
                match self {
                    $( Self::$kind(it) => it.subject(), )*
                }
            }

            /// What it asks for, one of these; listeners by their index.
            pub fn wanted(&self) -> Vec<String> {
                match self {
                    $( Self::$kind(it) => it.wanted(), )*
                }
            }

            /// What the request has of that; nothing where it has none.
            pub(super) fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
                match self {
                    $( Self::$kind(it) => it.found(request), )*
                }
            }

            /// Conditions of every kind.
            #[cfg(test)]
            pub(super) fn any() -> impl proptest::strategy::Strategy<Value = Self> {
                use proptest::strategy::Strategy;
                proptest::strategy::Union::new([
                    $( $kind::any().prop_map(Self::$kind).boxed(), )*
                ])
            }
        }
    };
}

conditions! {
    Listener,
    Scheme,
    Method,
    Host,
    Sni,
    Alpn,
    FirstBytes,
    Client,
    ClientCertificate,
    Path,
    Query,
    Header,
    Cookie,
}

#[cfg(test)]
impl Condition {
    /// Conditions that the index of a table goes by.
    pub(super) fn any_indexed() -> impl proptest::strategy::Strategy<Value = Self> {
        use proptest::strategy::Strategy;
        proptest::prop_oneof![
            Host::any().prop_map(Self::Host),
            Path::any().prop_map(Self::Path)
        ]
    }
}
