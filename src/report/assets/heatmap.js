// A heat map on a canvas of the size of its window: only the cells in it are drawn.

import { h } from "report/dom";

const [TOP, ROW] = [24, 15];
// Shares from none to all correct, in five steps of cividis.
const SHARES = ["rgb(0 34 78)", "rgb(66 78 108)", "rgb(125 124 120)", "rgb(187 173 108)", "rgb(255 234 70)"];

/** The colour of a share of 0…1. */
export const ofShare = (share) => SHARES[Math.round(share * (SHARES.length - 1))];

/**
 * A heat map of `rows` (each with `label` and `cells`: column → cell, ascending) and `columns` (labels).
 *
 * `colour(cell)` and `told(row, cell)` describe a cell, `open(cell)` is called when it is clicked or entered.
 * Returns its `element` and `update({ rows, columns })`.
 */
export function heatMap({ colour, told, open }) {
  const canvas = h("canvas");
  const area = h("div");
  const readout = h("p.soft.readout", { "aria-live": "polite" }, "Arrow keys move, Enter opens.");
  const named = { tabindex: 0, role: "application", "aria-label": "heat map" };
  const box = h("div.heat", named, h("div.window", canvas), area);
  let [rows, columns, width, left, cursor] = [[], [], 12, 190, null];

  function draw() {
    const [style, scale, pen] = [getComputedStyle(box), devicePixelRatio || 1, canvas.getContext("2d")];
    Object.assign(canvas, { width: box.clientWidth * scale, height: box.clientHeight * scale });
    Object.assign(canvas.style, { width: `${box.clientWidth}px`, height: `${box.clientHeight}px` });
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const [x0, y0] = [left - box.scrollLeft, TOP - box.scrollTop];
    const first = Math.floor(box.scrollTop / ROW);
    const shown = rows.slice(first, first + Math.ceil(box.clientHeight / ROW));
    shown.forEach((row, i) => {
      for (const [column, cell] of row.cells) {
        pen.fillStyle = colour(cell);
        pen.fillRect(x0 + column * width, y0 + (first + i) * ROW, width - (width > 4 ? 1 : 0), ROW - 1);
      }
    });
    pen.strokeStyle = style.color;
    pen.lineWidth = 2;
    if (cursor) pen.strokeRect(x0 + cursor.column * width - 1, y0 + cursor.row * ROW - 1, width + 1, ROW + 1);
    pen.fillStyle = style.backgroundColor;
    pen.fillRect(0, 0, left - 4, box.clientHeight);
    pen.fillRect(0, 0, box.clientWidth, TOP - 2);
    pen.fillStyle = style.color;
    shown.forEach((row, i) => {
      const y = y0 + (first + i + 0.5) * ROW;
      if (y > TOP) pen.fillText(row.label.length > 30 ? `…${row.label.slice(-29)}` : row.label, 4, y, left - 12);
    });
    const step = Math.max(1, Math.ceil(44 / width));
    for (let c = 0; c < columns.length; c += step) {
      if (x0 + c * width >= left - 2) pen.fillText(columns[c], x0 + c * width, TOP / 2);
    }
  }

  /** The place under the pointer, where there is a cell. */
  function under(event) {
    const corner = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - corner.left - left, event.clientY - corner.top - TOP];
    const [row, column] = [Math.floor((y + box.scrollTop) / ROW), Math.floor((x + box.scrollLeft) / width)];
    return x >= 0 && y >= 0 && rows[row]?.cells.has(column) ? { row, column } : null;
  }

  const chosen = () => rows[cursor.row].cells.get(cursor.column);

  function choose(place) {
    if (!place || (place.row === cursor?.row && place.column === cursor.column)) return;
    cursor = place;
    readout.replaceChildren(h("span", told(rows[place.row], chosen())));
    draw();
  }

  /** Go to the next cell in a direction; empty places are skipped. */
  function move(right, down) {
    const from = cursor ?? { row: -Math.abs(down), column: -1 };
    const row = Math.min(Math.max(from.row + down, 0), rows.length - 1);
    const filled = [...(rows[row]?.cells.keys() ?? [])];
    const near = (best, column) => (Math.abs(column - from.column) < Math.abs(best - from.column) ? column : best);
    const sideways = right > 0 ? filled.find((c) => c > from.column) : filled.findLast((c) => c < from.column);
    const column = right ? sideways : filled.reduce(near, filled[0]);
    if (column === undefined) return;
    choose({ row, column });
    box.scrollTop = within(box.scrollTop, row * ROW, ROW, box.clientHeight - TOP);
    box.scrollLeft = within(box.scrollLeft, column * width, width, box.clientWidth - left);
  }

  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (event.key === "Enter" && cursor) open(chosen());
    if (!step) return;
    event.preventDefault();
    move(...step);
  });
  canvas.addEventListener("pointermove", (event) => choose(under(event)));
  canvas.addEventListener("click", (event) => {
    choose(under(event));
    if (under(event)) open(chosen());
  });
  box.addEventListener("scroll", () => requestAnimationFrame(draw));
  new ResizeObserver(fit).observe(box);
  addEventListener("theme", draw);
  matchMedia("print").addEventListener("change", fit);

  function fit() {
    left = Math.min(190, 0.35 * box.clientWidth);
    width = Math.min(Math.max((box.clientWidth - left - 8) / Math.max(columns.length, 1), 3), 26);
    Object.assign(area.style, { width: `${left + columns.length * width}px`, height: `${TOP + rows.length * ROW}px` });
    draw();
  }

  function update(content) {
    ({ rows, columns } = content);
    cursor = null;
    fit();
  }

  return { element: h("div", readout, box), focus: () => box.focus({ preventScroll: true }), update };
}

/** The scroll position nearest to `now` that shows what begins at `start`. */
const within = (now, start, size, room) => Math.max(Math.min(now, start), start + size - room);
