//! Conditions of rules. Each kind of condition is a file of this folder, and a row of the table
//! below.

mod all_of;
mod alpn;
mod any;
mod client;
mod client_certificate;
mod cookie;
mod first_bytes;
mod header;
mod host;
mod listener;
mod method;
mod not;
mod path;
mod query;
mod scheme;
mod share;
mod sni;
mod time;
mod value;

use super::{Facts, RoutedRequest};
pub use all_of::AllOf;
pub use alpn::Alpn;
pub use any::Any;
pub use client::Client;
pub use client_certificate::ClientCertificate;
pub use cookie::{Cookie, cookies};
pub use first_bytes::FirstBytes;
pub use header::Header;
pub use host::Host;
pub use listener::Listener;
pub use method::Method;
pub use not::Not;
pub use path::Path;
pub use query::{Query, parameters};
pub use scheme::Scheme;
pub use share::Share;
pub use sni::Sni;
pub use time::Time;
pub use value::ValuePattern;

/// The methods of every kind of condition.
pub(super) trait Ask: Sized {
    /// The part of a request that it looks at, named as in the configuration: `host`, `header
    /// x-user`.
    fn subject(&self) -> String;

    /// The wanted values, one of which is enough.
    fn wanted(&self) -> Vec<String>;

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool;

    /// The values of that part in the request; empty where it has none.
    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>>;

    /// Conditions for the tests of all kinds together.
    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self>;
}

/// Defines the kinds of conditions, in the order in which a rule checks them: the cheap ones
/// first.
macro_rules! conditions {
    ($($kind:ident,)*) => {
        /// One condition of a rule. In a condition with a list, one item of the list is enough.
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
            /// Its place in the order of checks.
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

            /// The part of a request that it looks at, named as in the configuration: `host`,
            /// `header x-user`.
            pub fn subject(&self) -> String {
                match self {
                    $( Self::$kind(it) => it.subject(), )*
                }
            }

            /// The wanted values, one of which is enough; listeners by their index.
            pub fn wanted(&self) -> Vec<String> {
                match self {
                    $( Self::$kind(it) => it.wanted(), )*
                }
            }

            /// The values of that part in the request; empty where it has none.
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
    Time,
    Share,
    // Invariant: before the path, as the index relies on it.
    Any,
    Path,
    Query,
    Header,
    Cookie,
    Not,
}

impl Condition {
    /// The alternatives of `any` and `not`; empty for other kinds.
    pub fn alternatives(&self) -> &[AllOf] {
        match self {
            Self::Any(any) => &any.0,
            Self::Not(not) => &not.0,
            _ => &[],
        }
    }

    /// Whether it is on the path, at any depth.
    pub(super) fn has_path(&self) -> bool {
        matches!(self, Self::Path(_)) || self.alternatives().iter().any(AllOf::has_path)
    }

    /// Whether the path is compared until it is known if it holds.
    pub(super) fn compares_path<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        for alternative in self.alternatives() {
            if alternative.compares_path(request) {
                return true;
            }
            if alternative.holds(request) {
                return false;
            }
        }
        matches!(self, Self::Path(_))
    }
}

#[cfg(test)]
impl Condition {
    /// Conditions that the index of a table uses.
    pub(super) fn any_indexed() -> impl proptest::strategy::Strategy<Value = Self> {
        use proptest::strategy::Strategy;
        proptest::prop_oneof![
            Host::any().prop_map(Self::Host),
            Path::any().prop_map(Self::Path),
            Any::any().prop_map(Self::Any),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Conditions that are each made of a few others, nested.
    pub fn alternatives() -> impl Strategy<Value = Vec<AllOf>> {
        let leaf = prop_oneof![
            Host::any().prop_map(Condition::from),
            Path::any().prop_map(Condition::from),
            Path::any().prop_map(Condition::from),
            Listener::any().prop_map(Condition::from),
            Method::any().prop_map(Condition::from),
            Query::any().prop_map(Condition::from),
            Share::any().prop_map(Condition::from),
        ];
        let nested = leaf.prop_recursive(2, 8, 2, |inner| {
            let alternatives = several(inner);
            prop_oneof![
                alternatives.clone().prop_map(|it| Condition::from(Any(it))),
                alternatives.prop_map(|it| Condition::from(Not(it))),
            ]
        });
        several(nested)
    }

    fn several(
        one: impl Strategy<Value = Condition> + Clone + 'static,
    ) -> impl Strategy<Value = Vec<AllOf>> + Clone {
        let all = prop::collection::vec(one, 0..3).prop_map(AllOf::new);
        prop::collection::vec(all, 1..3)
    }
}
