// Limits of routes: what they let through, delayed and refused, and how full their tables are.

function limitColumns() {
  const part = (title, key, hint, className, grade = "") =>
    new Column(title, {
      className: "num " + className, width: "96px", hint: hint + ", in the last minute", sort: (row) => row[key],
      fill: (cell, row) => {
        setText(cell, row[key] ? count(row[key]) : "0");
        setClass(cell, "num " + className + (row[key] && grade ? " " + grade : ""));
      },
    });
  return [
    nameColumn("Route"),
    new Column("Limits", { className: "line dim", fill: (cell, row) => setText(cell, row.bounds) }),
    part("Passed", "allowed", "requests that passed at once", ""),
    part("Delayed", "delayed", "requests that waited", "h3"),
    part("Refused", "refused", "requests that were refused", "", "bad"),
    part("Dry run", "dry_run", "requests that would have been refused or delayed without dry_run", "h3"),
    new Column("Keys", {
      width: "170px",
      hint: "keys that have used a part of their limit, and the most keys that are remembered",
      sort: (row) => row.keys,
      fill: (cell, row) => fillBar(cell, Math.max(0, row.keys) / row.entries, row.keys < 0 ? "–" : count(row.keys), " / " + count(row.entries), { full: row.keys >= row.entries }),
    }),
  ];
}
