// Figures: lines, points with intervals and stacks, each point a way to what it stands for.

import { choice, h, number, visible } from "report/dom";
import { CAUSES, METHODS, themed } from "report/colours";
import { go } from "report/router";

const WINDOWS = 8;
const CATCH = 30;
let smooth = true;

/** All figures; `redraw` draws them again in the colours of the theme. */
export function figures(report) {
  const box = h("div", { id: "figures" });
  const draw = () => {
    box.replaceChildren(
      h("label", { class: "choice" }, h("input", { type: "checkbox", checked: smooth, onchange: (event) => { smooth = event.target.checked; draw(); } }),
        " running means over an eighth of training"),
      ...report.figures.map((figure) => drawn(report, figure)), anyScalar(report));
  };
  draw();
  return { element: box, redraw: draw };
}

function drawn(report, { title, caption, panels }) {
  const methods = [...new Map(panels.flatMap(({ series }) => series.map((s) => [s.label, s.group]))).entries()];
  return h("figure", {}, h("figcaption", {}, h("b", {}, visible(title)), " ", visible(caption)),
    h("div", { class: "legend" }, methods.map(([label, group]) => swatch(colourOf(group), label))),
    h("div", { class: "panels" }, panels.map((panel) => panelOf(report, panel))));
}

function swatch(colour, label) {
  const mark = h("span", { class: "swatch" });
  mark.style.backgroundColor = colour;
  return h("span", {}, mark, visible(label));
}

const colourOf = (group) => CAUSES[group] ?? METHODS[group % METHODS.length];

/** A chooser of everything that was logged. */
function anyScalar(report) {
  const names = [...new Set(report.runs.flatMap((run) => run.about.scalars))].sort();
  if (!names.length) return null;
  const place = h("div", {});
  const show = (name) => {
    const series = report.runs.filter((run) => run.about.scalars.includes(name))
      .map((run) => ({ label: run.name, group: run.about.group, run: run.number, column: name }));
    place.replaceChildren(drawn(report, { title: name, caption: "", panels: [{ title: "", x: "iteration", y: name, series }] }));
  };
  show(names.includes("rollout/reward") ? "rollout/reward" : names[0]);
  return h("section", { id: "scalars" }, h("h2", {}, "Everything that was logged"),
    choice("Scalar", names.map((name) => [name, name]), "rollout/reward", show), place);
}

/** One panel; it is drawn when it has come into view. */
function panelOf(report, panel) {
  const place = h("div", { class: "plot", tabindex: 0, "aria-label": panel.title });
  const box = h("div", { class: "panel" }, h("h4", {}, visible(panel.title)), place, h("p", { class: "soft readout" }, panel.x));
  new IntersectionObserver(async ([entry], observer) => {
    if (!entry.isIntersecting) return;
    observer.disconnect();
    plot(report, panel, await resolved(report, panel), place, box.lastChild);
  }, { rootMargin: "300px" }).observe(place);
  return box;
}

/** The numbers of every series: those of the figure, or a scalar of a run. */
async function resolved(report, panel) {
  const found = await Promise.all(panel.series.map(async (series) => {
    if (!series.column) return series;
    const { iteration, [series.column]: values } = await report.runs[series.run].iterations();
    const kept = Array.from(iteration.keys()).filter((i) => !Number.isNaN(values[i]));
    return { ...series, x: kept.map((i) => iteration[i]), y: kept.map((i) => values[i]) };
  }));
  return panel.stacked ? stacked(found) : found;
}

function stacked(series) {
  const below = new Map();
  return series.map((one) => {
    const y = shown(one).map((value, i) => { below.set(one.x[i], (below.get(one.x[i]) ?? 0) + value); return below.get(one.x[i]); });
    return { ...one, y, smoothed: true };
  }).reverse();
}

/** Trailing means over an eighth of a series. */
export function running(values) {
  const width = Math.max(Math.floor(values.length / WINDOWS), 1);
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i - width + 1), i + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

const shown = (series) => (smooth && series.column && !series.smoothed ? running(series.y) : series.y);

