// Caches: how much they answer, what they hold, what they did not answer, and purges.

const MISSES_EVERY_MS = 5000;

const asked = ({ hits, stale, revalidated, misses }) => hits + stale + revalidated + misses;

/** The share of requests in the last minute served without an endpoint. */
const hitRatio = (row) => percent(row.hits + row.stale, asked(row));

const ageText = ({ age_ms: ms }) => (ms < 0 ? "–" : ms < 1000 ? "<1 s" : duration(ms));

function cachingColumns() {
  const part = (title, key, hint, className) =>
    new Column(title, { className: "num " + className, width: "96px", hint: hint + ", in the last minute", sort: (row) => row[key], fill: (cell, row) => setText(cell, row[key] ? count(row[key]) : "0") });
  return [
    nameColumn("Route"),
    new Column("Hits", {
      width: "150px",
      hint: "share of requests in the last minute served without an endpoint",
      sort: (row) => (row.hits + row.stale) / Math.max(1, asked(row)),
      fill: (cell, row) => fillBar(cell, (row.hits + row.stale) / Math.max(1, asked(row)), hitRatio(row), ""),
    }),
    part("Asked", "asked", "requests looked up in the cache", ""),
    part("Misses", "misses", "requests without a stored response", ""),
    part("Revalidated", "revalidated", "requests for which an endpoint confirmed the stored response", "h3"),
    part("Stale", "stale", "requests that were answered with a stale response", "h2"),
    part("Bypasses", "bypasses", "requests that bypassed the cache", "h2"),
    new Column("Saved", { className: "num h4", width: "96px", hint: "bytes of bodies served from the cache in the last minute", sort: (row) => row.saved, fill: (cell, row) => setText(cell, bytes(row.saved) + "/s") }),
    new Column("Age", { className: "num h4", width: "96px", hint: "mean age of the cached responses served in the last minute", sort: (row) => row.age_ms, fill: (cell, row) => setText(cell, ageText(row)) }),
  ];
}

/** The facts about a cache; empty where it lacks the tier. */
function cacheFacts(cache) {
  const { tier } = cache;
  const found = (hits, lookups) => `${count(hits)} of ${plural(lookups, "lookup")} found one in the last minute`;
  const damaged = cache.damaged ? `, ${count(cache.damaged)} dropped as damaged` : "";
  return [
    ["Memory", `${plural(cache.responses, "response")}, ${bytes(cache.bytes)} of ${bytes(cache.limit)}`],
    ["Evicted", `${plural(cache.evicted, "response")} in the last minute`],
    ["Disk", tier.disk && `${tier.disk}, ${plural(cache.disk_responses, "response")}, ${bytes(cache.disk_bytes)} of ${bytes(cache.disk_limit)}${damaged}`],
    ["Asked of it", tier.disk && found(cache.disk_hits, cache.disk_lookups)],
    ["Shared server", tier.shared && `${tier.server}, ${tier.shared}${tier.failure && `: ${tier.failure}`}`],
    ["Asked of it", tier.shared && found(cache.shared_hits, cache.shared_lookups)],
    ["Fetches", `${cache.fetches ? count(cache.fetches) : "none"} now, followed by ${plural(cache.followers, "request")}`],
    ["Mean age", ageText(cache)],
    ["Purges", `${count(cache.purges)} since the start`],
  ];
}

/** The URLs of a route that its cache did not answer. */
class MissList {
  constructor(name) {
    this.list = make("ol");
    this.element = make("div", { class: "misses", hidden: true }, make("h4", {}, "Top misses ", make("span", {}, `route ${name}, last 5 to 10 minutes`)), this.list);
  }

  show({ total, urls }) {
    const key = JSON.stringify([total, urls]);
    if (this.key === key) return;
    this.key = key;
    this.element.hidden = total === 0;
    const lines = urls.map(({ url, count: number, reason, why }) =>
      make("li", {}, make("span", { class: "url" }, url), make("span", { class: "why", title: why }, reason), make("b", {}, `${count(number)} · ${percent(number, total)}`)));
    const none = make("li", { class: "none" }, `${plural(total, "miss", "misses")}, no URL is missed often`);
    this.list.replaceChildren(...(lines.length ? lines : [none]));
  }
}

