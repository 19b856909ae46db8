// What is wrong with how the page looks: texts that are cut off, that leave
// their cell or the window, or that are hard to read. Run by `status_page.py`.

const CONTRAST = 4.5;
const SLACK = 1;
const faults = [];

const channels = (colour) => colour.match(/[\d.]+/g).map(Number);

function luminance(colour) {
  const linear = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = channels(colour).map(linear);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The colour behind an element. */
function behind(element) {
  for (let it = element; it; it = it.parentElement) {
    const colour = getComputedStyle(it).backgroundColor;
    if (channels(colour).length === 3) return colour;
  }
  return "rgb(255, 255, 255)";
}

function checkContrast(element, style, text) {
  const [lighter, darker] = [luminance(style.color), luminance(behind(element))].sort((a, b) => b - a);
  const ratio = (lighter + 0.05) / (darker + 0.05);
  if (ratio < CONTRAST) faults.push(`contrast ${ratio.toFixed(2)} of ${text} in ${element.tagName}.${element.className}`);
}

/** Boxes that a text must not leave: its cell, and whatever cuts off. */
function frames(element) {
  const all = [];
  for (let it = element; it; it = it.parentElement) {
    const style = getComputedStyle(it);
    // What scrolls down a window of its own is not cut off.
    if (["TD", "TH", "LI", "DD"].includes(it.tagName) || ["hidden", "clip"].includes(style.overflowX)) all.push(it);
  }
  return all;
}

const isForEars = (element) => element.closest(".sr, h1, .skip") !== null;

function checkPlace(node, text) {
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const { left, right, width } of range.getClientRects()) {
    if (width === 0) continue;
    if (left < -SLACK || right > innerWidth + SLACK) faults.push(`out of the window: ${text}`);
    for (const frame of frames(node.parentElement)) {
      const box = frame.getBoundingClientRect();
      if (left < box.left - SLACK || right > box.right + SLACK) faults.push(`out of ${frame.tagName}.${frame.className}: ${text}`);
    }
  }
}

/** A figure and its unit, which belong into one line. */
const ONE_LINE = ".figure, dd small, .key, .ago, tbody .num b, .bar small";

function checkOneLine(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const boxes = [...range.getClientRects()].filter(({ width }) => width > 0);
  const lines = new Set();
  // Of one line where they overlap: letters of different sizes begin at different heights.
  for (const { top, bottom } of boxes) lines.add(boxes.findIndex((it) => it.top < bottom && top < it.bottom));
  if (lines.size > 1) faults.push(`in several lines: ${element.textContent}`);
}

// A dialog makes the rest of the page unreachable.
const root = document.querySelector("dialog[open]") ?? document.body;
const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  const text = node.data.trim();
  if (!text || ["SCRIPT", "STYLE"].includes(element.tagName) || isForEars(element)) continue;
  if (!element.checkVisibility() || (element.closest("dialog") ?? root) !== root) {
    if (element.closest("dialog") === null && element.closest("tbody th")) faults.push(`a name that is not there: ${text}`);
    continue;
  }
  checkContrast(element, getComputedStyle(element), text);
  checkPlace(node, text);
}
for (const element of root.querySelectorAll(ONE_LINE)) {
  if (element.checkVisibility()) checkOneLine(element);
}
// A probe's answer that is short has its time beside it.
for (const ago of innerWidth < 1180 ? [] : root.querySelectorAll(".ago")) {
  const answer = ago.previousSibling;
  if (answer.textContent.length > 20 || !ago.checkVisibility()) continue;
  const [above, below] = [answer, ago].map((it) => it.getBoundingClientRect());
  if (below.top >= above.bottom || above.height > 25) faults.push(`in several lines: ${answer.textContent}${ago.textContent}`);
}
// The titles of figures on a phone look alike.
const fonts = [...root.querySelectorAll("tbody td")].map((it) => getComputedStyle(it, "::before")).filter((it) => it.content !== "none");
const looks = new Set(fonts.map((it) => `${it.fontFamily} ${it.fontSize}`));
if (looks.size > 1) faults.push(`titles of figures in several fonts: ${[...looks].join(" / ")}`);
for (const element of root.querySelectorAll("*")) {
  for (const part of ["::before", "::after"]) {
    const style = getComputedStyle(element, part);
    if (!["none", "normal", '""'].includes(style.content) && element.checkVisibility()) checkContrast(element, style, style.content);
  }
}
return [...new Set(faults)].slice(0, 12);
