// Tables whose rows in sight are updated every second, the others in turns.
// Long ones begin with a part of their rows: those with a problem first.
//
// Classes of columns: `h1` to `h4` are left out one after the other where a
// window is narrow. On a phone, where a row is a block of labelled figures,
// `x` is left out and `line` takes the whole width.

const SHORT = 25;
const CHUNK = 100;
const SORT_EVERY = 5;
/** Rows out of sight that are updated with each message. */
const IN_TURN = 100;
/** Title of the column of small plots: heard, not seen. */
const TREND = "Trend";

/** A column: its title, how a cell is made and updated, and what it is sorted by. */
class Column {
  constructor(title, { className = "", width = "auto", hint = "", sort = null, fill }) {
    Object.assign(this, { title, className, width, hint, sort, fill });
  }
}

/** Number and unit. */
function fillTime(get) {
  return (cell, row) => {
    if (!cell.number) {
      cell.number = make("b");
      cell.unit = make("i");
      cell.append(cell.number, cell.unit);
    }
    const [number, unit] = time(get(row));
    setText(cell.number, number);
    setText(cell.unit, unit);
    setClass(cell.number, unit === "s" ? "bad" : number === "–" ? "zero" : "");
  };
}

function fillRate(model) {
  return (cell, row) => {
    cell.number ??= cell.appendChild(make("b"));
    const rate = rateOf(row, model);
    setText(cell.number, perSecond(rate));
    setClass(cell.number, rate === 0 ? "zero" : "");
  };
}

function fillErrors(cell, row) {
  cell.number ??= cell.appendChild(make("b"));
  const { minute_errors: errors, minute_requests: requests } = row;
  setText(cell.number, errors ? percent(errors, Math.max(requests, errors)) : "0");
  setClass(cell.number, errors ? "bad" : "zero");
  cell.title = errors ? `${count(errors)} of ${count(requests)} in the last minute` : "none in the last minute";
}

function fillSpark(cell, row) {
  if (!cell.spark) {
    cell.spark = new Spark("requests and errors of " + row.name);
    cell.append(cell.spark.svg);
  }
  cell.spark.draw(row.plot);
}

/** A bar with a text behind it; `mark` is where it should be. */
function fillBar(cell, part, text, note, { full = false, mark = null } = {}) {
  if (!cell.bar) {
    const svg = makeSvg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(makeSvg("rect", { class: "track", width: 100, height: 8, rx: 2 }));
    cell.bar = svg.appendChild(makeSvg("rect", { class: "fill", width: 0, height: 8, rx: 2 }));
    cell.mark = svg.appendChild(makeSvg("rect", { class: "mark", width: 1.2, height: 8, visibility: "hidden" }));
    cell.value = make("span");
    cell.note = make("small");
    cell.append(make("div", { class: "bar" }, svg, make("span", {}, cell.value, cell.note)));
  }
  setAttribute(cell.bar, "width", (100 * Math.min(1, part)).toFixed(1));
  setAttribute(cell.bar, "class", full ? "fill full" : "fill");
  setAttribute(cell.mark, "visibility", mark === null ? "hidden" : "visible");
  if (mark !== null) setAttribute(cell.mark, "x", Math.min(98.8, 100 * mark).toFixed(1));
  setText(cell.value, text);
  setText(cell.note, note);
}

