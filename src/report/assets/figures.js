// The figures of the overview, and any scalar that was logged.

import { choice, h, swatch, visible } from "report/dom";
import { colourOf } from "report/colours";
import { plot } from "report/plot";

const WINDOWS = 8;
let smooth = true;

/** All figures; `redraw` draws them again in the colours of the theme. */
export function figures(report) {
  const box = h("div", { id: "figures" });
  const draw = () => {
    box.replaceChildren(
      h(
        "label",
        { class: "choice" },
        h("input", {
          type: "checkbox",
          checked: smooth,
          onchange: (event) => {
            smooth = event.target.checked;
            draw();
          },
        }),
        " running means over an eighth of training",
      ),
      ...report.figures.map((figure) => drawn(report, figure)),
      anyScalar(report),
    );
  };
  draw();
  return { element: box, redraw: draw };
}

function drawn(report, { title, caption, panels }) {
  const methods = [...new Map(panels.flatMap(({ series }) => series.map((s) => [s.label, s.group]))).entries()];
  return h(
    "figure",
    {},
    h("figcaption", {}, h("b", {}, visible(title)), " ", visible(caption)),
    h(
      "div",
      { class: "legend" },
      methods.map(([label, group]) => swatch(colourOf(group), label)),
    ),
    h(
      "div",
      { class: "panels" },
      panels.map((panel) => panelOf(report, panel)),
    ),
  );
}

/** A chooser of everything that was logged. */
function anyScalar(report) {
  const names = [...new Set(report.runs.flatMap((run) => run.about.scalars))].sort();
  if (!names.length) return null;
  const place = h("div", {});
  const show = (name) => {
    const series = report.runs
      .filter((run) => run.about.scalars.includes(name))
      .map((run) => ({ label: run.name, group: run.about.group, run: run.number, column: name }));
    place.replaceChildren(
      drawn(report, { title: name, caption: "", panels: [{ title: "", x: "iteration", y: name, series }] }),
    );
  };
  show(names.includes("rollout/reward") ? "rollout/reward" : names[0]);
  return h(
    "section",
    { id: "scalars" },
    h("h2", {}, "Everything that was logged"),
    choice(
      "Scalar",
      names.map((name) => [name, name]),
      "rollout/reward",
      show,
    ),
    place,
  );
}

/** One panel; it is drawn when it has come into view. */
function panelOf(report, panel) {
  const place = h("div", { class: "plot", tabindex: 0, "aria-label": panel.title });
  const box = h(
    "div",
    { class: "panel" },
    h("h4", {}, visible(panel.title)),
    place,
    h("p", { class: "soft readout" }, panel.x),
  );
  new IntersectionObserver(
    async ([entry], observer) => {
      if (!entry.isIntersecting) return;
      observer.disconnect();
      plot(report, panel, await resolved(report, panel), place, box.lastChild);
    },
    { rootMargin: "300px" },
  ).observe(place);
  return box;
}

/** The numbers of every series: those of the figure, or a scalar of a run, as running means where that is asked for. */
async function resolved(report, panel) {
  const found = await Promise.all(
    panel.series.map(async (series) => {
      if (!series.column) return series;
      const { iteration, [series.column]: values } = await report.runs[series.run].iterations();
      const kept = Array.from(iteration.keys()).filter((i) => !Number.isNaN(values[i]));
      const raw = kept.map((i) => values[i]);
      return { ...series, x: kept.map((i) => iteration[i]), raw, y: smooth ? running(raw) : raw };
    }),
  );
  return panel.stacked ? stacked(found) : found;
}

/** Each series on top of those before it, the highest first, so that it is drawn behind the others. */
function stacked(series) {
  const below = new Map();
  const sums = series.map((one) => ({
    ...one,
    y: one.y.map((value, i) => {
      below.set(one.x[i], (below.get(one.x[i]) ?? 0) + value);
      return below.get(one.x[i]);
    }),
  }));
  return sums.reverse();
}

/** Trailing means over an eighth of a series. */
function running(values) {
  const width = Math.max(Math.floor(values.length / WINDOWS), 1);
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i - width + 1), i + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}
