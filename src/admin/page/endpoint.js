// One endpoint in detail, and what may be done to it.

const DETAIL_EVERY_MS = 2000;
const TOKEN = "evenkeel-token";

/** Asks for the token once; gives null where there is to be none. */
function askToken() {
  const kept = sessionStorage.getItem(TOKEN);
  if (kept) return Promise.resolve(kept);
  const dialog = byId("ask");
  const field = byId("token");
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const finish = (token) => {
      byId("ask-form").onsubmit = null;
      dialog.onclose = null;
      dialog.close();
      resolve(token);
    };
    byId("ask-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, field.value.trim());
      finish(field.value.trim());
    };
    byId("ask-no").onclick = () => finish(null);
    dialog.onclose = () => finish(null);
  });
}

function confirmStop(endpoint) {
  const others = endpoint.upstream.endpoints.filter((it) => it !== endpoint && !isOut(it) && isWanted(it)).length;
  const left = others ? `${plural(others, "endpoint")} of upstream ${endpoint.upstream.name} would be left.` : `Upstream ${endpoint.upstream.name} would have no endpoint left.`;
  return confirmed(`Stop ${endpoint.name}?`, `It gets no new requests, and is out of service until it is made ready. ${left}`, "Stop it");
}

/** Asks whether it is meant. */
function confirmed(title, text, yes) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), yes);
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    let answer = false;
    byId("confirm-yes").onclick = () => {
      answer = true;
      dialog.close();
    };
    byId("confirm-no").onclick = () => dialog.close();
    dialog.onclose = () => resolve(answer);
  });
}

/** Sends an order, and gives what the answer says: [whether it was done, what]. */
async function send(path, order) {
  const token = await askToken();
  if (!token) return [false, ""];
  try {
    const answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: "Bearer " + token },
      body: JSON.stringify(order),
    });
    if (answer.ok) return [true, (await answer.json()).done];
    if (answer.status === 401) sessionStorage.removeItem(TOKEN);
    return [false, (await answer.text()).trim()];
  } catch {
    return [false, "no answer: is the process still there?"];
  }
}

/** Answers by status; empty where there are none, as of connections of TCP. */
function answersText(status) {
  const names = ["2xx", "3xx", "4xx", "5xx"];
  if (names.every((name) => status[name] === 0)) return "";
  return names.map((name) => `${name}:\u00a0${count(status[name])}`).join("\u00a0· ");
}

class EndpointDialog {
  constructor(model) {
    this.model = model;
    this.dialog = byId("endpoint");
    this.done = byId("endpoint-done");
    this.endpoint = null;
    const can = model.start.can_operate;
    byId("endpoint-operate").hidden = !can;
    byId("endpoint-off").hidden = can;
    this.dialog.querySelector(".close").onclick = () => this.dialog.close();
    this.dialog.onclose = () => {
      this.endpoint = null;
      clearInterval(this.timer);
    };
    for (const button of this.dialog.querySelectorAll("[data-admin]")) button.onclick = () => this.setAdmin(button.dataset.admin);
    byId("weigh").onsubmit = (event) => {
      event.preventDefault();
      this.order({ weight: Number(byId("weight").value) });
    };
    const box = byId("endpoint-plots");
    const times = [["p99", "p99", false], ["p50", "p50", false]];
    const requests = [["requests", "", true], ["errors", "errors", false]];
    const readTimes = ({ p50, p99 }, at) => `p50 ${timeText(p50[at])}, p99 ${timeText(p99[at])}`;
    const readRequests = (plot, at) => `${plural(plot.requests[at], "request")}, ${plural(plot.errors[at], "error")}`;
    this.plots = [
      ["minute", 1, "Attempts a second, last minute", requests, count, readRequests],
      ["hour", 60, "Attempts a minute, last hour", requests, count, readRequests],
      ["minute", 1, "p50 and p99, last minute", times, timeText, readTimes],
      ["hour", 60, "p50 and p99, last hour", times, timeText, readTimes],
    ].map(([span, step, title, lines, show, read]) => {
      const place = make("div", { class: "plot" });
      const failed = lines === requests ? make("span", { class: "key errors" }) : null;
      box.append(make("div", {}, make("h3", {}, title, ...(failed ? [failed] : [])), place));
      return { span, step, failed, plot: new Plot(place, title, lines, show, read) };
    });
  }

