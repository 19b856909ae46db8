// Plots: small ones in tables, larger ones with a scale and a reading.

const POINTS = 60;

/** A path through values at equal distances, the last at the right; zeros are gaps where `gaps`. */
function path(values, max, width, height, gaps) {
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
    const y = height - (Math.min(value, max) / max) * height;
    text += pen + x.toFixed(1) + " " + y.toFixed(1);
    pen = "L";
  }
  return text;
}

function area(values, max, width, height) {
  if (values.length < 2) return "";
  const left = ((POINTS - values.length) / (POINTS - 1)) * width;
  return path(values, max, width, height, false) + `L${width} ${height}L${left.toFixed(1)} ${height}Z`;
}

/** Bars from below, for what should not be there. */
function bars(values, max, width, height) {
  const first = POINTS - values.length;
  const step = width / (POINTS - 1);
  let text = "";
  values.forEach((value, index) => {
    if (value <= 0) return;
    const tall = Math.max(1.5, (Math.min(value, max) / max) * height);
    const x = Math.min(width - step, Math.max(0, (first + index) * step - step / 2));
    text += `M${x.toFixed(1)} ${height}v${(-tall).toFixed(1)}h${step.toFixed(1)}v${tall.toFixed(1)}z`;
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
    const max = Math.max(1, ...requests) * 1.05;
    setAttribute(this.area, "d", area(requests, max, 120, 19));
    setAttribute(this.line, "d", path(requests, max, 120, 19, false));
    setAttribute(this.errors, "d", bars(errors, max, 120, 19));
  }
}

/** The next round number. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 4, 5, 10].map((it) => it * power).find((it) => it >= value * 0.999) ?? value;
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
    this.reading = make("span", { class: "read", hidden: true });
    box.append(this.svg, this.max, this.mid, this.reading);
    box.addEventListener("pointermove", (event) => this.point(event, box));
    box.addEventListener("pointerleave", () => this.leave());
  }

  draw(series, step) {
    this.series = series;
    this.step = step;
    const highest = Math.max(...this.lines.map(([key]) => Math.max(0, ...series[key])));
    const max = rounded(Math.max(highest, this.show === timeText ? 1000 : 1));
    this.lines.forEach(([key, name, filled], index) => {
      const values = series[key];
      const d = name === "errors" ? bars(values, max, 600, 100) : path(values, max, 600, 100, this.show === timeText);
      setAttribute(this.paths[index], "d", d);
      if (filled) setAttribute(this.areas[index], "d", area(values, max, 600, 100));
    });
    setText(this.max, this.show(max));
    setText(this.mid, this.show(max / 2));
  }

  point(event, box) {
    if (!this.series) return;
    const { left, width } = box.getBoundingClientRect();
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
