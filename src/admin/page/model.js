// What is known: names from the first message, rows of numbers from each.

const KINDS = ["listeners", "routes", "disks", "caches", "tiers", "caching", "limits", "upstreams", "endpoints", "probes"];
const PLOTTED = ["listeners", "routes", "caches", "upstreams", "endpoints"];
const EVENTS_SHOWN = 100;

class Model {
  constructor(start) {
    this.start = start;
    this.number = 0;
    this.all = this.row("all", { requests: 0 });
    this.listeners = start.listeners.map((it) => this.row("listeners", it));
    this.routes = start.routes.map((it) => this.row("routes", it));
    this.disks = start.disks.map((it) => this.row("disks", it));
    this.caches = start.caches.map((name) => this.row("caches", { name, tier: {}, routes: [] }));
    this.tiers = this.caches.map((it) => it.tier);
    this.caching = start.caching.map(({ name, cache }) => {
      const caching = this.row("caching", { name });
      this.caches[cache].routes.push(caching);
      return caching;
    });
    this.limits = start.limits.map((it) => this.row("limits", it));
    this.endpoints = [];
    this.probes = [];
    this.upstreams = start.upstreams.map((it) => {
      const upstream = this.row("upstreams", { ...it, endpoints: [] });
      for (const name of it.endpoints) {
        const endpoint = this.row("endpoints", { name, upstream, index: this.endpoints.length, stateWord: "up" });
        endpoint.probe = {};
        this.endpoints.push(endpoint);
        this.probes.push(endpoint.probe);
        upstream.endpoints.push(endpoint);
      }
      return upstream;
    });
    this.events = [];
    this.generations = [];
    this.span = "minute";
  }

  row(kind, facts) {
    const row = { ...facts, plot: { requests: [], errors: [], p50: [], p99: [] } };
    for (const name of this.start.columns[kind]) row[name] = 0;
    return row;
  }

  /** Takes a message in: only what has changed is in it. Whether some are missing before it. */
  take(message) {
    // Whether there were looks between, whose points are missing now.
    const isGap = this.number > 0 && message.number !== this.number + 1;
    this.number = message.number;
    this.unixMs = message.unix_ms;
    this.fill(this.all, this.start.columns.all, message.all);
    this.generations = message.generations ?? [];
    for (const kind of KINDS) {
      const changed = message[kind] ?? [];
      const columns = this.start.columns[kind];
      for (let at = 0; at < changed.length; at += 2) this.fill(this[kind][changed[at]], columns, changed[at + 1]);
    }
    for (const endpoint of this.endpoints) endpoint.stateWord = this.start.states[endpoint.state];
    // After a new connection all of them come again.
    const last = this.events.at(-1)?.seq ?? 0;
    const news = (message.events ?? []).filter((it) => it.seq > last);
    if (news.length) this.events = this.events.concat(news).slice(-EVENTS_SHOWN);
    if (this.span === "minute") this.eachRow((row) => this.pushPoint(row));
    return isGap;
  }

  fill(row, columns, values) {
    for (let index = 0; index < values.length; index += 1) row[columns[index]] = values[index];
  }

  eachRow(what) {
    what(this.all);
    for (const kind of PLOTTED) this[kind].forEach(what);
  }

  pushPoint(row) {
    const point = { requests: row.requests, errors: row.errors, p50: row.last_p50 ?? 0, p99: row.last_p99 ?? 0 };
    for (const [key, values] of Object.entries(row.plot)) {
      values.push(point[key]);
      if (values.length > POINTS) values.shift();
    }
  }

  /** Takes the points of all plots in. */
  takePlots(plots, span) {
    this.span = span;
    this.all.plot = plots.all;
    for (const kind of PLOTTED) {
      plots[kind].forEach((plot, index) => (this[kind][index].plot = plot));
    }
  }
}

/** Requests a second, over the last five seconds. */
function rateOf(row, model) {
  if (model.span !== "minute") return row.requests;
  const last = row.plot.requests.slice(-5);
  return last.length ? last.reduce((sum, it) => sum + it, 0) / last.length : row.requests;
}

const OUT = ["down", "unreachable", "ejected"];
const isOut = (endpoint) => OUT.includes(endpoint.stateWord);
const isTakenOut = (endpoint) => ["draining", "stopped"].includes(endpoint.stateWord);
const isWithoutWeight = (endpoint) => endpoint.weight === 0 && !isOut(endpoint) && !isTakenOut(endpoint);
const isWanted = (endpoint) => !isTakenOut(endpoint) && !isWithoutWeight(endpoint);