class Table {
  /** `isBad` says which rows come first if not all are shown; `open` takes a row that is clicked. */
  constructor({ caption, columns, rows, isBad = () => false, rowClass = () => "", words = (row) => row.name, open = null }) {
    Object.assign(this, { columns, rows, isBad, rowClass, words, open });
    this.limit = rows.length <= SHORT ? Infinity : SHORT;
    this.sorted = null;
    this.filter = "";
    this.order = [];
    this.age = 0;
    this.turn = 0;
    this.lines = new Map();
    this.inSight = new Set();
    this.observer = new IntersectionObserver((entries) => this.see(entries), { rootMargin: "200px" });
    // Roles in so many words: where a table is shown as blocks, it would lose its own.
    this.body = make("tbody", { role: "rowgroup" });
    const groups = make("colgroup");
    this.heads = columns.map((column) => {
      const col = groups.appendChild(make("col", { class: column.className }));
      if (column.width !== "auto") col.style.width = column.width;
      return this.head(column);
    });
    const head = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...this.heads));
    if (open) this.body.addEventListener("click", (event) => this.click(event));
    const table = make("table", { role: "table", class: open ? "opens" : "" }, make("caption", { class: "sr" }, caption), groups, head, this.body);
    const longest = rows.reduce((most, { name }) => Math.max(most, name.length), 0);
    table.style.setProperty("--name", longest + "ch");
    this.element = make("div", { class: this.limit === Infinity ? "" : "long" }, ...this.tools(caption), table);
    if (this.limit !== Infinity) this.element.append(this.more());
    this.arrange();
  }

  head(column) {
    const head = make("th", { role: "columnheader", scope: "col", class: column.className, title: column.hint });
    if (!column.sort) {
      head.append(column.title === TREND ? make("span", { class: "sr" }, column.title) : column.title);
      return head;
    }
    head.append(make("button", { type: "button", onclick: () => this.sortBy(column, head) }, column.title));
    return head;
  }

  tools(caption) {
    if (this.limit === Infinity) return [];
    this.found = make("span");
    const find = make("input", { type: "search", placeholder: "Find by name or state", "aria-label": "Find in " + caption });
    find.addEventListener("input", () => {
      this.filter = find.value.trim().toLowerCase();
      this.arrange();
      this.update();
    });
    return [make("div", { class: "tools" }, find, this.found)];
  }

  more() {
    this.button = make("button", { type: "button", class: "more" }, `Show all ${count(this.rows.length)}`);
    this.button.addEventListener("click", () => {
      this.button.remove();
      const grow = () => {
        this.limit += CHUNK;
        this.arrange();
        this.update();
        if (this.limit < this.rows.length) requestAnimationFrame(grow);
      };
      grow();
    });
    return this.button;
  }

  sortBy(column, head) {
    const before = head.getAttribute("aria-sort");
    this.heads.forEach((it) => it.removeAttribute("aria-sort"));
    this.sorted = null;
    if (before !== "ascending") {
      const direction = before ? "ascending" : "descending";
      head.setAttribute("aria-sort", direction);
      const sign = direction === "ascending" ? 1 : -1;
      this.sorted = (a, b) => sign * (column.sort(a) - column.sort(b));
    }
    this.arrange();
    this.update();
  }

  /** Which rows are shown, in which order; the document is touched where that is new. */
  arrange() {
    let rows = this.rows;
    if (this.filter) rows = rows.filter((row) => this.words(row).toLowerCase().includes(this.filter));
    const found = rows.length;
    if (this.sorted) rows = [...rows].sort(this.sorted);
    else if (this.limit < rows.length) rows = [...rows.filter(this.isBad), ...rows.filter((row) => !this.isBad(row))];
    if (rows.length > this.limit) rows = rows.slice(0, this.limit);
    if (this.found) setText(this.found, `${count(rows.length)} of ${count(found)} shown`);
    if (rows.length === this.order.length && rows.every((row, index) => row === this.order[index])) return;
    this.order = rows;
    const wanted = new Set(rows);
    for (const [row, line] of this.lines) {
      if (wanted.has(row)) continue;
      this.observer.unobserve(line);
      this.inSight.delete(line);
      line.remove();
      this.lines.delete(row);
    }
    let place = this.body.firstChild;
    const fresh = [];
    for (const row of rows) {
      let line = this.lines.get(row);
      if (!line) {
        line = this.line(row);
        fresh.push(line);
      }
      if (line === place) place = place.nextSibling;
      else this.body.insertBefore(line, place);
    }
    // Invariant: a row in the document was filled with figures. One that nobody
    // has scrolled to is printed and captured all the same.
    for (const line of fresh) {
      this.observer.observe(line);
      this.updateLine(line);
    }
  }

  line(row) {
    const line = make("tr", { role: "row" });
    line.row = row;
    line.columns = this.columns.map((column, index) => {
      const isName = index === 0;
      const cell = make(isName ? "th" : "td", { role: isName ? "rowheader" : "cell", class: column.className, "data-title": column.title });
      if (isName) cell.scope = "row";
      line.append(cell);
      return cell;
    });
    this.lines.set(row, line);
    return line;
  }

  /** A click anywhere in a row opens it; the keyboard has the button of its name. */
  click({ target }) {
    const isSelecting = !getSelection().isCollapsed;
    if (isSelecting || target.closest("button, a")) return;
    const line = target.closest("tr");
    if (line) this.open(line.row);
  }

  see(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) {
        this.inSight.add(target);
        this.updateLine(target);
      } else this.inSight.delete(target);
    }
  }

  updateLine(line) {
    setClass(line, this.rowClass(line.row));
    this.columns.forEach((column, index) => column.fill(line.columns[index], line.row));
  }

  update() {
    this.age += 1;
    const mayMove = this.sorted ? this.age % SORT_EVERY === 0 : this.limit < this.rows.length;
    if (mayMove || this.filter) this.arrange();
    this.inSight.forEach((line) => this.updateLine(line));
    const others = Math.min(IN_TURN, this.order.length);
    for (let nth = 0; nth < others; nth += 1) {
      this.turn = (this.turn + 1) % this.order.length;
      const line = this.lines.get(this.order[this.turn]);
      if (!this.inSight.has(line)) this.updateLine(line);
    }
  }

  /** All rows, whether in sight or not: they are about to be printed. */
  updateAll() {
    this.lines.forEach((line) => this.updateLine(line));
  }
}

