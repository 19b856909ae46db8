//! Edits of the fields of a head that is text already.

/// What an edit does to the field of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditKind {
    /// The field has this value alone.
    Set,
    /// A further line has this value.
    Add,
    /// This value follows in the last line of the field, behind a comma.
    Append,
    /// There is no such field.
    Remove,
}

/// Which names an edit takes for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameName {
    /// Those that differ in case alone.
    WithoutCase,
    /// Also those that servers turn into the same variable: `X_User` is `X-User`.
    AsVariable,
}

/// An edit of one field. Edits of a list are made in its order.
#[derive(Debug, Clone, Copy)]
pub struct FieldEdit<'a> {
    /// What is done.
    pub kind: EditKind,
    /// Name of the field. That of [`EditKind::Remove`] may end in `*`, which stands for
    /// anything.
    pub name: &'a [u8],
    /// What is set, added or appended. Where it is empty, nothing is: a field that is set
    /// to nothing is removed.
    pub value: &'a [u8],
}

/// The fields that frame a message or belong to its connection: no edit drops them.
const FRAMING: [&[u8]; 7] = [
    b"connection",
    b"content-length",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// Whether a field frames a message or belongs to its connection: no edit drops it.
pub fn is_framing(name: &[u8]) -> bool {
    FRAMING.iter().any(|it| it.eq_ignore_ascii_case(name))
}

impl FieldEdit<'_> {
    fn is_for(&self, name: &[u8], same: SameName) -> bool {
        let is_same = |wanted: &[u8], name: &[u8]| {
            wanted.len() == name.len()
                && wanted.iter().zip(name).all(|(a, b)| {
                    a.eq_ignore_ascii_case(b)
                        || same == SameName::AsVariable && is_hyphen(*a) && is_hyphen(*b)
                })
        };
        match self.name.strip_suffix(b"*") {
            Some(beginning) if self.kind == EditKind::Remove => name
                .get(..beginning.len())
                .is_some_and(|it| is_same(beginning, it)),
            _ => is_same(self.name, name),
        }
    }

    /// Whether the lines that a head has of the field go.
    fn drops_lines(&self) -> bool {
        matches!(self.kind, EditKind::Set | EditKind::Remove)
    }
}

fn is_hyphen(byte: u8) -> bool {
    matches!(byte, b'-' | b'_')
}

/// Appends `head` to `out` with the edits made: its first line, its fields and the empty
/// line. A `first_line`, without its end, takes the place of the head's own.
///
/// `head` is a whole head whose lines end in CRLF.
pub fn edit_head(
    out: &mut Vec<u8>,
    head: &[u8],
    first_line: Option<&[u8]>,
    edits: &[FieldEdit<'_>],
    same: SameName,
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
        let is_dropped = |it: &FieldEdit<'_>| it.drops_lines() && it.is_for(name, same);
        if is_framing(name) || !edits.iter().any(is_dropped) {
            out.extend_from_slice(line);
        }
    }
    for edit in edits {
        if edit.kind == EditKind::Remove || edit.value.is_empty() {
            continue;
        }
        let last = match edit.kind {
            EditKind::Append => end_of_last(out, fields_start, edit, same),
            _ => None,
        };
        match last {
            Some(end) => drop(out.splice(end..end, [b", ", edit.value].concat())),
            None => {
                for part in [edit.name, b": ", edit.value, b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Where the value of the last line ends that an edit is for, among those from `start`.
fn end_of_last(out: &[u8], start: usize, edit: &FieldEdit<'_>, same: SameName) -> Option<usize> {
    let mut end = start;
    let mut found = None;
    for line in lines(&out[start..]) {
        end += line.len();
        if edit.is_for(name_of(line), same) {
            found = Some(end - b"\r\n".len());
        }
    }
    found
}

/// The lines of a head, with their ends.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = head;
    std::iter::from_fn(move || {
        let len = memchr::memchr(b'\n', rest)? + 1;
        let (line, behind) = rest.split_at(len);
        rest = behind;
        Some(line)
    })
}

fn name_of(line: &[u8]) -> &[u8] {
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
        let edits: Vec<_> = edits
            .iter()
            .map(|&(kind, name, value)| FieldEdit {
                kind,
                name: name.as_bytes(),
                value: value.as_bytes(),
            })
            .collect();
        let mut out = b"before".to_vec();
        let line = first_line.map(str::as_bytes);
        edit_head(&mut out, HEAD.as_bytes(), line, &edits, same);
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
            (&[(Set, "X-User", "")], "Content-Length: 3\r\n"),
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
        // What frames the message stays.
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
