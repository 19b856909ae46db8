// What is wrong, the worst first: all that somebody at night looks for.

/** Names that a line shows; the others are counted. */
const NAMES_SHOWN = 5;
/** Causes that a line about a whole upstream shows. */
const CAUSES_SHOWN = 3;

/** Endpoints by a text that says what they have in common, in order. */
function groupBy(endpoints, key) {
  const groups = new Map();
  for (const endpoint of endpoints) {
    const text = key(endpoint);
    if (groups.has(text)) groups.get(text).push(endpoint);
    else groups.set(text, [endpoint]);
  }
  return [...groups];
}

/** The state that all of them have, or a word for several. */
function stateOf(endpoints, several) {
  const [first, ...rest] = endpoints.map((it) => (isWithoutWeight(it) ? "weight 0" : it.stateWord));
  return rest.every((it) => it === first) ? first : several;
}

/** `1 endpoint of upstream app`; the number is left out where the name says it. */
function whose(endpoints, upstream) {
  if (endpoints.length === 1) return `of upstream ${upstream.name}`;
  return `${count(endpoints.length)} of ${plural(upstream.endpoints.length, "endpoint")} of upstream ${upstream.name}`;
}

// Invariant: one cause is one line, however many endpoints it takes out.
function endpointProblems(upstream) {
  const problems = [];
  for (const [why, endpoints] of groupBy(upstream.endpoints.filter(isOut), whyOut)) {
    problems.push({ grade: "warn", kind: stateOf(endpoints, "out"), endpoints, text: whose(endpoints, upstream), why });
  }
  const takenOut = upstream.endpoints.filter((it) => !isOut(it) && !isWanted(it));
  for (const [kind, endpoints] of groupBy(takenOut, (it) => stateOf([it]))) {
    const inFlight = endpoints.reduce((sum, it) => sum + it.in_flight, 0);
    const why = (kind === "weight 0" ? "taken out by the operator" : "by the operator") + (inFlight ? `, ${count(inFlight)} still in flight` : "");
    problems.push({ grade: "", kind, endpoints, text: whose(endpoints, upstream), why });
  }
  return problems;
}

function whyOut({ stateWord, probe }) {
  if (stateWord === "ejected") return "too many errors in a row";
  if (probe.unix_ms && !probe.passed) return probe.answer;
  return stateWord === "unreachable" ? "connections to it fail" : "";
}

/** Why an upstream has no endpoint, with the number of each cause. */
function whyNone(upstream) {
  const { endpoints, waiting, minute_errors: errors, minute_requests: requests } = upstream;
  if (endpoints.length === 0) return "none is configured";
  const groups = groupBy(endpoints, (it) => (isOut(it) ? whyOut(it) : stateOf([it])));
  const causes = groups.map(([, those]) => {
    const why = isOut(those[0]) ? whyOut(those[0]) : "";
    const number = those.length === endpoints.length && those.length > 1 ? "all " + count(those.length) : count(those.length);
    return `${number} ${stateOf(those, "out")}${why && ": " + why}`;
  });
  const shown = causes.slice(0, CAUSES_SHOWN).join("; ") + (causes.length > CAUSES_SHOWN ? "; and others" : "");
  const failing = errors ? `${percent(errors, Math.max(errors, requests))} of the last minute's requests failed` : "";
  return [shown, waiting ? `${plural(waiting, "request")} waiting` : "", failing].filter(Boolean).join(" · ");
}

function upstreamProblems(upstream) {
  const { name, waiting, queue_max: max } = upstream;
  // What its endpoints have and what becomes of its requests is the same problem.
  if (upstream.eligible === 0) {
    return [{ grade: "bad", kind: "no endpoint", endpoints: upstream.endpoints, text: `upstream ${name} has no endpoint that takes requests`, why: whyNone(upstream) }];
  }
  const problems = [];
  if (max > 0 && waiting >= max) {
    problems.push({ grade: "bad", kind: "queue full", text: `upstream ${name} refuses requests`, why: `${count(waiting)} already wait` });
  } else if (waiting > 0 && waiting >= max / 2) {
    problems.push({ grade: "warn", kind: "queue", text: `${plural(waiting, "request")} waiting for upstream ${name}`, why: `the queue takes ${count(max)}` });
  }
  return problems.concat(endpointProblems(upstream));
}