/** The columns that everything has: rate, errors and times. */
function commonColumns(model) {
  const timeColumn = (title, key, hint, className) =>
    new Column(title, { className: "num " + className, width: "76px", hint, sort: (row) => row[key], fill: fillTime((row) => row[key]) });
  return [
    new Column("Req/s", { className: "num", width: "66px", hint: "requests a second, over five seconds", sort: (row) => rateOf(row, model), fill: fillRate(model) }),
    new Column(TREND, { className: "h2 x", width: "76px", hint: "requests, and errors in red", fill: fillSpark }),
    new Column("Errors", { className: "num", width: "72px", hint: "share of requests in the last minute", sort: (row) => row.minute_errors, fill: fillErrors }),
    timeColumn("p50", "p50", "median of the last minute", "h3"),
    timeColumn("p99", "p99", "99th percentile of the last minute", ""),
    timeColumn("1 h p50", "hour_p50", "median of the last hour", "h1 x dim"),
    timeColumn("1 h p99", "hour_p99", "99th percentile of the last hour", "h1 x dim"),
  ];
}

/** The part of a route's files that a disk was asked for. */
function coldColumn() {
  const part = (row) => row.cold / Math.max(1, row.hot + row.cold);
  const fill = (cell, row) => setText(cell, row.files && row.hot + row.cold > 0 ? percent(row.cold, row.hot + row.cold) : "–");
  return new Column("From disk", { className: "num h3", width: "84px", hint: "share of file answers in the last second that were read from a disk", sort: part, fill });
}

function diskColumns() {
  const bar = (title, hint, key, most) =>
    new Column(title, {
      width: "150px", hint, sort: (row) => row[key],
      fill: (cell, row) => fillBar(cell, row[key] / Math.max(1, row[most]), count(row[key]), " / " + count(row[most]), { full: row[key] >= row[most] }),
    });
  const number = (title, hint, key) =>
    new Column(title, { className: "num", width: "84px", hint, sort: (row) => row[key], fill: (cell, row) => setText(cell, count(row[key])) });
  const time = (title, hint, key, className) =>
    new Column(title, { className: "num " + className, width: "84px", hint, sort: (row) => row[key], fill: fillTime((row) => row[key]) });
  return [
    nameColumn("Disk"),
    number("Reads/s", "reads done in the last second", "reads"),
    bar("Reading", "reads at the disk, and the limit", "in_flight", "max_in_flight"),
    bar("Waiting", "reads in its queue, and the limit", "waiting", "queue_max"),
    time("Wait p99", "99th percentile of the last minute in the queue", "wait_p99", "h4"),
    time("Read p99", "99th percentile of the last minute at the disk", "read_p99", "h4"),
    number("Refused/s", "reads refused in the last second: the requests were answered 503", "refused"),
  ];
}

