//! Tables for people: aligned columns with a line of titles.

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under titles.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. Columns are aligned left, or right if their title begins with `>`.
    pub fn new(titles: &[&'static str]) -> Self {
        let column = |title: &&'static str| match title.strip_prefix('>') {
            Some(title) => (title, Align::Right),
            None => (*title, Align::Left),
        };
        Table {
            columns: titles.iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with one cell for each title.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table, with each line indented by this many spaces.
    pub fn text(&self, indent: usize) -> String {
        let width = |index: usize, title: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            let widest = cells.map(|cell| cell.chars().count()).max();
            widest.unwrap_or(0).max(title.chars().count())
        };
        let widths: Vec<_> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, (title, _))| width(index, title))
            .collect();
        let titles = self.columns.iter().map(|(title, _)| (*title).to_owned());
        let titles: Vec<_> = titles.collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for ((cell, (_, align)), width) in row.iter().zip(&self.columns).zip(&widths) {
                match align {
                    Align::Left => line += &format!("{cell:<width$}  "),
                    Align::Right => line += &format!("{cell:>width$}  "),
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", ">COUNT"]);
        table.row(["a".to_owned(), "1".to_owned()]);
        table.row(["longer".to_owned(), "123456".to_owned()]);
        assert_eq!(
            table.text(1),
            " NAME     COUNT\n a            1\n longer  123456\n"
        );
    }
}
