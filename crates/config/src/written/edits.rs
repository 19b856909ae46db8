//! Edits of requests and responses.

use evenkeel_proto::http1::edit::EditKind;

use crate::file_value::Front;
use crate::reserved::{RemovedField, RequestField, ResponseField};
use crate::setting::{Boxed, Field, FromText, Map, Named, options};
use crate::variable::{Expression, FieldText, TargetText};

options! {
    /// A named set of edits: changes of requests on their way to an endpoint, and of responses
    /// on their way to the client. Routes refer to it by its name; a route's own edits come
    /// after it.
    pub struct EditsTable as "a set of edits" {
        /// A prefix to remove from the request's path before it is sent on: with `/api`,
        /// `/api/x` becomes `/x`.
        strip_prefix: Front = Optional("nothing"),
        /// The path to send on instead of the request's path, with variables. With a `?` it
        /// replaces the query too.
        rewrite: TargetText = Optional("the request's own"),
        /// Changes of a request's header fields.
        request_headers: Boxed<RequestHeaders> = Optional("none"),
        /// Changes of a response's header fields.
        response_headers: Boxed<ResponseHeaders> = Optional("none"),
    }
}

options! {
    /// Changes of the header fields of requests to endpoints. Evenkeel's own fields, such
    /// as `X-Forwarded-For`, can be changed too.
    pub struct RequestHeaders as "changes of request headers" {
        /// Fields to set to one value: name to value, with variables such as `{client_ip}`.
        /// Other lines of the field are replaced. A value that comes out empty removes the
        /// field.
        set: Map<RequestField, FieldText> = Default("{}"),
        /// Lines to add, beside those that the request has.
        add: Map<RequestField, FieldText> = Default("{}"),
        /// Values to append to a field, behind a comma.
        append: Map<RequestField, FieldText> = Default("{}"),
        /// Names of fields to remove, also in the spelling `X_User` for `X-User`. A name may
        /// end in `*`.
        remove: Vec<RemovedField> = Default("[]"),
    }
}

options! {
    /// Changes of the header fields of all responses to clients: from endpoints, from the
    /// cache, from files, and Evenkeel's own.
    pub struct ResponseHeaders as "changes of response headers" {
        /// Fields to set to one value: name to value, with variables such as `{request_id}`.
        /// Other lines of the field are replaced. A value that comes out empty removes the
        /// field.
        set: Map<ResponseField, FieldText> = Default("{}"),
        /// Lines to add, beside those that the response has.
        add: Map<ResponseField, FieldText> = Default("{}"),
        /// Values to append to a field, behind a comma.
        append: Map<ResponseField, FieldText> = Default("{}"),
        /// Names of fields to remove. A name may end in `*`.
        remove: Vec<RemovedField> = Default("[]"),
    }
}

/// The keys that a route and a set of edits have in common.
pub(crate) struct WrittenEdits<'a> {
    pub(crate) strip_prefix: &'a Field<Front>,
    pub(crate) rewrite: &'a Field<TargetText>,
    pub(crate) request: &'a Field<Boxed<RequestHeaders>>,
    pub(crate) response: &'a Field<Boxed<ResponseHeaders>>,
}

impl<'a> WrittenEdits<'a> {
    pub(crate) fn of_table(it: &'a EditsTable) -> Self {
        WrittenEdits {
            strip_prefix: &it.strip_prefix,
            rewrite: &it.rewrite,
            request: &it.request_headers,
            response: &it.response_headers,
        }
    }
}

/// An edit of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldEdit {
    /// Whether the field is set, added, appended or removed.
    pub kind: EditKind,
    /// Name of the field; with `Remove` it may end in `*`.
    pub name: String,
    /// The value to set, add or append.
    pub value: Expression,
}

/// The fields of a set of edits, for requests and for responses.
macro_rules! field_edits {
    ($($table:ty: $name:ty),*) => {$(
        impl $table {
            /// The fields that get a value, with that value.
            pub(crate) fn values(&self) -> impl Iterator<Item = &Named<$name, FieldText>> {
                let fields = [&self.set, &self.add, &self.append];
                let maps = fields.into_iter().filter_map(|it| it.value.as_ref());
                maps.flat_map(|map| &map.0)
            }

            /// The edits in the order in which they apply; `None` if one of them has a mistake.
            pub(crate) fn edits(&self) -> Option<Vec<FieldEdit>> {
                let removed = self.remove.value.as_ref()?.iter().map(|it| FieldEdit {
                    kind: EditKind::Remove,
                    name: it.0.clone(),
                    value: Expression::default(),
                });
                let mut edits: Vec<_> = removed.collect();
                for (kind, fields) in [
                    (EditKind::Set, &self.set),
                    (EditKind::Add, &self.add),
                    (EditKind::Append, &self.append),
                ] {
                    push_edits(&mut edits, kind, fields)?;
                }
                Some(edits)
            }
        }
    )*};
}
field_edits!(RequestHeaders: RequestField, ResponseHeaders: ResponseField);

fn push_edits<K: FromText>(
    edits: &mut Vec<FieldEdit>,
    kind: EditKind,
    fields: &Field<Map<K, FieldText>>,
) -> Option<()> {
    for field in &fields.value.as_ref()?.0 {
        edits.push(FieldEdit {
            kind,
            name: field.name.clone(),
            value: field.value.as_ref()?.0.clone(),
        });
    }
    Some(())
}