const nameColumn = (title) => new Column(title, { className: "name", fill: (cell, row) => setText(cell, row.name) });

function fillProbe(model) {
  return (cell, { probe, upstream }) => {
    cell.answer ??= cell.appendChild(make("span"));
    cell.ago ??= cell.appendChild(make("span", { class: "dim ago" }));
    const isProbed = upstream.probed && probe.unix_ms > 0;
    setText(cell.answer, isProbed ? probe.answer : upstream.probed ? "not yet" : "none");
    setClass(cell.answer, isProbed ? (probe.passed ? "" : "bad") : "dim");
    if (!isProbed) return;
    const seconds = Math.max(0, Math.round((model.unixMs - probe.unix_ms) / 1000));
    const ago = duration(seconds * 1000);
    // The largest unit will do: the reason needs the room.
    setText(cell.ago, ` · ${ago.split(" ").slice(0, 2).join(" ")} ago`);
    cell.title = `${probe.answer}, took ${timeText(probe.took_us)}, ${ago} ago`;
  };
}

function fillInFlight(cell, { in_flight: now, limit, most_in_flight: most }) {
  cell.title = `most since the start: ${count(most)}`;
  if (limit < 0) return fillBar(cell, most ? now / most : 0, count(now), "");
  fillBar(cell, limit ? now / limit : 1, count(now), " / " + count(limit), { full: now >= limit });
}

function fillShare(cell, endpoint) {
  const { upstream, minute_requests: requests } = endpoint;
  const part = upstream.minuteAttempts ? requests / upstream.minuteAttempts : 0;
  const due = upstream.weights ? endpoint.effective_weight / upstream.weights : 0;
  cell.title = `${count(requests)} attempts in the last minute; its weight would give ${percent(due, 1)}`;
  // Of a thousand, none would have a bar to see: the longest one takes it all.
  const scale = upstream.endpoints.length > 12 ? Math.max(upstream.largestShare, due) || 1 : 1;
  fillBar(cell, part / scale, percent(part, 1), "", { mark: upstream.endpoints.length > 12 ? null : due });
}

function fillState(cell, { stateWord, weight }) {
  cell.word ??= cell.appendChild(make("span"));
  setClass(cell.word, "state " + stateWord + (weight === 0 ? " draining" : ""));
  setText(cell.word, stateWord);
}

function fillWeight(cell, { weight, effective_weight: effective }) {
  cell.number ??= cell.appendChild(make("b"));
  setText(cell.number, effective < weight ? `${effective.toFixed(1)} / ${weight}` : count(weight));
  setClass(cell.number, weight === 0 ? "bad" : "");
}

function endpointTable(upstream, model, open) {
  const name = new Column("Endpoint", {
    className: "name",
    fill: (cell, row) => {
      cell.button ??= cell.appendChild(make("button", { type: "button", class: "open", onclick: () => open(cell.button.row) }));
      cell.button.row = row;
      setText(cell.button, row.name);
    },
  });
  const columns = [
    name,
    new Column("State", { className: "state-cell", width: "116px", fill: fillState }),
    new Column("Last probe", { className: "line", hint: "its last response, and when", fill: fillProbe(model) }),
    new Column("In flight", { className: "h4", width: "112px", hint: "exchanges now, and the limit", sort: (row) => row.in_flight, fill: fillInFlight }),
    new Column("Share", { className: "h3 x", width: "92px", hint: "share of attempts in the last minute; the mark is the share by weight", sort: (row) => row.minute_requests, fill: fillShare }),
    ...commonColumns(model),
    new Column("Weight", { className: "num h2", width: "64px", sort: (row) => row.weight, fill: fillWeight }),
  ];
  return new Table({
    caption: "Endpoints of upstream " + upstream.name,
    columns,
    rows: upstream.endpoints,
    isBad: (row) => row.stateWord !== "up",
    rowClass: (row) => (isOut(row) ? "bad" : ""),
    words: (row) => `${row.name} ${row.stateWord}`,
    open,
  });
}