/** A cache: a line that says how it does, its facts, its routes and what they missed. */
class CacheView {
  constructor(cache, model, purge) {
    Object.assign(this, { cache, model });
    const stat = (after, title) => {
      const value = make("b");
      return { value, element: make("span", { class: "stat", title }, value, " ", make("span", {}, after)) };
    };
    this.ratio = make("span", { class: "health", title: "share of requests in the last minute served without an endpoint" });
    this.tiers = make("span", { class: "balance" });
    this.responses = stat("responses", "in memory");
    this.saved = stat("saved", "bytes of bodies served from the cache in the last minute");
    this.rate = stat("req/s", "requests looked up in the cache");
    this.spark = new Spark("requests, and requests that the cache did not answer, of cache " + cache.name);
    const summary = make("summary", {}, make("h3", {}, cache.name), this.tiers, this.ratio, make("span", { class: "stat right" }, this.responses.element, this.saved.element, this.rate.element, this.spark.svg));
    this.facts = cacheFacts(cache).map(([name]) => {
      const value = make("dd");
      return { value, element: make("div", {}, make("dt", {}, name), value) };
    });
    this.table = new Table({ caption: "Routes of cache " + cache.name, columns: cachingColumns(), rows: cache.routes });
    this.misses = new Map(cache.routes.map(({ name }) => [name, new MissList(name)]));
    const button = make("button", { type: "button", class: "danger", onclick: () => purge(cache) }, "Purge …");
    const body = make(
      "div", { class: "body" },
      make("div", { class: "about" }, make("dl", { class: "pairs" }, ...this.facts.map((it) => it.element)), make("div", { class: "operate" }, button)),
      this.table.element,
      ...[...this.misses.values()].map((it) => it.element),
    );
    this.element = make("details", { class: "cache fold", open: true }, summary, body);
  }

  update() {
    const { cache, cache: { tier } } = this;
    for (const route of cache.routes) route.asked = asked(route);
    setText(this.ratio, asked(cache) ? hitRatio(cache) + " hits" : "not asked in the last minute");
    setText(this.tiers, ["memory", tier.disk && "disk", tier.shared && "shared"].filter(Boolean).join(", "));
    setText(this.responses.value, count(cache.responses));
    setText(this.saved.value, bytes(cache.saved) + "/s");
    setText(this.rate.value, perSecond(rateOf(cache, this.model)));
    this.spark.draw(cache.plot);
    cacheFacts(cache).forEach(([, text], index) => {
      this.facts[index].element.hidden = !text;
      setText(this.facts[index].value, text || "");
    });
    if (this.element.open) this.table.update();
  }

  showMisses(byRoute) {
    for (const [route, misses] of byRoute) this.misses.get(route)?.show(misses);
  }
}

/** What there is to purge: its title, an example, and what it means. */
const PURGES = {
  url: ["URL", "https://example.com/articles/7", "The responses for this URL, all variants."],
  prefix: ["Prefix", "https://example.com/articles/", "The responses for all URLs with this prefix."],
  tag: ["Tag", "news", "The responses with this tag in Surrogate-Key or Cache-Tag."],
  everything: ["Everything", "", "All responses of this cache."],
};

class PurgeDialog {
  constructor(model) {
    this.dialog = byId("purge");
    this.done = byId("purge-done");
    this.text = byId("purge-text");
    byId("purge-form").hidden = !model.start.can_operate;
    byId("purge-off").hidden = model.start.can_operate;
    this.dialog.querySelector(".close").onclick = () => this.dialog.close();
    const buttons = Object.entries(PURGES).map(([what, [title]]) => make("button", { type: "button", onclick: () => this.choose(what), "data-what": what }, title));
    byId("purge-what").replaceChildren(...buttons);
    byId("purge-form").onsubmit = (event) => {
      event.preventDefault();
      this.order();
    };
  }

  open(cache) {
    this.cache = cache;
    setText(byId("purge-name"), "Purge cache " + cache.name);
    this.text.value = "";
    byId("purge-soft").checked = false;
    this.choose("url");
    this.dialog.showModal();
    this.text.focus();
  }

  choose(what) {
    this.what = what;
    const [title, example, meaning] = PURGES[what];
    for (const button of byId("purge-what").children) setAttribute(button, "aria-pressed", String(button.dataset.what === what));
    this.text.hidden = what === "everything";
    this.text.required = !this.text.hidden;
    this.text.placeholder = example;
    this.text.setAttribute("aria-label", title);
    setText(byId("purge-meaning"), meaning);
    this.say(true, "");
  }

  say(isDone, text) {
    setText(this.done, text);
    setClass(this.done, "done " + (isDone ? "good" : "bad"));
  }

  async order() {
    const { what, cache } = this;
    const soft = byId("purge-soft").checked;
    const text = `Endpoints are asked for all that cache ${cache.name} has stored now. With many requests they may not keep up.`;
    if (what === "everything" && !soft && !(await confirmed(`Purge everything from ${cache.name}?`, text, "Purge it"))) return;
    const value = what === "everything" ? true : this.text.value.trim();
    const [isDone, said] = await send("/purge", { [what]: value, soft, cache: cache.name });
    if (this.cache === cache && this.what === what) this.say(isDone, isDone ? said.join("\n") : said);
  }
}
