//! Complete answers, as `explain` shows them.

use serde::{Deserialize, Serialize};

/// An answer from memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerStep {
    /// Status code.
    pub status: u16,
    /// Value of `Content-Type`.
    pub content_type: String,
    /// Length of the body, in bytes.
    pub body_bytes: usize,
    /// The file with the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Further fields: names and values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

/// A redirect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectStep {
    /// Status code.
    pub status: u16,
    /// Value of `Location` for this request.
    pub location: String,
}
