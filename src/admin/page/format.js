// Numbers as people read them, and elements whose texts are only ever texts.

const byId = (id) => document.getElementById(id);

/** An element; children are elements or texts. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Sets a text where it is another one: most are not, from second to second. */
function setText(element, text) {
  if (element.shown !== text) {
    element.shown = text;
    element.textContent = text;
  }
}

function setAttribute(element, name, value) {
  const key = "shown-" + name;
  if (element[key] !== value) {
    element[key] = value;
    element.setAttribute(name, value);
  }
}

function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const oneDecimal = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

function count(value) {
  if (value < 1e6) return whole.format(value);
  if (value < 1e9) return oneDecimal.format(value / 1e6) + " M";
  return oneDecimal.format(value / 1e9) + " G";
}

function perSecond(value) {
  return value > 0 && value < 10 ? oneDecimal.format(value) : count(value);
}

/** A time as number and unit: three digits at most. */
function time(us) {
  if (us <= 0) return ["–", ""];
  const ms = us / 1000;
  if (ms < 0.995) return [ms.toFixed(2), "ms"];
  if (ms < 9.95) return [ms.toFixed(1), "ms"];
  if (ms < 1000) return [ms.toFixed(0), "ms"];
  const s = ms / 1000;
  return [s < 100 ? s.toFixed(s < 10 ? 2 : 1) : whole.format(s), "s"];
}

const timeText = (us) => time(us).join(" ").trim();

/** A kilobyte has 1000 bytes, and the name that it has in `top` and `ctl`. */
function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return (unit > 0 && value < 10 ? value.toFixed(1) : whole.format(value)) + " " + units[unit];
}

function percent(part, all) {
  if (all <= 0) return "–";
  const value = (100 * part) / all;
  if (value === 0) return "0 %";
  if (value < 0.1) return "<0.1 %";
  return (value < 10 ? value.toFixed(1) : value.toFixed(0)) + " %";
}

function duration(ms) {
  const s = Math.floor(ms / 1000);
  const parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "min"], [s % 60, "s"]];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([value, unit]) => value + " " + unit).join(" ");
}

const total = (values) => values.reduce((sum, it) => sum + it, 0);

function plural(number, one, many = one + "s") {
  return count(number) + " " + (number === 1 ? one : many);
}
