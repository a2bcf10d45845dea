// Elements without HTML: whatever comes from data becomes a text node or an attribute.

const SVG = ["svg", "g", "path", "line", "text", "circle"];
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/**
 * An element: `h("p.soft", { title: "x" }, "text", child)`. Attributes named `on…` are listeners; null, undefined and
 * false are left out. In strings, what can't be seen, or would turn the text around it, is shown by its code point.
 */
export function h(tag, ...content) {
  const [name, ...classes] = tag.split(".");
  const element = SVG.includes(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const part of content.flat(Infinity)) {
    if (part === null || part === undefined || part === false) continue;
    if (part instanceof Node) element.append(part);
    else if (typeof part === "object") attributes(element, part);
    else element.append(...visible(String(part)));
  }
  return element;
}

function attributes(element, values) {
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

function visible(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(UNSEEN)) {
    const mark = document.createElement("span");
    mark.className = "unseen";
    mark.textContent = `U+${found[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.push(text.slice(end, found.index), mark);
    end = found.index + found[0].length;
  }
  return [...nodes, text.slice(end)];
}

/** A `<select>` with its label: options are words, or an object value → name; `change` gets the chosen value. */
export function choice(label, options, chosen, change) {
  const pairs = Array.isArray(options) ? options.map((word) => [word, word]) : Object.entries(options);
  const named = pairs.map(([value, name]) => h("option", { value, selected: value === chosen }, name));
  return h("label", `${label} `, h("select", { onchange: (event) => change(event.target.value) }, named));
}

/** A text filter, choices ([label, name, options]) and what else there is; they write into `state` and call `update`. */
export function controls(state, placeholder, choices, update, ...others) {
  const change = (name) => (value) => {
    state[name] = value;
    update();
  };
  const filter = { type: "search", value: state.filter, placeholder, "aria-label": "filter" };
  return h(
    "div.bar",
    h("input", { ...filter, oninput: (event) => change("filter")(event.target.value) }),
    choices.map(([label, name, options]) => choice(label, options, state[name], change(name))),
    others,
  );
}

/**
 * A table of strings and elements; the first column names the rows.
 *
 * Where it is wider than its place, each row becomes a block with a line for each cell, so that no number is cut off.
 */
export function table(header, rows, attributes = {}) {
  const line = (cells, tag, role) =>
    h("tr", { role: "row" }, cells.map((cell, i) => h(...start(cell, i ? tag : "th", i ? role : "rowheader"), shown(header, i), cell)));
  const titles = h("tr", { role: "row" }, header.map((title) => h("th", { role: "columnheader", scope: "col" }, title)));
  const body = rows.map((row) => line(row, "td", "cell"));
  const made = h("table", { role: "table", ...attributes }, h("thead", { role: "rowgroup" }, titles), h("tbody", { role: "rowgroup" }, body));
  const box = h("div.scroll", made);
  let width = 0;
  const fit = () => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    made.classList.remove("stacked");
    made.classList.toggle("stacked", made.scrollWidth > width || made.offsetWidth > width);
  };
  new ResizeObserver(fit).observe(box);
  return box;
}

/** Tag and role of a cell; numbers are not broken into lines. */
function start(cell, tag, role) {
  const text = cell instanceof Node ? cell.textContent : String(cell ?? "");
  return [/^[▲▼ ]*[+−-]?[\d–∞]/.test(text) && text.length < 30 ? `${tag}.number` : tag, { role }];
}

const shown = (header, i) => ({ "data-label": header[i] ?? "", scope: i ? null : "row" });

/** A colour and what it stands for. */
export function swatch(colour, label) {
  const mark = h("span.swatch");
  mark.style.backgroundColor = colour;
  return h("span", mark, label);
}

/** A number with `digits` significant ones; a dash for none. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value)) return value.toLocaleString("en").replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-4 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replace(/-/g, "−");
}

/** A share as a percentage. */
export const percent = (share) =>
  Number.isFinite(share) ? `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %` : "–";
