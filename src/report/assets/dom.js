// Elements without HTML: whatever comes from data becomes a text node or an attribute.

/** An element. `on…` attributes are listeners, the others are attributes; null and false leave one out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A `<select>`: options are [value, label] pairs. */
export function choice(label, options, chosen, change) {
  const list = h(
    "select",
    { "aria-label": label, onchange: (event) => change(event.target.value) },
    options.map(([value, name]) => h("option", { value, selected: value === chosen }, name)),
  );
  return h("label", { class: "choice" }, `${label} `, list);
}

/** A table of strings and elements; the first row is the header, the first column names the rows. */
export function table(header, rows, attributes = {}) {
  const line = (cells, tag) =>
    h(
      "tr",
      {},
      cells.map((cell, i) => h(i === 0 ? "th" : tag, {}, cell)),
    );
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      attributes,
      h("thead", {}, line(header, "th")),
      h(
        "tbody",
        {},
        rows.map((row) => line(row, "td")),
      ),
    ),
  );
}

const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Text as nodes: what can't be seen, or would turn the text around it, is shown by its code point. */
export function visible(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(UNSEEN)) {
    nodes.push(text.slice(end, found.index));
    nodes.push(
      h("span", { class: "unseen" }, `U+${found[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`),
    );
    end = found.index + found[0].length;
  }
  return [...nodes, text.slice(end)];
}

/** A box for text of any language and length. */
export function textBox(text, attributes = {}) {
  return h("div", { class: "text", dir: "auto", ...attributes }, visible(text));
}

/** An entry of a legend: a colour and what it stands for. */
export function swatch(colour, label) {
  const mark = h("span", { class: "swatch" });
  mark.style.backgroundColor = colour;
  return h("span", {}, mark, visible(label));
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
