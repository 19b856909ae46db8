//! The edits of requests and responses by routes.

use evenkeel_policy::route::path;
use evenkeel_proto::http1::edit::{self, EditKind, SameName};

use crate::Edits;
use crate::file_value::Front;
use crate::variable::TargetText;
use crate::written::{FieldEdit, File, Route, WrittenEdits};

/// The edits of the route: `None` after a mistake, `Some(None)` for no edits.
pub(super) fn edits(route: &Route, file: &File) -> Option<Option<Box<Edits>>> {
    let mut edits = Edits::default();
    let names = route.edits.value.iter().flat_map(|it| &it.0);
    for name in names {
        let mut tables = file.edits.value.iter().flat_map(|map| &map.0);
        let named = tables.find(|it| it.name == name.value.0)?;
        let table = named.value.as_ref()?;
        add(&mut edits, WrittenEdits::of_table(table))?;
    }
    add(&mut edits, route.own_edits())?;
    let is_empty = edits == Edits::default();
    Some((!is_empty).then(|| Box::new(edits)))
}

/// Adds the written edits to `edits`. Of two values for one field, the later one counts.
fn add(edits: &mut Edits, written: WrittenEdits<'_>) -> Option<()> {
    if let Some(Front(front)) = &written.strip_prefix.value {
        edits.strip_prefix = path::normalise(front.as_bytes()).into_owned();
    }
    if let Some(TargetText(target)) = &written.rewrite.value {
        edits.rewrite = Some(target.clone());
    }
    if let Some(fields) = &written.request.value {
        add_fields(&mut edits.request, fields.edits()?);
    }
    if let Some(fields) = &written.response.value {
        add_fields(&mut edits.response, fields.edits()?);
    }
    Some(())
}

/// Adds edits behind the existing ones. An edit that sets or removes a field undoes earlier
/// edits of that field, in any spelling.
fn add_fields(edits: &mut Vec<FieldEdit>, added: Vec<FieldEdit>) {
    let is_for = |edit: &FieldEdit, name: &str| {
        let edit = edit::FieldEdit {
            kind: edit.kind,
            name: edit.name.as_bytes(),
        };
        edit.is_for(name.as_bytes(), SameName::AsVariable)
    };
    for edit in &added {
        if matches!(edit.kind, EditKind::Set | EditKind::Remove) {
            edits.retain(|it| it.kind == EditKind::Remove || !is_for(edit, &it.name));
        }
    }
    edits.extend(added);
}

/// The fields, in lower case and with hyphens, that two requests may be sent on with different values in.
pub(super) fn names_that_vary(edits: &Edits) -> Vec<String> {
    let varying = edits.request.iter().filter(|it| !it.value.is_constant());
    varying.map(|it| hyphened(&it.name)).collect()
}

/// A name in lower case, and with hyphens.
pub(super) fn hyphened(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}
