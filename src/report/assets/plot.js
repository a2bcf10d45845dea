// Figures as SVG: lines, and points with intervals. Every point tells its numbers.

import { h, number, swatch } from "report/dom";
import { go } from "report/router";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [360, 230, 46, 10, 10, 24];
const CATCH = 30;
const WINDOWS = 8;
// Told apart with any colour vision (Okabe and Ito), and by their dashes in print.
const METHODS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a6d3b", "#999999"];
const DASHES = ["none", "7 3", "2 2", "8 3 2 3"];
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

/** The colour of a group of series: a cause, or the number of a method. */
export const colourOf = (group) => CAUSES[group] ?? METHODS[group % METHODS.length];

/** A figure with its caption, legend and panels. */
export async function drawn(report, { title, caption, panels }) {
  const groups = new Map(panels.flatMap(({ series }) => series.map((one) => [one.label, one.group])));
  return h(
    "figure",
    h("figcaption", h("b", title), " ", caption),
    h("div.legend", [...groups].map(([label, group]) => swatch(colourOf(group), label))),
    h("div.panels", await Promise.all(panels.map((panel) => panelOf(report, panel)))),
  );
}

async function panelOf(report, panel) {
  const readout = h("p.soft.readout", { "aria-live": "polite" }, panel.x);
  const series = await Promise.all(panel.series.map((one) => resolved(report, one)));
  return h("div.panel", h("h4", panel.title), plot(panel, series, readout), readout);
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

function plot(panel, series, readout) {
  const values = series.flatMap((one) => [one.y, one.low ?? [], one.high ?? []]).flat();
  if (!values.length) return h("p.soft", "There are no numbers.");
  const x = scale(series.flatMap((one) => one.x), LEFT + 8, WIDTH - RIGHT - 8, { log: panel.log });
  const y = scale(values, HEIGHT - BOTTOM, TOP, { fromZero: panel.from_zero, margin: 0.06 });
  const points = series.flatMap((one, index) => {
    const aside = one.low ? 3 * (index - (series.length - 1) / 2) : 0; // so that bars stay apart
    return one.x.map((at, i) => ({ one, i, x: x.at(at) + aside, y: y.at(one.y[i]) }));
  });
  const mark = h("circle.mark", { r: 5, visibility: "hidden" });
  const svg = h(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img", "aria-label": `${panel.title}; arrow keys read it` },
    y.ticks.map((tick) => [
      h(tick ? "line.grid" : "line.zero", { x1: LEFT, x2: WIDTH - RIGHT, y1: y.at(tick), y2: y.at(tick) }),
      h("text", { x: LEFT - 5, y: y.at(tick) + 4, "text-anchor": "end" }, number(tick)),
    ]),
    x.ticks.map((tick) => h("text", { x: x.at(tick), y: HEIGHT - 6, "text-anchor": "middle" }, number(tick))),
    series.map((one) => marks(one, points.filter((point) => point.one === one), y)),
    mark,
  );
  let chosen = null;

  function choose(point) {
    chosen = point;
    mark.setAttribute("visibility", point ? "visible" : "hidden");
    readout.replaceChildren(h("span", point ? told(panel, point) : panel.x));
    if (!point) return;
    mark.setAttribute("cx", point.x);
    mark.setAttribute("cy", point.y);
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scaled = WIDTH / box.width;
    choose(nearest(points, (event.clientX - box.left) * scaled, (event.clientY - box.top) * scaled));
  });
  svg.addEventListener("click", () => open(panel, chosen));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter") open(panel, chosen);
    if (!step) return;
    event.preventDefault();
    choose(points[Math.min(Math.max(points.indexOf(chosen) + step, 0), points.length - 1)]);
  });
  return svg;
}

/** Where values are between two places (`at`), and the values that an axis names (`ticks`). */
function scale(values, start, end, { log, fromZero, margin = 0 }) {
  let low = values.reduce((least, value) => Math.min(least, value), Infinity);
  let high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  if (margin) {
    const room = margin * (high - low) || 0.5 * Math.abs(high) || 1;
    [low, high] = [fromZero && low >= 0 ? 0 : low - room, high + room];
  }
  const bend = log ? Math.log : Number;
  const [first, length] = [bend(low), bend(high) - bend(low)];
  const at = (value) => start + (length ? (bend(value) - first) / length : 0.5) * (end - start);
  const distinct = [...new Set(values)];
  const every = Math.ceil(distinct.length / 8);
  return { at, ticks: log ? distinct.filter((_, i) => i % every === 0) : steps(low, high) };
}

function steps(low, high) {
  if (!(high > low)) return [low];
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step + 0);
}

/** The line, the intervals and the points of a series. */
function marks(one, points, y) {
  const [colour, place] = [colourOf(one.group), ({ x, y: height }) => `${x.toFixed(1)} ${height.toFixed(1)}`];
  const line = points.map((point, i) => (i ? "L" : "M") + place(point)).join("");
  const bars = points.map((point) => `M${point.x.toFixed(1)} ${y.at(one.low?.[point.i])}V${y.at(one.high?.[point.i])}`);
  const dash = Number.isInteger(one.group) ? DASHES[one.group % DASHES.length] : "none";
  return h(
    "g.series",
    { stroke: colour },
    one.low && h("path", { d: bars.join("") }),
    h("path.line", { d: line, "stroke-dasharray": dash }),
    one.low && h("path.dots", { d: points.map((point) => `M${place(point)}h0`).join("") }),
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
