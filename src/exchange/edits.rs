//! A route's edits of requests to an endpoint, and of responses to the client.
//!
//! Edits change fields in heads that are already text: in a request's head as the endpoint would
//! get it, and in a response's head as it arrived or was made here.

use evenkeel_policy::route::path;
use evenkeel_policy::route::rewriting::{AmbiguousPath, rewrite, without_prefix};
use evenkeel_proto::BodyFraming;
use evenkeel_proto::http1::edit::{self, EditKind, SameName, edit_head};
use evenkeel_proto::http1::{BodyDecoder, is_authority};

use super::variables::{Values, expand, expand_target};
use super::{Exchange, SetField};
use crate::config::{Edits, FieldEdit};

impl<'a> Exchange<'a> {
    /// The route's edits, if it has any.
    pub(crate) fn edits(&self) -> Option<&'a Edits> {
        self.route()?.edits.as_deref()
    }

    /// The edits of responses, if there are any and the response goes to a client. A cache stores
    /// the unedited response.
    pub(super) fn response_edits(&self) -> Option<&'a [FieldEdit]> {
        let edits = &self.edits()?.response;
        (!edits.is_empty() && !self.side.is_store()).then_some(edits)
    }

    /// The listener's `Strict-Transport-Security`, unless the route changes the field.
    pub(super) fn strict_transport(&self) -> Option<&'a [u8]> {
        let value = self.listener().strict_transport()?;
        let is_of_field =
            |it: &FieldEdit| it.name.eq_ignore_ascii_case("strict-transport-security");
        let edits = self.response_edits().unwrap_or_default();
        (!edits.iter().any(is_of_field)).then_some(value)
    }

    /// A decoder at the start of a request's body. It drops trailer fields if the route sets or
    /// removes fields, as a server may read a trailer field as one of the head.
    pub(super) fn request_decoder(&self, framing: BodyFraming) -> BodyDecoder {
        decoder(framing, self.edits().map(|it| &it.request[..]))
    }

    /// The same for a response's body.
    pub(super) fn response_decoder(&self, framing: BodyFraming) -> BodyDecoder {
        decoder(framing, self.response_edits())
    }

    /// Checks the path for the endpoint, before an endpoint is asked.
    ///
    /// # Errors
    /// A server might read it as a path that the route does not match.
    pub(crate) fn check_path(&self) -> Result<(), AmbiguousPath> {
        match self.edits() {
            Some(edits) if edits.change_path() => {
                changed_target(&Values::of(self), edits).map(drop)
            }
            _ => Ok(()),
        }
    }
}

fn decoder(framing: BodyFraming, edits: Option<&[FieldEdit]>) -> BodyDecoder {
    let decoder = BodyDecoder::new(framing);
    let mut edits = edits.unwrap_or_default().iter();
    if edits.any(|it| it.kind.drops_lines()) {
        decoder.without_trailers()
    } else {
        decoder
    }
}

/// Makes the edits in the request's head, which is in `out` from `start` on. `head` is scratch
/// room.
#[cold]
pub(crate) fn edit_request(
    out: &mut Vec<u8>,
    start: usize,
    head: &mut Vec<u8>,
    values: &Values<'_>,
    edits: &Edits,
) {
    head.clear();
    head.extend_from_slice(&out[start..]);
    out.truncate(start);
    let line = match changed_target(values, edits) {
        Ok(Some(target)) => {
            let method = values.head.method_span.of(values.bytes);
            Some([method, b" ", &target[..], b" HTTP/1.1"].concat())
        }
        // An ambiguous path was refused before.
        Ok(None) | Err(AmbiguousPath) => None,
    };
    edit_fields(
        out,
        head,
        line.as_deref(),
        &edits.request,
        values,
        SameName::AsVariable,
    );
}

