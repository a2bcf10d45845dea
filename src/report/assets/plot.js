// Figures as SVG: lines, and points with intervals. Every point tells its numbers.

import { h, number } from "report/dom";
import { go } from "report/router";

const [RIGHT, TOP, BOTTOM] = [24, 12, 42];
/** Room for the numbers beside a plot, and for each line of the name beside them. */
const [NUMBERS, LINE] = [46, 14];
const LETTER = 6.4;
const [LOWEST, HIGHEST, FIRST_WIDTH] = [230, 420, 640];
const CATCH = 30;
const WINDOWS = 8;
// Told apart with any colour vision (Okabe and Ito), by their dashes and by their markers: 64 looks in all.
const METHODS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a6d3b", "#999999"];
const DASHES = ["none", "7 3", "2 2", "8 3 2 3"];
// Paths around 0 0: circle, square, triangle, diamond, triangle downwards, plus, cross, star.
const MARKERS = [
  "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
  "M-3 -3h6v6h-6z",
  "M0 -3.6L3.4 2.6H-3.4z",
  "M0 -4L4 0L0 4L-4 0z",
  "M0 3.6L3.4 -2.6H-3.4z",
  "M-1 -4h2v3h3v2h-3v3h-2v-3h-3v-2h3z",
  "M-3 -3L3 3M3 -3L-3 3",
  "M0 -4V4M-3.5 -2L3.5 2M3.5 -2L-3.5 2",
];
export const CAUSES = {
  gradient: "#009E73",
  all_right: "#56B4E9",
  all_wrong: "#D55E00",
  truncated: "#E69F00",
  unpooled: "#CC79A7",
  masked: "#999999",
  clipped: "#8a6d3b",
  other: "#F0E442",
};

/** Colour, dash and marker of a group of series: a cause, or the number of a method. */
export function lookOf(group) {
  if (CAUSES[group]) return { colour: CAUSES[group], dash: "none", marker: MARKERS[0] };
  const turn = group + Math.floor(group / METHODS.length);
  return {
    colour: METHODS[group % METHODS.length],
    dash: DASHES[turn % DASHES.length],
    marker: MARKERS[turn % MARKERS.length],
  };
}

/** A figure with its caption, legend and panels. */
export async function drawn(report, { title, caption, panels, y }) {
  const groups = new Map(panels.flatMap(({ series }) => series.map((one) => [one.label, one.group])));
  return h(
    "figure",
    h("figcaption", h("b", title), " ", caption),
    h("div.legend", [...groups].map(([label, group]) => key(group, label))),
    h(
      panels.length > 1 ? "div.panels" : "div.panels.alone",
      await Promise.all(panels.map((panel) => panelOf(report, panel, y || panel.title))),
    ),
  );
}

/** A line with its marker, and what it stands for. */
function key(group, label) {
  const { colour, dash, marker } = lookOf(group);
  const sample = h(
    "svg.key",
    { viewBox: "0 0 34 12", width: 34, height: 12, "aria-hidden": "true", stroke: colour },
    h("path.line", { d: "M1 6H33", "stroke-dasharray": dash }),
    h("path.marker", { d: marker, transform: "translate(17 6)", fill: colour }),
  );
  return h("span", sample, " ", label);
}

async function panelOf(report, panel, name) {
  const readout = h("p.soft.readout", { "aria-live": "polite" }, "\u00a0");
  const series = await Promise.all(panel.series.map((one) => resolved(report, one)));
  return h("div.panel", h("h4", panel.title), plot(panel, name, series, readout), readout);
}

/** The numbers of a series: those that it has, or running means of a run's scalar. */
async function resolved(report, one) {
  if (one.x) return one;
  const { iteration, [one.column]: values } = await report.runs[one.run].iterations();
  const kept = Array.from(iteration.keys()).filter((i) => Number.isFinite(values[i]));
  const raw = kept.map((i) => values[i]);
  return { ...one, name: report.runs[one.run].name, x: kept.map((i) => iteration[i]), raw, y: running(raw) };
}

/** Trailing means over an eighth of a series. */
function running(values) {
  const width = Math.max(Math.floor(values.length / WINDOWS), 1);
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i - width + 1), i + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

/** The plot, drawn anew at each width that it gets. */
function plot(panel, name, series, readout) {
  if (!series.some((one) => one.y.length)) return h("p.soft", "There are no numbers.");
  const label = `${panel.title}: ${name} against ${panel.x}; arrow keys read it`;
  const box = h("div.plot", { tabindex: 0, role: "img", "aria-label": label });
  let [points, width, chosen, mark] = [[], 0, null, null];

  function draw(to) {
    width = to;
    const made = picture(panel, name, series, width);
    ({ points, mark } = made);
    box.replaceChildren(made.svg);
    if (chosen) choose(points.find((point) => point.one === chosen.one && point.i === chosen.i));
  }

  function choose(point) {
    chosen = point;
    mark.setAttribute("visibility", point ? "visible" : "hidden");
    readout.replaceChildren(h("span", point ? told(panel, point) : "\u00a0"));
    if (!point) return;
    mark.setAttribute("cx", point.x);
    mark.setAttribute("cy", point.y);
  }

  box.addEventListener("pointermove", (event) => {
    const place = box.getBoundingClientRect();
    const scaled = width / place.width;
    choose(nearest(points, (event.clientX - place.left) * scaled, (event.clientY - place.top) * scaled));
  });
  box.addEventListener("click", () => open(panel, chosen));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter") open(panel, chosen);
    if (!step) return;
    event.preventDefault();
    choose(points[Math.min(Math.max(points.indexOf(chosen) + step, 0), points.length - 1)]);
  });
  draw(FIRST_WIDTH);
  new ResizeObserver(() => {
    const room = Math.round(box.clientWidth);
    if (room && room !== width) draw(room);
  }).observe(box);
  return box;
}