function plot(report, panel, series, place, readout) {
  const xs = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, i) => [x, i]));
  const spreadOut = (one, values) => { const line = new Array(xs.length).fill(null); one.x.forEach((x, i) => { line[at.get(x)] = values[i]; }); return line; };
  const points = panel.points === true;
  const axis = { stroke: themed("soft"), grid: { stroke: themed("line"), width: 1 }, ticks: { stroke: themed("line") }, font: "11px system-ui" };
  let near = null;
  const options = {
    width: Math.max(place.clientWidth, 260), height: 230, legend: { show: false },
    scales: { x: { time: false, distr: panel.log ? 3 : 1, log: panel.log === 2 ? 2 : 10 }, y: { range: panel.from_zero ? (_, low, high) => [0, Math.max(high * 1.05, 1e-9)] : undefined } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
    cursor: { drag: { x: true, y: false }, points: { size: 7 } },
    series: [{}, ...series.map((one) => ({
      stroke: points ? undefined : colourOf(one.group), width: one.thin ? 1 : 1.8, spanGaps: true,
      fill: panel.stacked ? colourOf(one.group) : undefined,
      points: { show: points || Boolean(one.low), size: 6, stroke: colourOf(one.group), fill: colourOf(one.group) },
      paths: points ? () => null : undefined,
    }))],
    hooks: {
      draw: [(chart) => series.forEach((one) => intervals(chart, one))],
      setCursor: [(chart) => { near = nearest(chart, series, at, xs); readout.textContent = near ? told(panel, near) : panel.x; chart.over.style.cursor = near ? "pointer" : "crosshair"; }],
    },
  };
  const chart = new uPlot(options, [xs, ...series.map((one) => spreadOut(one, shown(one)))], place);
  chart.over.addEventListener("click", () => { if (near) open(report, near); });
  place.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && near) open(report, near);
    if (!step) return;
    event.stopPropagation();
    event.preventDefault();
    const index = Math.min(Math.max((chart.cursor.idx ?? -1) + step, 0), xs.length - 1);
    chart.setCursor({ left: chart.valToPos(xs[index], "x"), top: chart.over.clientHeight / 2 });
    near ??= { one: series[0], index: series[0].x.indexOf(xs[index]) };
  });
}

function intervals(chart, one) {
  if (!one.low) return;
  const pen = chart.ctx;
  pen.save();
  pen.strokeStyle = colourOf(one.group);
  pen.lineWidth = devicePixelRatio;
  one.x.forEach((x, i) => {
    const place = chart.valToPos(x, "x", true);
    pen.beginPath();
    pen.moveTo(place, chart.valToPos(one.low[i], "y", true));
    pen.lineTo(place, chart.valToPos(one.high[i], "y", true));
    pen.stroke();
  });
  pen.restore();
}

/** The point nearest to the mouse, if it is near: its series and its index there. */
function nearest(chart, series, at, xs) {
  const { left, top } = chart.cursor;
  if (left === undefined || left < 0) return null;
  let best = null, least = CATCH ** 2;
  series.forEach((one) => shown(one).forEach((y, index) => {
    const distance = (chart.valToPos(one.x[index], "x") - left) ** 2 + 0.25 * (chart.valToPos(y, "y") - top) ** 2;
    if (distance < least) { least = distance; best = { one, index }; }
  }));
  return best;
}

function told(panel, { one, index }) {
  const range = one.low ? ` [${number(one.low[index])}, ${number(one.high[index])}]` : "";
  return `${one.label}: ${panel.x} ${number(one.x[index])}, ${number(one.y[index], 4)}${range}`;
}

/** Go to what a point stands for: a question, an iteration, or an evaluation. */
function open(report, { one, index }) {
  if (one.questions) go({ run: one.run, iteration: one.x[index], questionid: one.questions[index] });
  else if (one.evaluation !== undefined) go({ run: one.run, evaluation: report.runs[one.run].about.splits.indexOf(one.evaluation) });
  else if (one.column) go({ run: one.run, iteration: one.x[index] });
}