/** An upstream: a line that says how it is, and the table of its endpoints. */
class UpstreamView {
  constructor(upstream, model, open) {
    Object.assign(this, { upstream, model, openEndpoint: open, table: null });
    const stat = (after, title = "") => {
      const value = make("b");
      return { value, element: make("span", { class: "stat", title }, value, " ", make("span", {}, after)) };
    };
    this.health = make("span", { class: "health" });
    this.inFlight = stat("in flight");
    this.waiting = stat("waiting", `in the queue, whose limit is ${count(upstream.queue_max)}; the time is that of the last minute's requests that had to wait`);
    this.wait = make("span");
    this.waiting.element.append(this.wait);
    this.rate = stat("req/s");
    this.errors = stat("errors", "share of requests in the last minute");
    this.times = { value: make("b"), note: make("span") };
    this.spark = new Spark("requests and errors of upstream " + upstream.name);
    const times = make("span", { class: "stat", title: "last minute" }, make("span", {}, "p50 "), this.times.value, make("span", {}, "  p99 "), (this.times.p99 = make("b")));
    const summary = make(
      "summary",
      {},
      make("h3", {}, upstream.name),
      make("span", { class: "balance" }, upstream.balance),
      this.health,
      make("span", { class: "stat right" }, this.inFlight.element, this.waiting.element, this.errors.element, times, this.rate.element, this.spark.svg),
    );
    this.body = make("div", { class: "body", hidden: upstream.endpoints.length === 0 });
    this.element = make("details", { class: "upstream fold" }, summary, this.body);
    this.element.addEventListener("toggle", () => this.build());
  }

  /** The table is made when it is first looked at. */
  build() {
    if (!this.element.open || this.table || this.body.hidden) return;
    this.table = endpointTable(this.upstream, this.model, this.openEndpoint);
    this.body.append(this.table.element);
  }

  update() {
    const { upstream } = this;
    setText(this.health, healthOf(upstream));
    setClass(this.health, "health " + gradeOf(upstream));
    setClass(this.element, "upstream fold" + (gradeOf(upstream) === "bad" ? " bad" : ""));
    setText(this.inFlight.value, count(upstream.in_flight));
    setText(this.waiting.value, count(upstream.waiting));
    setClass(this.waiting.value, upstream.waiting ? "warn" : "");
    setText(this.wait, upstream.wait_p99 > 0 ? `, p99 ${timeText(upstream.wait_p99)}` : "");
    setText(this.rate.value, perSecond(rateOf(upstream, this.model)));
    setText(this.errors.value, upstream.minute_errors ? percent(upstream.minute_errors, Math.max(upstream.minute_requests, upstream.minute_errors)) : "0");
    setClass(this.errors.value, upstream.minute_errors ? "bad" : "");
    setText(this.times.value, timeText(upstream.p50));
    setText(this.times.p99, timeText(upstream.p99));
    this.spark.draw(upstream.plot);
    if (this.element.open && this.table) this.table.update();
  }
}

/** What the rows of an upstream's endpoints need of all of them. */
function sumUp(upstream) {
  let [attempts, weights, largest] = [0, 0, 0];
  const states = {};
  for (const endpoint of upstream.endpoints) {
    attempts += endpoint.minute_requests;
    largest = Math.max(largest, endpoint.minute_requests);
    if (!isOut(endpoint) && isWanted(endpoint)) weights += endpoint.effective_weight;
    const word = isWithoutWeight(endpoint) ? "weight 0" : endpoint.stateWord;
    states[word] = (states[word] ?? 0) + 1;
  }
  upstream.minuteAttempts = attempts;
  upstream.largestShare = attempts ? largest / attempts : 0;
  upstream.weights = weights;
  upstream.states = states;
}

function gradeOf({ endpoints, eligible, states }) {
  if (eligible === 0) return "bad";
  if (OUT.some((word) => states[word])) return "warn";
  return eligible < endpoints.length ? "" : "good";
}

function healthOf({ endpoints, eligible, states }) {
  const all = endpoints.length;
  if (all === 0) return "no endpoint configured";
  const parts = Object.entries(states).filter(([word]) => word !== "up" && word !== "starting");
  const others = parts.map(([word, number]) => `${count(number)} ${word}`).join(", ");
  const first = eligible === all ? (all === 1 ? "up" : `all ${count(all)} up`) : `${count(eligible)} of ${count(all)} up`;
  return others ? `${first} · ${others}` : first;
}
