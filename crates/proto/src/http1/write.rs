//! Writes heads: ranges of the buffer that was parsed, with edits between.
//!
//! Runs of fields that stay are copied whole, so that their order, case and
//! spacing survive. Hop-by-hop fields are left out.

mod lines;
mod request;
mod response;
#[cfg(test)]
mod tests;

use lines::push_all;
pub use request::{ClientInfo, Forward, Marks, Relayed, TraceMark, Via, request_head};
pub use response::{
    HeadReuse, Persistence, RESPONSE_HEAD_GROWTH_MAX, ResponseEdits, STRICT_TRANSPORT_LEN_MAX,
    Transcode, add_strict_transport, connection_field, dated_status_line, kept_of_response_head,
    response_head, status_digits,
};

/// Appends the field that names a request.
pub fn request_id_field(out: &mut Vec<u8>, id: &[u8]) {
    push_all(out, [b"X-Request-ID: ", id, b"\r\n"]);
}
