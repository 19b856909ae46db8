// Takes the messages in and shows them, at most once a frame.

const STALE_AFTER_MS = 5000;
const HOUR_AGAIN_MS = 60_000;
const OPEN_AT_FIRST = 12;

class Page {
  constructor(start) {
    const model = new Model(start);
    this.model = model;
    this.dialog = new EndpointDialog(model);
    const open = (endpoint) => this.dialog.open(endpoint);
    this.problems = new ProblemList(open);
    this.upstreams = model.upstreams.map((it) => new UpstreamView(it, model, open));
    byId("upstream-list").replaceChildren(...this.upstreams.map((it) => it.element));
    if (this.upstreams.length === 0) byId("upstreams").hidden = true;
    this.purge = new PurgeDialog(model);
    this.caches = model.caches.map((it) => new CacheView(it, model, (cache) => this.purge.open(cache)));
    byId("cache-list").replaceChildren(...this.caches.map((it) => it.element));
    byId("caches").hidden = this.caches.length === 0;
    this.makeOverview();
    this.makeTables();
    this.span = byId("span");
    this.span.onclick = (event) => event.target.dataset.span && this.show(event.target.dataset.span);
    this.wanted = "minute";
    this.isFirst = true;
    this.isDrawing = false;
  }

  makeOverview() {
    const requests = [["requests", "", true], ["errors", "errors", false]];
    this.ratePlot = new Plot(byId("rate-plot"), "Requests and errors", requests, count, (plot, at) => `${plural(plot.requests[at], "request")}, ${plural(plot.errors[at], "error")}`);
    const times = [["p99", "p99", false], ["p50", "p50", false]];
    this.timePlot = new Plot(byId("time-plot"), "Response times", times, timeText, ({ p50, p99 }, at) => `p50 ${timeText(p50[at])}, p99 ${timeText(p99[at])}`);
    this.numbers = ["In flight", "Waiting", "Connections", "Errors", "In", "Out", "Loop lag"].map((name) => {
      const [value, note] = [make("span"), make("small")];
      byId("numbers").append(make("dt", {}, name), make("dd", {}, value, note));
      return { value, note };
    });
  }

  makeTables() {
    const { model } = this;
    const common = commonColumns(model);
    const routes = [nameColumn("Route"), new Column("To", { className: "line dim", fill: (cell, row) => setText(cell, row.to) }), ...common];
    if (model.disks.length) routes.push(coldColumn());
    this.routeTable = new Table({ caption: "Routes", columns: routes, rows: model.routes, isBad: (row) => row.minute_errors > 0 });
    const openColumn = new Column("Connections", {
      width: "160px",
      hint: "open now, and the limit",
      sort: (row) => row.open,
      fill: (cell, row) => fillBar(cell, row.limit > 0 ? row.open / row.limit : row.most ? row.open / row.most : 0, count(row.open), row.limit < 0 ? "" : " / " + count(row.limit), { full: row.limit >= 0 && row.open >= row.limit }),
    });
    const flow = (title, key) => new Column(title, { className: "num h4", width: "84px", sort: (row) => row[key], fill: (cell, row) => setText(cell, bytes(row[key]) + "/s") });
    const listeners = [
      nameColumn("Listener"),
      new Column("Address", { className: "line mono", fill: (cell, row) => setText(cell, row.to) }),
      openColumn, flow("In", "bytes_in"), flow("Out", "bytes_out"), ...common,
    ];
    this.listenerTable = new Table({ caption: "Listeners", columns: listeners, rows: model.listeners });
    this.diskTable = new Table({ caption: "Disks", columns: diskColumns(), rows: model.disks, isBad: (row) => row.refused > 0 });
    byId("disk-table").replaceChildren(make("div", { class: "card" }, this.diskTable.element));
    byId("disks").hidden = model.disks.length === 0;
    this.limitTable = new Table({ caption: "Limits", columns: limitColumns(), rows: model.limits, isBad: (row) => row.refused > 0 });
    byId("limit-table").replaceChildren(make("div", { class: "card" }, this.limitTable.element));
    byId("limits").hidden = model.limits.length === 0;
    byId("route-table").replaceChildren(make("div", { class: "card" }, this.routeTable.element));
    byId("listener-table").replaceChildren(make("div", { class: "card" }, this.listenerTable.element));
    byId("routes").hidden = model.routes.length === 0;
  }

