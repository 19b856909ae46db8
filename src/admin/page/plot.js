// Plots: small ones in tables, larger ones with a scale and a reading.

const POINTS = 60;

/** Where a value stands between none and the most: 0 to 1. */
const linear = (max) => (value) => Math.min(value, max) / max;

/** The same by its logarithm: what takes a thousand times as long is seen beside the rest. */
const logarithmic = (min, max) => (value) => Math.min(1, Math.max(0, Math.log(value / min) / Math.log(max / min)));

/** A path through values at equal distances, the last at the right; `gaps` leaves out zeros. */
function path(values, scale, width, height, gaps = false) {
  const first = POINTS - values.length;
  let text = "";
  let pen = "M";
  for (let index = 0; index < values.length; index += 1) {
    const value = values[index];
    if (gaps && value === 0) {
      pen = "M";
      continue;
    }
    const x = ((first + index) / (POINTS - 1)) * width;
    const y = height - scale(value) * height;
    // One alone would be a dot that nobody sees.
    const isAlone = gaps && !values[index - 1] && !values[index + 1];
    text += isAlone ? `M${(x - width / 150).toFixed(1)} ${y.toFixed(1)}h${(width / 75).toFixed(1)}` : pen + x.toFixed(1) + " " + y.toFixed(1) + (pen === "M" ? "h.1" : "");
    pen = "L";
  }
  return text;
}

function area(values, scale, width, height) {
  if (values.length < 2) return "";
  const left = ((POINTS - values.length) / (POINTS - 1)) * width;
  return path(values, scale, width, height) + `L${width} ${height}L${left.toFixed(1)} ${height}Z`;
}

/**
 * Bars from below, to scale, for errors. A few of many are too low to be seen: a
 * tick of the height `tick` below the plot says when there were any.
 */
function bars(values, scale, width, height, tick) {
  const first = POINTS - values.length;
  const step = width / (POINTS - 1);
  let text = "";
  values.forEach((value, index) => {
    if (value <= 0) return;
    const tall = scale(value) * height;
    const x = Math.min(width - step, Math.max(0, (first + index) * step - step / 2));
    for (const [bottom, by] of [[height, tall], [height + 2 * tick, tick]]) {
      text += `M${x.toFixed(1)} ${bottom}v${(-by).toFixed(2)}h${step.toFixed(1)}v${by.toFixed(2)}z`;
    }
  });
  return text;
}

/** A plot of requests and errors without a scale. */
class Spark {
  constructor(label) {
    this.svg = makeSvg("svg", { class: "spark", viewBox: "0 0 120 20", preserveAspectRatio: "none", role: "img", "aria-label": label });
    this.area = makeSvg("path", { class: "area" });
    this.line = makeSvg("path", { class: "line" });
    this.errors = makeSvg("path", { class: "errors" });
    this.svg.append(this.area, this.line, this.errors);
  }

  draw({ requests, errors }) {
    const scale = linear(Math.max(1, ...requests) * 1.1);
    setAttribute(this.area, "d", area(requests, scale, 120, 16));
    setAttribute(this.line, "d", path(requests, scale, 120, 16));
    setAttribute(this.errors, "d", bars(errors, scale, 120, 16, 2));
  }
}

/** The next round number, of which the half is one too. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 4, 6, 8, 10].map((it) => it * power).find((it) => it >= value * 0.999) ?? value;
}

/** A plot with a scale: `lines` are [key, class, filled], `show` makes a value a text. */
class Plot {
  constructor(box, label, lines, show, read) {
    this.lines = lines;
    this.show = show;
    this.read = read;
    this.svg = makeSvg("svg", { viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
    for (const y of [0, 50, 100]) this.svg.append(makeSvg("line", { class: "grid", x1: 0, x2: 600, y1: y, y2: y }));
    this.areas = lines.map(([, , filled]) => (filled ? this.svg.appendChild(makeSvg("path", { class: "area" })) : null));
    this.paths = lines.map(([, name]) => this.svg.appendChild(makeSvg("path", { class: name === "errors" ? "errors" : "line " + name })));
    this.cross = this.svg.appendChild(makeSvg("line", { class: "cross", y1: 0, y2: 100, visibility: "hidden" }));
    this.max = make("span", { class: "max" });
    this.mid = make("span", { class: "mid" });
    this.min = make("span", { class: "min" });
    this.reading = make("span", { class: "read", hidden: true });
    box.append(this.svg, this.max, this.mid, this.min, this.reading);
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerleave", () => this.leave());
  }

  draw(series, step) {
    this.series = series;
    this.step = step;
    const areTimes = this.show === timeText;
    const all = this.lines.flatMap(([key]) => series[key]).filter((it) => it > 0);
    const max = rounded(Math.max(areTimes ? 1000 : 2, ...all));
    const min = areTimes ? Math.min(max / 10, 10 ** Math.floor(Math.log10(Math.min(max, ...all)))) : 0;
    const scale = areTimes ? logarithmic(min, max) : linear(max);
    this.lines.forEach(([key, name, filled], index) => {
      const values = series[key];
      const d = name === "errors" ? bars(values, scale, 600, 100, 5) : path(values, scale, 600, 100, areTimes);
      setAttribute(this.paths[index], "d", d);
      if (filled) setAttribute(this.areas[index], "d", area(values, scale, 600, 100));
    });
    setText(this.max, this.show(max));
    setText(this.mid, this.show(areTimes ? Math.sqrt(min * max) : max / 2));
    setText(this.min, areTimes ? this.show(min) : "0");
  }

  point(event) {
    if (!this.series) return;
    const { left, width } = this.svg.getBoundingClientRect();
    const at = Math.round(((event.clientX - left) / width) * (POINTS - 1));
    const length = this.series[this.lines[0][0]].length;
    const index = at - (POINTS - length);
    if (index < 0 || index >= length) return this.leave();
    const ago = (POINTS - 1 - at) * this.step;
    const when = ago < 60 ? plural(ago, "second") + " ago" : plural(ago / 60, "minute") + " ago";
    setText(this.reading, when + ": " + this.read(this.series, index));
    this.reading.hidden = false;
    const x = (at / (POINTS - 1)) * 600;
    setAttribute(this.cross, "x1", x);
    setAttribute(this.cross, "x2", x);
    setAttribute(this.cross, "visibility", "visible");
  }

  leave() {
    this.reading.hidden = true;
    setAttribute(this.cross, "visibility", "hidden");
  }
}