  open(endpoint) {
    this.endpoint = endpoint;
    setText(byId("endpoint-name"), `${endpoint.upstream.name} / ${endpoint.name}`);
    this.say(true, "");
    byId("weight").value = endpoint.weight;
    byId("endpoint-figures").replaceChildren();
    this.update();
    if (!this.dialog.open) this.dialog.showModal();
    clearInterval(this.timer);
    this.timer = setInterval(() => this.load(), DETAIL_EVERY_MS);
    this.load();
  }

  say(isDone, text) {
    setText(this.done, text);
    setClass(this.done, "done " + (isDone ? "good" : "bad"));
  }

  async setAdmin(admin) {
    const { endpoint } = this;
    if (admin === "stop" && !(await confirmStop(endpoint))) return;
    await this.order({ admin });
  }

  async order(what) {
    const { endpoint } = this;
    const [isDone, text] = await send("/endpoints", { upstream: endpoint.upstream.name, endpoint: endpoint.name, ...what });
    if (this.endpoint !== endpoint) return;
    this.say(isDone, text);
    this.load();
  }

  /** What the last message says of it. */
  update() {
    const { endpoint } = this;
    if (!endpoint) return;
    const line = byId("endpoint-state");
    setText(line, endpoint.stateWord);
    setClass(line, "state " + endpoint.stateWord);
    const pressed = { draining: "drain", stopped: "stop" }[endpoint.stateWord] ?? "ready";
    for (const button of this.dialog.querySelectorAll("[data-admin]")) setAttribute(button, "aria-pressed", String(button.dataset.admin === pressed));
  }

  async load() {
    const { endpoint } = this;
    let detail;
    try {
      const answer = await fetch("/endpoint.json?index=" + endpoint.index);
      if (!answer.ok) return;
      detail = await answer.json();
    } catch {
      return; // The banner says that the connection is lost.
    }
    if (this.endpoint !== endpoint) return;
    for (const { span, step, failed, plot } of this.plots) {
      plot.draw(detail[span], step);
      if (failed) setText(failed, plural(total(detail[span].errors), "error"));
    }
    this.show(detail);
  }

  show({ figures: it, most }) {
    const probe = it.last_probe;
    const limit = it.max_in_flight === null ? "no limit" : "limit " + count(it.max_in_flight);
    const facts = [
      ["In flight", `${count(it.in_flight)} now, ${limit}, most ${count(most.in_flight)}`],
      ["Weight", it.effective_weight < it.weight ? `${it.effective_weight.toFixed(1)} of ${it.weight}` : count(it.weight)],
      ["Last probe", probe ? `${probe.answer}, took ${timeText(probe.took_us)}` : "none"],
      ["Errors in a row", count(it.errors_in_row)],
      ["Attempts", count(it.attempts)],
      ["Most in a second", count(most.requests)],
      ["Failed attempts", count(it.failures)],
      ["Answers", answersText(it.status)],
      ["Connections opened", count(it.connects)],
      ["Connections not opened", count(it.connect_failures)],
      ["Connections reused", count(it.reuses)],
      ["Connections idle", count(it.idle)],
      ["Idle ones found closed", count(it.stale)],
      ["Connecting", `p50 ${timeText(it.connect_us.p50)}, p99 ${timeText(it.connect_us.p99)}`],
      ["First byte", `p50 ${timeText(it.first_byte_us.p50)}, p99 ${timeText(it.first_byte_us.p99)}`],
      ["Went down", plural(it.downs, "time")],
      ["Ejected", plural(it.ejections, "time")],
      ["Sent", bytes(it.bytes_out)],
      ["Received", bytes(it.bytes_in)],
    ];
    const list = byId("endpoint-figures");
    if (!list.firstChild) list.append(...facts.map(([name]) => make("div", {}, make("dt", {}, name), make("dd"))));
    facts.forEach(([, text], index) => {
      list.children[index].hidden = text === "";
      setText(list.children[index].lastChild, text);
    });
  }
}
