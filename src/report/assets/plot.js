// One panel of a figure: lines, points with intervals or a stack, each point a way to what it stands for.

import { number } from "report/dom";
import { colourOf, themed } from "report/colours";
import { go } from "report/router";

const CATCH = 30;

/**
 * Draw a panel into `place`; `readout` says what the mouse points at.
 *
 * A series has numbers `x` and `y`, perhaps intervals `low` and `high`, and `raw` values where `y` are means of them.
 */
export function plot(report, panel, series, place, readout) {
  const xs = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, i) => [x, i]));
  const spreadOut = (one, values) => {
    const line = new Array(xs.length).fill(null);
    one.x.forEach((x, i) => {
      line[at.get(x)] = values[i];
    });
    return line;
  };
  const points = panel.points === true;
  const axis = {
    stroke: themed("soft"),
    grid: { stroke: themed("line"), width: 1 },
    ticks: { stroke: themed("line") },
    font: "11px system-ui",
  };
  let near = null;
  const options = {
    width: Math.max(place.clientWidth, 260),
    height: 230,
    legend: { show: false },
    scales: { x: xScale(panel, xs), y: { range: () => extent(series, panel.from_zero) } },
    axes: [
      { ...axis, size: 34, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
    ],
    cursor: { drag: { x: true, y: false }, points: { size: 7 } },
    series: [
      {},
      ...series.map((one) => ({
        stroke: points ? undefined : colourOf(one.group),
        width: 1.8,
        spanGaps: true,
        fill: panel.stacked ? colourOf(one.group) : undefined,
        points: { show: !points && Boolean(one.low), size: 6, stroke: colourOf(one.group), fill: colourOf(one.group) },
        paths: points ? () => null : undefined,
      })),
    ],
    hooks: {
      draw: [
        (chart) =>
          series.forEach((one) => {
            intervals(chart, one);
            if (points) dots(chart, one);
          }),
      ],
      setCursor: [
        (chart) => {
          near = nearest(chart, series);
          readout.textContent = near ? told(panel, near) : panel.x;
          chart.over.style.cursor = near ? "pointer" : "crosshair";
        },
      ],
    },
  };
  const chart = new uPlot(options, [xs, ...series.map((one) => spreadOut(one, one.y))], place);
  chart.over.addEventListener("click", () => {
    if (near) open(report, near);
  });
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

/** The horizontal scale; points get room at both ends. */
function xScale({ log, points }, xs) {
  const margin = points ? 0.04 * (xs.at(-1) - xs[0] || 1) : 0;
  return {
    time: false,
    distr: log ? 3 : 1,
    log: log === 2 ? 2 : 10,
    range: points ? (_, low, high) => [low - margin, high + margin] : undefined,
  };
}

/** The ends of the vertical scale: all values and intervals of a panel, and a little room. */
function extent(series, fromZero) {
  const values = series.flatMap((one) => [one.y, one.low ?? [], one.high ?? []]).flat();
  const [low, high] = values.reduce(
    ([least, most], value) => [Math.min(least, value), Math.max(most, value)],
    [Infinity, -Infinity],
  );
  const margin = 0.06 * (high - low) || 0.5 * Math.abs(high) || 1;
  return [fromZero && low >= 0 ? 0 : low - margin, high + margin];
}

/** All points of a series, of which several may have the same place on the horizontal axis. */
function dots(chart, one) {
  const pen = chart.ctx;
  pen.fillStyle = colourOf(one.group);
  one.x.forEach((x, i) => {
    pen.beginPath();
    pen.arc(chart.valToPos(x, "x", true), chart.valToPos(one.y[i], "y", true), 3 * devicePixelRatio, 0, 2 * Math.PI);
    pen.fill();
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
function nearest(chart, series) {
  const { left, top } = chart.cursor;
  if (left === undefined || left < 0) return null;
  let best = null,
    least = CATCH ** 2;
  series.forEach((one) =>
    one.y.forEach((y, index) => {
      const distance = (chart.valToPos(one.x[index], "x") - left) ** 2 + 0.25 * (chart.valToPos(y, "y") - top) ** 2;
      if (distance < least) {
        least = distance;
        best = { one, index };
      }
    }),
  );
  return best;
}

function told(panel, { one, index }) {
  const range = one.low ? ` [${number(one.low[index])}, ${number(one.high[index])}]` : "";
  return `${one.label}: ${panel.x} ${number(one.x[index])}, ${number((one.raw ?? one.y)[index], 4)}${range}`;
}

/** Go to what a point stands for: a question, an iteration, or an evaluation. */
function open(report, { one, index }) {
  if (one.questions) go({ run: one.run, iteration: one.x[index], questionid: one.questions[index] });
  else if (one.evaluation !== undefined)
    go({ run: one.run, evaluation: report.runs[one.run].about.splits.indexOf(one.evaluation) });
  else if (one.column) go({ run: one.run, iteration: one.x[index] });
}