const FAILING_PART = 0.01;
const REFUSED_SHOWN_MS = 60_000;
const MISSING_SHOWN_MS = 3_600_000;

function trafficProblems(model) {
  const problems = [];
  const withoutEndpoint = new Set(model.upstreams.filter((it) => it.eligible === 0).map((it) => it.name));
  for (const route of model.routes) {
    // Its upstream's line says it already.
    if (!route.files && withoutEndpoint.has(route.to)) continue;
    const { minute_errors: errors, minute_requests: requests } = route;
    if (errors < 5 || errors < requests * FAILING_PART) continue;
    const grade = errors >= requests * 0.1 ? "bad" : "warn";
    problems.push({ grade, kind: "errors", text: `${percent(errors, Math.max(errors, requests))} of the requests of route ${route.name} fail`, why: `${count(errors)} in the last minute` });
  }
  for (const listener of model.listeners) {
    if (listener.limit < 0 || listener.open < listener.limit * 0.9) continue;
    const grade = listener.open >= listener.limit ? "bad" : "warn";
    problems.push({ grade, kind: "connections", text: `listener ${listener.name} has ${count(listener.open)} connections open`, why: `its limit is ${count(listener.limit)}` });
  }
  for (const listener of model.listeners) problems.push(...certificateProblems(listener, model));
  for (const cache of model.caches) problems.push(...cacheProblems(cache, model));
  const { all } = model;
  const missingFor = model.unixMs - all.log_lines_missing_ms;
  if (missingFor < MISSING_SHOWN_MS) {
    problems.push({ grade: "warn", kind: "access log", text: `${plural(all.log_lines_missing, "line")} missing`, why: `since the start, the last ${duration(missingFor)} ago: dropped, or not written` });
  }
  if (model.unixMs - all.tokens_refused_ms < REFUSED_SHOWN_MS) {
    problems.push({ grade: "warn", kind: "tokens", text: `${plural(all.tokens_refused, "token")} refused for changes`, why: "since the start, the last one within a minute" });
  }
  if (all.loop_lag_p99 > 50_000) {
    problems.push({ grade: "warn", kind: "busy", text: `the workers are ${timeText(all.loop_lag_p99)} late`, why: "one time in a hundred: too little processor time" });
  }
  return problems;
}

function certificateProblems(listener, model) {
  const problems = [];
  const { name, certificates_expired: expired, certificates_ending: ending, certificates_unreadable: unreadable, certificates_missing: missing, certificates_failed: failed } = listener;
  const where = `of listener ${name}`;
  if (expired) {
    problems.push({ grade: "bad", kind: "certificates", text: `${plural(expired, "certificate")} ${where} expired`, why: "`evenkeel certificates` lists them" });
  }
  if (ending) {
    const left = listener.certificate_expiry_s * 1000 - model.unixMs;
    problems.push({ grade: "warn", kind: "certificates", text: `${plural(ending, "certificate")} ${where} about to expire`, why: `the first in ${duration(left)}` });
  }
  if (unreadable) {
    problems.push({ grade: "warn", kind: "certificates", text: `${plural(unreadable, "file")} ${where} can't be used`, why: "`evenkeel certificates` shows why; the previous files stay in use" });
  }
  if (failed) {
    const refused = missing ? "; until then, names without a certificate are refused" : "";
    problems.push({ grade: missing ? "bad" : "warn", kind: "certificates", text: `${plural(failed, "order")} of certificates ${where} failed`, why: `\`evenkeel certificates\` says why${refused}` });
  } else if (missing) {
    problems.push({ grade: "warn", kind: "certificates", text: `${plural(missing, "certificate")} ${where} not issued yet`, why: "being ordered" });
  }
  return problems;
}