/** The drawing at a width in pixels, the places of its points, and the mark of the chosen one. */
function picture(panel, name, series, width) {
  const height = Math.round(Math.min(Math.max(0.5 * width, LOWEST), HIGHEST));
  const values = series.flatMap((one) => [one.y, one.low ?? [], one.high ?? []]).flat();
  const names = lines(name, (height - TOP - BOTTOM) / LETTER);
  const left = NUMBERS + LINE * names.length;
  const room = { log: panel.log, spacing: panel.log ? 40 : 60 };
  const x = scale(series.flatMap((one) => one.x), left + 8, width - RIGHT - 8, room);
  const y = scale(values, height - BOTTOM, TOP, { fromZero: panel.from_zero, margin: 0.06, spacing: 45 });
  const points = series.flatMap((one, index) => {
    const aside = one.low ? 3 * (index - (series.length - 1) / 2) : 0; // so that bars stay apart
    return one.x.map((at, i) => ({ one, i, x: x.at(at) + aside, y: y.at(one.y[i]) }));
  });
  const mark = h("circle.mark", { r: 5, visibility: "hidden" });
  const middle = (TOP + height - BOTTOM) / 2;
  const svg = h(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    y.ticks.map((tick) => [
      h(tick ? "line.grid" : "line.zero", { x1: left, x2: width - RIGHT, y1: y.at(tick), y2: y.at(tick) }),
      h("text", { x: left - 6, y: y.at(tick) + 4, "text-anchor": "end" }, number(tick)),
    ]),
    x.ticks.map((tick) => h("text", { x: x.at(tick), y: height - 24, "text-anchor": "middle" }, number(tick))),
    h("text.axis", { x: (left + width - RIGHT) / 2, y: height - 6, "text-anchor": "middle" }, panel.x),
    names.map((line, i) => {
      const transform = `translate(${12 + LINE * i} ${middle}) rotate(-90)`;
      return h("text.axis.upright", { transform, "text-anchor": "middle" }, line);
    }),
    series.map((one) => marks(one, points.filter((point) => point.one === one), y)),
    mark,
  );
  return { svg, points, mark };
}

/** An axis name in lines of at most so many letters, broken between words. */
function lines(name, letters) {
  const found = [""];
  for (const word of name.split(" ")) {
    const longer = found.at(-1) ? `${found.at(-1)} ${word}` : word;
    if (longer.length <= letters || !found.at(-1)) found[found.length - 1] = longer;
    else found.push(word);
  }
  return found;
}

/** Where values are between two places (`at`), and the values that an axis names (`ticks`). */
function scale(values, start, end, { log, fromZero, margin = 0, spacing }) {
  let low = values.reduce((least, value) => Math.min(least, value), Infinity);
  let high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  if (margin) {
    const room = margin * (high - low) || 0.5 * Math.abs(high) || 1;
    [low, high] = [fromZero && low >= 0 ? 0 : low - room, high + room];
  }
  const bend = log ? Math.log : Number;
  const [first, length] = [bend(low), bend(high) - bend(low)];
  const at = (value) => start + (length ? (bend(value) - first) / length : 0.5) * (end - start);
  const most = Math.max(Math.floor(Math.abs(end - start) / spacing), 2);
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  const every = Math.ceil(distinct.length / most);
  return { at, ticks: log ? distinct.filter((_, i) => i % every === 0) : steps(low, high, most) };
}

function steps(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step + 0);
}

/** The line, the intervals and the points of a series. */
function marks(one, points, y) {
  const { colour, dash, marker } = lookOf(one.group);
  const place = ({ x, y: height }) => `${x.toFixed(1)} ${height.toFixed(1)}`;
  const line = points.map((point, i) => (i ? "L" : "M") + place(point)).join("");
  const bars = points.map((point) => `M${point.x.toFixed(1)} ${y.at(one.low?.[point.i])}V${y.at(one.high?.[point.i])}`);
  const every = one.low ? 1 : Math.max(Math.floor(points.length / WINDOWS), 1);
  const shown = points.filter((_, i) => i % every === every - 1);
  return h(
    "g.series",
    { stroke: colour },
    one.low && h("path", { d: bars.join("") }),
    h("path.line", { d: line, "stroke-dasharray": dash }),
    shown.map((point) => h("path.marker", { d: marker, transform: `translate(${place(point)})`, fill: colour })),
  );
}

/** The point nearest to a place, if it is near. */
function nearest(points, x, y) {
  const distance = (point) => (point.x - x) ** 2 + 0.25 * (point.y - y) ** 2;
  const best = points.reduce((one, other) => (one && distance(one) <= distance(other) ? one : other), null);
  return best && distance(best) < CATCH ** 2 ? best : null;
}

function told(panel, { one, i }) {
  const range = one.low ? ` [${number(one.low[i])}, ${number(one.high[i])}]` : "";
  return `${one.name ?? one.label}: ${panel.x} ${number(one.x[i])}, ${number((one.raw ?? one.y)[i], 4)}${range}`;
}

/** Go to the iteration that a point stands for. */
function open(panel, point) {
  if (point?.one.run !== undefined && panel.x === "iteration") {
    go({ run: point.one.run, iteration: point.one.x[point.i] });
  }
}
