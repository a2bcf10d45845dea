// A heat map on a canvas of the size of its window: only the cells in it are drawn.

import { h } from "report/dom";
import { themed } from "report/colours";

const LEFT = 190,
  TOP = 24;

/**
 * A heat map of `rows` (each with `label` and `cells`: column → cell) and `columns` (labels).
 *
 * `colour(cell)` and `title(row, column, cell)` describe a cell, `open(cell)` is called when it is clicked or entered.
 * Returns its `element`, `update({rows, columns})`, and what `keys` do.
 */
export function heatMap({ colour, title, open }) {
  const canvas = h("canvas", {});
  const area = h("div", { class: "area" });
  const tip = h("div", { class: "tip", hidden: true });
  const element = h(
    "div",
    { class: "heat", tabindex: 0, "aria-label": "heat map; arrow keys move, Enter opens" },
    h("div", { class: "window" }, canvas, tip),
    area,
  );
  let rows = [],
    columns = [],
    size = { x: 12, y: 12 },
    cursor = null;

  function draw() {
    const { clientWidth: width, clientHeight: height } = element;
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    const [x0, y0] = [LEFT - element.scrollLeft, TOP - element.scrollTop];
    const firstRow = Math.max(Math.floor((TOP - y0) / size.y), 0);
    const lastRow = Math.min(Math.ceil((height - y0) / size.y), rows.length);
    const gap = size.x > 4 ? 1 : 0;
    for (let r = firstRow; r < lastRow; r++) {
      for (const [column, cell] of rows[r].cells) {
        const x = x0 + column * size.x;
        if (x < LEFT - size.x || x > width) continue;
        pen.fillStyle = colour(cell);
        pen.fillRect(x, y0 + r * size.y, size.x - gap, size.y - 1);
      }
    }
    if (cursor) {
      pen.strokeStyle = themed("ink");
      pen.lineWidth = 2;
      pen.strokeRect(x0 + cursor.column * size.x - 1, y0 + cursor.row * size.y - 1, size.x + 1, size.y + 1);
    }
    labels(pen, { x0, y0, width, height, firstRow, lastRow });
  }

  function labels(pen, { x0, y0, width, height, firstRow, lastRow }) {
    pen.fillStyle = themed("paper");
    pen.fillRect(0, 0, LEFT - 4, height);
    pen.fillRect(0, 0, width, TOP - 2);
    pen.fillStyle = themed("soft");
    pen.textBaseline = "middle";
    for (let r = firstRow; r < lastRow; r++) {
      const label = rows[r].label;
      const y = y0 + (r + 0.5) * size.y;
      if (y > TOP) pen.fillText(label.length > 30 ? `…${label.slice(-29)}` : label, 4, y, LEFT - 12);
    }
    const step = Math.max(1, Math.ceil(44 / size.x));
    for (let c = 0; c < columns.length; c += step) {
      const x = x0 + c * size.x;
      if (x >= LEFT - 2 && x < width) pen.fillText(columns[c], x, TOP / 2);
    }
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (x < LEFT || y < TOP) return null;
    const column = Math.floor((x - LEFT + element.scrollLeft) / size.x);
    const row = Math.floor((y - TOP + element.scrollTop) / size.y);
    const cell = rows[row]?.cells.get(column);
    return cell === undefined ? null : { row, column, cell, x, y };
  }

  function show(event) {
    const found = at(event);
    tip.hidden = !found;
    canvas.style.cursor = found ? "pointer" : "default";
    if (!found) return;
    tip.replaceChildren(title(rows[found.row], columns[found.column], found.cell));
    const { clientWidth: width, clientHeight: height } = element;
    tip.style.left = `${Math.min(found.x + 14, width - tip.offsetWidth - 8)}px`;
    tip.style.top = `${found.y + tip.offsetHeight + 24 > height ? found.y - tip.offsetHeight - 10 : found.y + 14}px`;
  }

  /** Go to the next cell in a direction; empty places are skipped. */
  function move(right, down) {
    if (!rows.length) return;
    let { row, column } = cursor ?? { row: 0, column: right ? -1 : 0 };
    if (!cursor && down) [row, column] = [-1, Math.min(...rows[0].cells.keys())];
    do {
      row += down;
      column += right;
    } while (
      row >= 0 &&
      row < rows.length &&
      column >= 0 &&
      column < columns.length &&
      down === 0 &&
      !rows[row].cells.has(column)
    );
    if (row < 0 || row >= rows.length || column < 0 || column >= columns.length) return;
    if (!rows[row].cells.has(column)) column = nearest([...rows[row].cells.keys()], column);
    cursor = { row, column };
    reveal();
    draw();
  }

  function reveal() {
    const [x, y] = [cursor.column * size.x, cursor.row * size.y];
    const { clientWidth: width, clientHeight: height } = element;
    if (y < element.scrollTop) element.scrollTop = y;
    if (y + size.y + TOP > element.scrollTop + height) element.scrollTop = y + size.y + TOP - height;
    if (x < element.scrollLeft) element.scrollLeft = x;
    if (x + size.x + LEFT > element.scrollLeft + width) element.scrollLeft = x + size.x + LEFT - width;
  }

  canvas.addEventListener("mousemove", show);
  canvas.addEventListener("mouseleave", () => {
    tip.hidden = true;
  });
  canvas.addEventListener("click", (event) => {
    const found = at(event);
    if (found) open(found.cell);
  });
  element.addEventListener("scroll", () => requestAnimationFrame(draw));
  new ResizeObserver(() => {
    fit();
    draw();
  }).observe(element);

  function fit() {
    const room = Math.max(element.clientWidth - LEFT - 8, 100);
    size = { x: Math.min(Math.max(room / Math.max(columns.length, 1), 3), 26), y: 15 };
    area.style.width = `${LEFT + columns.length * size.x}px`;
    area.style.height = `${TOP + rows.length * size.y}px`;
  }

  return {
    element,
    keys: {
      ArrowRight: () => move(1, 0),
      ArrowLeft: () => move(-1, 0),
      ArrowDown: () => move(0, 1),
      ArrowUp: () => move(0, -1),
      Enter: () => {
        if (cursor) open(rows[cursor.row].cells.get(cursor.column));
      },
      theme: draw,
    },
    update(content) {
      ({ rows, columns } = content);
      cursor = null;
      fit();
      draw();
    },
  };
}

const nearest = (places, to) =>
  places.reduce((best, place) => (Math.abs(place - to) < Math.abs(best - to) ? place : best));