  take(message) {
    const isGap = this.model.take(message);
    this.heard = performance.now();
    if (this.isFirst) this.begin();
    if (isGap) this.loadPlots(this.wanted);
    if (this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => {
      this.isDrawing = false;
      this.update();
    });
  }

  begin() {
    this.isFirst = false;
    this.model.upstreams.forEach(sumUp);
    byId("main").hidden = false;
    const few = this.upstreams.length <= OPEN_AT_FIRST;
    for (const view of this.upstreams) {
      view.element.open = few || gradeOf(view.upstream) === "bad";
      view.build();
    }
    this.loadPlots("minute");
    if (this.caches.length === 0) return;
    this.loadMisses();
    setInterval(() => document.hidden || this.loadMisses(), MISSES_EVERY_MS);
  }

  async loadMisses() {
    try {
      const answer = await fetch("/misses.json");
      const misses = answer.ok ? await answer.json() : [];
      this.caches.forEach((it) => it.showMisses(misses));
    } catch {
      // The banner says that the connection is lost.
    }
  }

  show(span) {
    this.wanted = span;
    for (const button of this.span.children) button.setAttribute("aria-pressed", String(button.dataset.span === span));
    this.loadPlots(span);
    clearInterval(this.again);
    if (span === "hour") this.again = setInterval(() => this.loadPlots("hour"), HOUR_AGAIN_MS);
  }

  /** Loads the points anew; of several answers only the one asked for last counts. */
  async loadPlots(span) {
    const request = (this.plotRequest = {});
    try {
      const answer = await fetch("/plots.json?span=" + span);
      const plots = answer.ok ? await answer.json() : null;
      if (request !== this.plotRequest) return;
      if (plots) this.model.takePlots(plots, span);
      this.update();
    } catch {
      // The banner says that the connection is lost.
    }
  }

  update() {
    const { model } = this;
    model.upstreams.forEach(sumUp);
    const problems = findProblems(model);
    this.problems.update(problems);
    const [grade, text] = verdict(model, problems);
    setClass(byId("verdict"), "verdict " + grade);
    setText(byId("verdict"), text);
    const title = problems.length ? text + " · Evenkeel" : "Evenkeel";
    if (document.title !== title) document.title = title;
    const { start, all } = model;
    setText(byId("facts"), `${start.version} · up ${duration(all.uptime_ms)} · ${plural(start.workers, "worker")} · pid ${start.pid}`);
    this.updateOverview();
    this.upstreams.forEach((it) => it.update());
    this.routeTable.update();
    this.limitTable.update();
    this.caches.forEach((it) => it.update());
    this.diskTable.update();
    this.listenerTable.update();
    this.updateTops();
    this.updateGenerations();
    this.updateEvents();
    this.dialog.update();
  }

  /** Everything, also what nobody has scrolled to. */
  updateAll() {
    this.update();
    for (const table of [...this.upstreams, ...this.caches].map((it) => it.table).concat(this.routeTable, this.limitTable, this.diskTable, this.listenerTable)) table?.updateAll();
  }

  updateOverview() {
    const { model, model: { all } } = this;
    const rate = model.span === "minute" ? rateOf(all, model) : all.requests;
    setText(byId("rate"), perSecond(rate));
    setText(byId("rate-note"), `most ${count(all.most_requests)} /s · ${count(all.minute_requests)} in the last minute`);
    const failed = model.span === "minute" ? all.minute_errors : total(all.plot.errors);
    setText(byId("rate-errors"), `${plural(failed, "error")} in the last ${model.span}`);
    for (const [id, us] of [["p99", all.p99], ["p50", all.p50], ["hour-p99", all.hour_p99], ["hour-p50", all.hour_p50]]) setText(byId(id), timeText(us));
    const step = model.span === "hour" ? 60 : 1;
    this.ratePlot.draw(all.plot, step);
    this.timePlot.draw(all.plot, step);
    const errors = all.minute_errors ? percent(all.minute_errors, Math.max(all.minute_requests, all.minute_errors)) : "0";
    const values = [
      [count(all.in_flight), ""],
      [count(all.waiting), ""],
      [count(all.open), ""],
      [errors, all.minute_errors ? `${count(all.minute_errors)} in 1 min` : ""],
      [bytes(all.bytes_in) + "/s", ""],
      [bytes(all.bytes_out) + "/s", ""],
      [timeText(all.loop_lag_p99), ""],
    ];
    values.forEach(([value, note], index) => {
      setText(this.numbers[index].value, value);
      setText(this.numbers[index].note, note);
    });
    setClass(this.numbers[1].value, all.waiting ? "warn" : "");
    setClass(this.numbers[3].value, all.minute_errors ? "bad" : "");
  }