/// Sets fields in the request's head, which is in `out` from `start` on. `head` is scratch room.
///
/// Invariant: no field that the client sent under one of these names is forwarded, in any
/// spelling.
#[cold]
pub(crate) fn set_request_fields(
    out: &mut Vec<u8>,
    start: usize,
    head: &mut Vec<u8>,
    fields: &[SetField],
) {
    head.clear();
    head.extend_from_slice(&out[start..]);
    out.truncate(start);
    let removed = fields.iter().map(|it| edit::FieldEdit {
        kind: EditKind::Remove,
        name: it.name.as_bytes(),
    });
    let lines = fields.iter().flat_map(|it| {
        let name = it.name.as_bytes();
        let values = it.values.iter();
        values.map(move |value| (name, value))
    });
    let added = lines.clone().map(|(name, _)| edit::FieldEdit {
        kind: EditKind::Add,
        name,
    });
    let mut values = lines.map(|(_, value)| value);
    let edits = removed.chain(added);
    edit_head(out, head, None, edits, SameName::AsVariable, |out, _| {
        out.extend(values.next().into_iter().flatten());
    });
}

/// Appends the head of a response, with the edits made.
#[cold]
pub(super) fn edit_response(
    out: &mut Vec<u8>,
    head: &[u8],
    exchange: &Exchange<'_>,
    edits: &[FieldEdit],
) {
    let values = Values::of(exchange);
    edit_fields(out, head, None, edits, &values, SameName::WithoutCase);
}

fn edit_fields(
    out: &mut Vec<u8>,
    head: &[u8],
    first_line: Option<&[u8]>,
    edits: &[FieldEdit],
    values: &Values<'_>,
    same: SameName,
) {
    let is_host = |it: &FieldEdit| it.name.eq_ignore_ascii_case("host");
    // A request always keeps a host: its own, where the edited value is invalid.
    let keeps_host = edits.iter().filter(|it| is_host(it)).any(|it| {
        let mut value = Vec::new();
        expand(&mut value, &it.value, values, head);
        !is_authority(value.trim_ascii())
    });
    let is_void = |it: &FieldEdit| keeps_host && is_host(it);
    let named = edits.iter().map(|it| edit::FieldEdit {
        // An `Add` without a value changes nothing.
        kind: if is_void(it) { EditKind::Add } else { it.kind },
        name: it.name.as_bytes(),
    });
    edit_head(out, head, first_line, named, same, |out, at| {
        if !is_void(&edits[at]) {
            expand(out, &edits[at].value, values, head);
        }
    });
}

/// The target for the endpoint in place of the request's; `None` where it stays.
///
/// # Errors
/// See [`Exchange::check_path`].
pub(crate) fn changed_target(
    values: &Values<'_>,
    edits: &Edits,
) -> Result<Option<Vec<u8>>, AmbiguousPath> {
    if !edits.change_path() {
        return Ok(None);
    }
    let Values { bytes, head, .. } = *values;
    let asked = head.path(bytes);
    if !asked.starts_with(b"/") {
        // `OPTIONS *` asks about the server.
        return Ok(None);
    }
    let own_query = head.has_query().then(|| head.query.of(bytes));
    let mut query = None;
    let rewritten = match &edits.rewrite {
        None => rewrite(asked, |path| {
            without_prefix(path, &edits.strip_prefix).map(<[u8]>::to_vec)
        })?,
        Some(target) => {
            let made = |path: &[u8]| {
                let rest = without_prefix(path, &edits.strip_prefix).unwrap_or(path);
                expand_target(target, values, path, rest)
            };
            query = made(&path::normalise(asked)).1;
            rewrite(asked, |path| Some(made(path).0))?
        }
    };
    let Some(mut target) = rewritten else {
        return Ok(None);
    };
    if let Some(query) = query.as_deref().or(own_query) {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    Ok(Some(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_fields_are_the_only_ones_of_their_names() {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nRemote-User: root\r\nremote_user: root\r\nX-A: 1\r\n\
                    Remote_Groups: wheel\r\nContent-Length: 3\r\n\r\n";
        let fields = [
            ("Remote-User", &["kim"][..]),
            ("Remote-Groups", &[]),
            ("X-B", &["1", "2"]),
        ]
        .map(|(name, values)| SetField {
            name: name.into(),
            values: values.iter().map(|it| it.as_bytes().to_vec()).collect(),
        });
        let mut out = format!("before{head}").into_bytes();
        set_request_fields(&mut out, "before".len(), &mut Vec::new(), &fields);
        let expected = "beforeGET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nContent-Length: 3\r\n\
                        Remote-User: kim\r\nX-B: 1\r\nX-B: 2\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
