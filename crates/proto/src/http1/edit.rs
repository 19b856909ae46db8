//! Edits of the fields of a head that is text already.

/// The effect of an edit on the fields of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditKind {
    /// The field has this value alone.
    Set,
    /// A further line has this value.
    Add,
    /// This value follows in the last line of the field, behind a comma.
    Append,
    /// The head has no such field.
    Remove,
}

impl EditKind {
    /// Whether the lines that a head has of the field go.
    pub fn drops_lines(self) -> bool {
        matches!(self, EditKind::Set | EditKind::Remove)
    }
}

/// Which names an edit takes for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameName {
    /// Names that differ in case alone.
    WithoutCase,
    /// Also names that servers turn into the same variable: `X_User` is `X-User`.
    AsVariable,
}

/// An edit of one field. Edits of a list are made in its order.
#[derive(Debug, Clone, Copy)]
pub struct FieldEdit<'a> {
    /// The kind of edit.
    pub kind: EditKind,
    /// Name of the field. The name of an [`EditKind::Remove`] may end in `*`, which stands for
    /// anything.
    pub name: &'a [u8],
}

/// The fields that frame a message, belong to its connection or find loops: no edit touches
/// them.
const FRAMING: [&[u8]; 8] = [
    b"cdn-loop",
    b"connection",
    b"content-length",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// Whether no edit touches the fields of this name, in any spelling that a server takes for
/// it.
pub fn is_framing(name: &[u8]) -> bool {
    FRAMING
        .iter()
        .any(|it| is_same(it, name, SameName::AsVariable))
}

impl FieldEdit<'_> {
    /// Whether it is about the field of this name.
    pub fn is_for(&self, name: &[u8], same: SameName) -> bool {
        match self.name.strip_suffix(b"*") {
            Some(beginning) if self.kind == EditKind::Remove => name
                .get(..beginning.len())
                .is_some_and(|it| is_same(beginning, it, same)),
            _ => is_same(self.name, name, same),
        }
    }
}

/// Whether two names are the same.
pub fn is_same(a: &[u8], b: &[u8], same: SameName) -> bool {
    let is_same = |(a, b): (&u8, &u8)| {
        let are_hyphens = || is_hyphen(*a) && is_hyphen(*b);
        a.eq_ignore_ascii_case(b) || same == SameName::AsVariable && are_hyphens()
    };
    a.len() == b.len() && a.iter().zip(b).all(is_same)
}

fn is_hyphen(byte: u8) -> bool {
    matches!(byte, b'-' | b'_')
}