  updateTops() {
    const { routes } = this.model;
    const slow = routes.filter((it) => it.p99 > 0).sort((a, b) => b.p99 - a.p99);
    const failing = routes.filter((it) => it.minute_errors > 0).sort((a, b) => b.minute_errors - a.minute_errors);
    showTop(byId("slowest"), slow, (it) => timeText(it.p99), "no request in the last minute");
    showTop(byId("failing"), failing, (it) => `${count(it.minute_errors)} of ${count(it.minute_requests)}`, "no route failed in the last minute");
  }

  updateGenerations() {
    const lines = this.model.generations.map(({ generation, config, age_ms: age, exchanges, tunnels, kept_until_confirmed: isKept }, index) => {
      const going = plural(exchanges, "exchange") + (tunnels ? `, ${plural(tunnels, "tunnel")} among them` : "");
      const kept = isKept ? "; kept until the configuration in force is confirmed" : "";
      const state = index === 0 ? `in force for ${duration(age)}` : `replaced${kept}; came into force ${duration(age)} ago`;
      return make("li", {}, make("span", {}, `generation ${generation}`), make("span", { class: "hash" }, config), make("p", {}, `${state} · ${going}`));
    });
    byId("generation-list").replaceChildren(...lines);
  }

  updateEvents() {
    const { events } = this.model;
    const last = events.at(-1)?.seq ?? 0;
    if (last === this.shownEvent) return;
    this.shownEvent = last;
    const lines = [...events].reverse().map(({ unix_ms: ms, level, text }) => {
      const at = new Date(ms);
      const when = make("time", { dateTime: at.toISOString(), title: at.toLocaleString() }, at.toLocaleTimeString("en-GB"));
      return make("li", { class: level }, when, make("span", { class: "level" }, level === "warn" ? "warning" : level), make("p", {}, text));
    });
    byId("event-list").replaceChildren(...lines);
  }
}

function showTop(list, rows, value, none) {
  const shown = rows.slice(0, 5);
  const text = shown.map((row) => row.name + value(row)).join() || none;
  if (list.shown === text) return;
  list.shown = text;
  const lines = shown.map((row) => make("li", {}, make("span", {}, row.name), make("b", {}, value(row))));
  list.replaceChildren(...(lines.length ? lines : [make("li", { class: "none" }, none)]));
}

let page = null;
/** What the rows are of, as it came. */
let known = null;

function say(text) {
  byId("stale").hidden = !text;
  setText(byId("stale"), text);
  document.body.classList.toggle("stale", Boolean(text));
}

function connect() {
  const source = new EventSource("/events");
  source.addEventListener("start", (event) => {
    // The same names go on; with others, or another process, the page begins anew.
    if (event.data === known) return;
    if (page) location.reload();
    known = event.data;
    page = new Page(JSON.parse(event.data));
  });
  source.addEventListener("message", (event) => {
    say("");
    page.take(JSON.parse(event.data));
  });
  source.addEventListener("error", async () => {
    if (source.readyState !== EventSource.CLOSED) return;
    // Refused: the answer says why.
    source.close();
    const answer = await fetch("/events", { signal: AbortSignal.timeout(2000) }).catch(() => null);
    const text = answer && !answer.ok ? await answer.text() : "";
    say("No update: " + (text.trim() || "the connection was refused") + ". Trying again.");
    setTimeout(connect, 5000);
  });
}

setInterval(() => {
  if (page?.heard && performance.now() - page.heard > STALE_AFTER_MS) {
    say(`No update for ${duration(performance.now() - page.heard)}: these figures are old. Trying to connect.`);
  }
}, 1000);

addEventListener("beforeprint", () => page?.heard && page.updateAll());

const theme = byId("theme");
const kept = localStorage.getItem("evenkeel-theme");
if (kept) document.documentElement.dataset.theme = kept;
theme.onclick = () => {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
  const next = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("evenkeel-theme", next);
};

connect();