function cacheProblems({ name, tier, damaged, damaged_ms: damagedMs }, model) {
  const problems = [];
  if (tier.disk === "paused") {
    problems.push({ grade: "warn", kind: "cache", text: `the disk of cache ${name} is not written`, why: "it fails, is full or read-only; what is on it is served, and writing is tried again" });
  }
  if (tier.disk === "waiting") {
    problems.push({ grade: "warn", kind: "cache", text: `the disk of cache ${name} is not used`, why: "another process has its folder" });
  }
  const damagedFor = model.unixMs - damagedMs;
  if (damagedFor < MISSING_SHOWN_MS) {
    problems.push({ grade: "warn", kind: "cache", text: `${plural(damaged, "response")} on the disk of cache ${name} could not be used`, why: `since the start, the last ${duration(damagedFor)} ago: damaged or unreadable, and fetched again` });
  }
  if (tier.shared === "down" && tier.failure) {
    problems.push({ grade: "warn", kind: "cache", text: `cache ${name} does without its shared server ${tier.server}`, why: tier.failure });
  }
  return problems;
}

function findProblems(model) {
  const problems = [];
  if (model.all.draining) problems.push({ grade: "warn", kind: "draining", text: "the process accepts no new connections, and exits when open connections end", why: "" });
  for (const upstream of model.upstreams) problems.push(...upstreamProblems(upstream));
  problems.push(...trafficProblems(model));
  const rank = { bad: 0, warn: 1, "": 2 };
  return problems.sort((a, b) => rank[a.grade] - rank[b.grade]);
}

/** The list at the top, made anew only where it says something else. */
class ProblemList {
  constructor(open) {
    this.open = open;
    this.section = byId("problems");
    this.list = this.section.querySelector("ul");
    this.lines = [];
  }

  update(problems) {
    this.section.hidden = problems.length === 0;
    while (this.lines.length > problems.length) this.lines.pop().element.remove();
    problems.forEach((problem, index) => {
      this.lines[index] ??= this.line();
      const line = this.lines[index];
      const { grade, kind, text, why, endpoints = [] } = problem;
      setClass(line.element, grade);
      setText(line.kind, kind);
      // One name comes first, as the line's subject; several come last.
      const isOne = endpoints.length === 1 && kind !== "no endpoint";
      this.showNames(line.subject, isOne ? endpoints : []);
      setText(line.text, text);
      setText(line.why, why);
      this.showNames(line.names, isOne ? [] : endpoints);
    });
  }

  /** Buttons that open endpoints; made anew only where they are others. */
  showNames(box, endpoints) {
    const shown = endpoints.slice(0, NAMES_SHOWN);
    const key = shown.map((it) => it.index).join() + "/" + endpoints.length;
    if (box.key === key) return;
    box.key = key;
    box.hidden = shown.length === 0;
    const buttons = shown.map((it) => make("button", { type: "button", onclick: () => this.open(it) }, it.name));
    const others = endpoints.length - shown.length;
    box.replaceChildren(...buttons, ...(others > 0 ? [make("span", {}, `and ${count(others)} more`)] : []));
  }

  line() {
    const line = { kind: make("span", { class: "kind" }), subject: make("span"), text: make("span"), why: make("span", { class: "why" }), names: make("span", { class: "names" }) };
    line.element = make("li", {}, line.kind, line.subject, line.text, line.why, line.names);
    this.list.append(line.element);
    return line;
  }
}

// Invariant: the number of problems is the number of lines in the list.
function verdict(model, problems) {
  const number = plural(problems.length, "problem");
  if (model.all.draining) return ["warn", "draining · " + number];
  // The first line has the worst grade.
  if (problems.length > 0) return [problems[0].grade, number];
  const all = model.endpoints.length;
  const up = model.endpoints.filter((it) => !isOut(it) && isWanted(it)).length;
  if (all === 0) return ["good", "all well"];
  return ["good", up === all ? `all well: ${plural(all, "endpoint")} up` : `no problem: ${count(up)} of ${plural(all, "endpoint")} up`];
}
