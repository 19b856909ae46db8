// What is wrong, the worst first: all that somebody at night looks for.

const GROUP_FROM = 6;

function endpointProblems(upstream) {
  const problems = [];
  const out = upstream.endpoints.filter(isOut);
  if (out.length >= GROUP_FROM) {
    const [first] = out;
    problems.push({
      grade: "warn",
      kind: "endpoints out",
      text: `${plural(out.length, "endpoint")} of upstream ${upstream.name}, of ${count(upstream.endpoints.length)}`,
      why: "such as " + first.name + whyOut(first),
    });
  } else {
    for (const endpoint of out) {
      problems.push({ grade: "warn", kind: endpoint.stateWord, endpoint, text: `of upstream ${upstream.name}`, why: whyOut(endpoint).replace(/^: /, "") });
    }
  }
  const unwanted = upstream.endpoints.filter((it) => !isWanted(it));
  if (unwanted.length >= GROUP_FROM) {
    problems.push({ grade: "", kind: "taken out", text: `${plural(unwanted.length, "endpoint")} of upstream ${upstream.name}`, why: "by the operator" });
  } else {
    for (const endpoint of unwanted) {
      const why = (isWithoutWeight(endpoint) ? "taken out by the operator" : "by the operator") + (endpoint.in_flight ? `, ${count(endpoint.in_flight)} still in flight` : "");
      problems.push({ grade: "", kind: isWithoutWeight(endpoint) ? "weight 0" : endpoint.stateWord, endpoint, text: `of upstream ${upstream.name}`, why });
    }
  }
  return problems;
}

function whyOut({ stateWord, probe }) {
  if (stateWord === "ejected") return ": too many errors in a row";
  if (probe.unix_ms && !probe.passed) return ": " + probe.answer;
  return stateWord === "unreachable" ? ": connections to it fail" : "";
}

function upstreamProblems(upstream) {
  const problems = [];
  const { name, waiting, queue_max: max } = upstream;
  if (upstream.eligible === 0) {
    const why = waiting ? `${plural(waiting, "request")} waiting` : "requests are refused, or wait";
    problems.push({ grade: "bad", kind: "no endpoint", text: `upstream ${name} has no endpoint that takes requests`, why });
  } else if (max > 0 && waiting >= max) {
    problems.push({ grade: "bad", kind: "queue full", text: `upstream ${name} refuses requests`, why: `${count(waiting)} wait already` });
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
  for (const route of model.routes) {
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
  const { all } = model;
  const missingFor = model.unixMs - all.log_lines_missing_ms;
  if (missingFor < MISSING_SHOWN_MS) {
    problems.push({ grade: "warn", kind: "access log", text: `${plural(all.log_lines_missing, "line")} missing`, why: `since the start, the last ${duration(missingFor)} ago: dropped, or not written` });
  }
  if (model.unixMs - all.tokens_refused_ms < REFUSED_SHOWN_MS) {
    problems.push({ grade: "warn", kind: "tokens", text: `${plural(all.tokens_refused, "token")} refused for changes of endpoints`, why: "since the start, the last one within a minute" });
  }
  if (all.loop_lag_p99 > 50_000) {
    problems.push({ grade: "warn", kind: "busy", text: `the workers come ${timeText(all.loop_lag_p99)} late`, why: "one time in a hundred: too little processor time" });
  }
  return problems;
}

function findProblems(model) {
  const problems = [];
  if (model.all.draining) problems.push({ grade: "warn", kind: "draining", text: "the process takes no new connections and ends when what is open is done", why: "" });
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
      line.problem = problem;
      setClass(line.element, problem.grade);
      setText(line.kind, problem.kind);
      line.button.hidden = !problem.endpoint;
      setText(line.button, problem.endpoint?.name ?? "");
      setText(line.text, problem.text);
      setText(line.why, problem.why);
    });
  }

  line() {
    const line = { kind: make("span", { class: "kind" }), button: make("button", { type: "button" }), text: make("span"), why: make("span", { class: "why" }) };
    line.button.addEventListener("click", () => this.open(line.problem.endpoint));
    line.element = make("li", {}, line.kind, line.button, line.text, line.why);
    this.list.append(line.element);
    return line;
  }
}

function verdict(model, problems) {
  const bad = problems.filter((it) => it.grade === "bad").length;
  const warn = problems.filter((it) => it.grade === "warn").length;
  if (model.all.draining) return ["warn", "draining"];
  if (bad + warn > 0) return [bad ? "bad" : "warn", plural(bad + warn, "problem")];
  const all = model.endpoints.length;
  const up = model.endpoints.filter((it) => !isOut(it) && isWanted(it)).length;
  if (all === 0) return ["good", "all well"];
  return ["good", up === all ? `all well: ${plural(all, "endpoint")} up` : `no problem: ${count(up)} of ${plural(all, "endpoint")} up`];
}
