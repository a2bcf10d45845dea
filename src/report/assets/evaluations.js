// The evaluations of a run: a split's questions over the iterations at which they were sampled.

import { choice, h, number, percent, table, visible } from "report/dom";
import { ofShare } from "report/colours";
import { shareLegend } from "report/explorer";
import { heatMap } from "report/heatmap";
import { go } from "report/router";

/** Show the split of `place`; returns what keys do. */
export async function showEvaluation(main, run, { evaluation, question }) {
  const split = Number(evaluation) || 0;
  const found = await run.evaluation(split);
  const rows = rowsOf(found);
  const columns = found.columns.map(([iteration, stage]) =>
    stage === "test" ? `${iteration} (test)` : String(iteration),
  );
  const share = (cell) => found.correct[cell] / found.samples[cell];
  const map = heatMap({
    colour: (cell) => ofShare(share(cell)),
    title: (row, column, cell) =>
      h(
        "div",
        {},
        h("b", {}, visible(row.label)),
        h("br"),
        `iteration ${column}: ${found.correct[cell]} of `,
        `${found.samples[cell]} correct, ${found.distinct_wrong[cell]} different wrong answers`,
      ),
    open: (cell) => go({ run: run.number, evaluation: split, question: found.question[cell] }),
  });
  const ks = Object.keys(found.pass_at_k[0] ?? {});
  const points = (curve) => ks.map((k) => (curve[k] ? `${percent(curve[k].value)}` : "–"));
  const order = (by) =>
    map.update({ columns, rows: by === "share" ? [...rows].sort((a, b) => last(a, share) - last(b, share)) : rows });
  main.append(
    h(
      "div",
      { class: "bar" },
      choice(
        "Split",
        run.about.splits.map((name, i) => [String(i), name]),
        String(split),
        (value) => go({ run: run.number, evaluation: Number(value) }),
      ),
      choice(
        "Sort",
        [
          ["given", "as given"],
          ["share", "share correct at the end"],
        ],
        "given",
        order,
      ),
    ),
    table(
      ["iteration", ...ks.map((k) => `pass@${k}`)],
      columns.map((label, i) => [label, ...points(found.pass_at_k[i])]),
    ),
    question === undefined ? null : questionTable(found, rows[question], columns),
    h("div", { class: "legend" }, shareLegend()),
    map.element,
    h("p", { class: "soft" }, "Evaluations keep counts, not responses."),
  );
  order("given");
  map.element.focus({ preventScroll: true });
  return { ...map.keys, Escape: () => go({ run: run.number, evaluation: split }) };
}

function rowsOf(found) {
  const rows = found.questions.map((label) => ({ label, cells: new Map() }));
  found.column.forEach((column, cell) => rows[found.question[cell]].cells.set(column, cell));
  return rows;
}

const last = (row, share) => share([...row.cells.values()].at(-1));

function questionTable(found, row, columns) {
  const numbers = [...row.cells].map(([column, cell]) => [
    columns[column],
    number(found.samples[cell]),
    number(found.correct[cell]),
    percent(found.correct[cell] / found.samples[cell]),
    number(found.distinct_wrong[cell]),
  ]);
  return h(
    "section",
    { class: "detail" },
    h("h3", {}, visible(row.label)),
    table(["iteration", "samples", "correct", "share", "different wrong answers"], numbers),
  );
}
