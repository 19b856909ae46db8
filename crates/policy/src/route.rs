//! Route matching: the first rule that a request meets decides.

use std::net::IpAddr;

/// What a request shows to the matcher, whichever protocol it came by.
pub trait Facts {
    /// Index of the listener that accepted the connection.
    fn listener(&self) -> usize;
    /// Method, as sent.
    fn method(&self) -> &[u8];
    /// Host without port, as sent.
    fn host(&self) -> &[u8];
    /// Path without query, as sent.
    fn path(&self) -> &[u8];
    /// Query without `?`, empty where there is none.
    fn query(&self) -> &[u8];
    /// Address of the client.
    fn client(&self) -> IpAddr;
    /// Values of every field with this name (compared without case), in order.
    fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]>;
}

/// The compiled matcher.
#[derive(Debug, Default)]
pub struct RouteTable {
    rule_count: usize,
}

impl RouteTable {
    /// Index of the first rule that matches, or `None`.
    pub fn find(&self, _request: &impl Facts) -> Option<usize> {
        (self.rule_count > 0).then_some(0)
    }
}