/// Appends `head` to `out` with the edits made: its first line, its fields and the empty
/// line. A `first_line`, without its end, takes the place of the head's own.
///
/// `value` appends the value that the edit at this place of the list sets, adds or appends. If it
/// appends nothing, a field that is set is removed. `head` is a whole head whose lines end in
/// CRLF.
pub fn edit_head<'a>(
    out: &mut Vec<u8>,
    head: &[u8],
    first_line: Option<&[u8]>,
    edits: impl Iterator<Item = FieldEdit<'a>> + Clone,
    same: SameName,
    mut value: impl FnMut(&mut Vec<u8>, usize),
) {
    let mut lines = lines(head);
    let own = lines.next().unwrap_or_default();
    match first_line {
        None => out.extend_from_slice(own),
        Some(line) => {
            out.extend_from_slice(line);
            out.extend_from_slice(b"\r\n");
        }
    }
    let fields_start = out.len();
    for line in lines.take_while(|it| *it != b"\r\n") {
        let name = name_of(line);
        let is_dropped = |it: FieldEdit<'_>| it.kind.drops_lines() && it.is_for(name, same);
        if is_framing(name) || !edits.clone().any(is_dropped) {
            out.extend_from_slice(line);
        }
    }
    for (at, edit) in edits.enumerate() {
        if edit.kind == EditKind::Remove {
            continue;
        }
        let last = match edit.kind {
            EditKind::Append => end_of_last(out, fields_start, &edit, same),
            _ => None,
        };
        let line_start = out.len();
        if last.is_some() {
            out.extend_from_slice(b", ");
        } else {
            out.extend_from_slice(edit.name);
            out.extend_from_slice(b": ");
        }
        let value_start = out.len();
        value(out, at);
        trim_from(out, value_start);
        match last {
            _ if out.len() == value_start => out.truncate(line_start),
            Some(end) => {
                let appended = out.len() - line_start;
                out[end..].rotate_right(appended);
            }
            None => out.extend_from_slice(b"\r\n"),
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Trims the text in `out` from `start` on at both ends.
fn trim_from(out: &mut Vec<u8>, start: usize) {
    let len = out[start..].trim_ascii_end().len();
    out.truncate(start + len);
    let leading = len - out[start..].trim_ascii_start().len();
    if leading > 0 {
        out.drain(start..start + leading);
    }
}

/// The end of the value in the last line that an edit is for, of the lines from `start`.
fn end_of_last(out: &[u8], start: usize, edit: &FieldEdit<'_>, same: SameName) -> Option<usize> {
    let mut end = start;
    let mut found = None;
    for line in lines(&out[start..]) {
        end += line.len();
        let name = name_of(line);
        if !is_framing(name) && edit.is_for(name, same) {
            found = Some(end - b"\r\n".len());
        }
    }
    found
}

/// The lines of a head, with their ends.
pub(super) fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = head;
    std::iter::from_fn(move || {
        let len = memchr::memchr(b'\n', rest)? + 1;
        let (line, behind) = rest.split_at(len);
        rest = behind;
        Some(line)
    })
}

/// The name of the field in a line; empty where there is none.
pub(super) fn name_of(line: &[u8]) -> &[u8] {
    &line[..memchr::memchr(b':', line).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "GET / HTTP/1.1\r\nHost: a\r\nX-User: u\r\nx_user: v\r\nContent-Length: 3\r\n\r\n";

    fn edited(
        first_line: Option<&str>,
        edits: &[(EditKind, &str, &str)],
        same: SameName,
    ) -> String {
        let named = edits.iter().map(|&(kind, name, _)| FieldEdit {
            kind,
            name: name.as_bytes(),
        });
        let mut out = b"before".to_vec();
        let line = first_line.map(str::as_bytes);
        edit_head(&mut out, HEAD.as_bytes(), line, named, same, |out, at| {
            out.extend_from_slice(edits[at].2.as_bytes());
        });
        let text = String::from_utf8(out).expect("ASCII");
        text.strip_prefix("before")
            .expect("what was there")
            .to_owned()
    }

    #[test]
    fn fields_are_set_added_appended_and_removed() {
        use EditKind::{Add, Append, Remove, Set};
        let head = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        for (edits, fields) in [
            (&[][..], "X-User: u\r\nx_user: v\r\nContent-Length: 3\r\n"),
            (
                &[(Set, "x-user", "w")],
                "Content-Length: 3\r\nx-user: w\r\n",
            ),
            (&[(Set, "X-User", " ")], "Content-Length: 3\r\n"),
            (
                &[(Set, "X-User", " w\t")],
                "Content-Length: 3\r\nX-User: w\r\n",
            ),
            (&[(Remove, "X-*", "")], "Content-Length: 3\r\n"),
            (
                &[(Add, "X-User", "w")],
                "X-User: u\r\nx_user: v\r\nContent-Length: 3\r\nX-User: w\r\n",
            ),
            (
                &[(Append, "X-User", "w")],
                "X-User: u\r\nx_user: v, w\r\nContent-Length: 3\r\n",
            ),
            (
                &[(Append, "Via", "1.1 a"), (Append, "via", "b")],
                "X-User: u\r\nx_user: v\r\nContent-Length: 3\r\nVia: 1.1 a, b\r\n",
            ),
        ] {
            let shown = edited(None, edits, SameName::AsVariable);
            assert_eq!(shown, head(fields), "{edits:?}");
        }
        // An edit of a framing field would be a line of its own, which nobody can write.
        let appended = edited(
            None,
            &[(EditKind::Append, "Content_Length", "4")],
            SameName::AsVariable,
        );
        assert!(appended.contains("Content-Length: 3\r\n"), "{appended}");
        // Fields that frame the message stay.
        let shown = edited(None, &[(Remove, "*", "")], SameName::AsVariable);
        assert_eq!(shown, "GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\n");
        let shown = edited(
            Some("GET /b HTTP/1.1"),
            &[(Remove, "X-User", "")],
            SameName::WithoutCase,
        );
        let expected = "GET /b HTTP/1.1\r\nHost: a\r\nx_user: v\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(shown, expected);
    }
}
