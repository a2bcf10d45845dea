// Questions × iterations of a run, and the questions of one iteration.

import { controls, h, number, percent, swatch, table } from "report/dom";
import { heatMap, ofShare } from "report/heatmap";
import { CAUSES } from "report/plot";
import { address, go } from "report/router";

const COLOURS = { share: "share correct", cause: "cause of a missing gradient" };
const ORDERS = { seen: "first seen", share: "share correct" };
const COLUMNS = { iteration: "iterations", visit: "visits (first, second, …)" };
const state = { colour: "share", order: "seen", column: "iteration", cause: "", filter: "" };

const named = (cause) => (cause === "gradient" ? "gives a gradient" : cause.replaceAll("_", " "));

/** What a cause means for the question, in words. */
export const causeOf = (cause) => (cause === "gradient" ? named(cause) : `no gradient: ${named(cause)}`);

/** Show the heat map. */
export async function showExplorer(main, run) {
  const recorded = await run.recorded();
  const { cells, names } = recorded;
  const questions = names.question.map((label) => ({ label, members: [] }));
  cells.question.forEach((question, cell) => questions[question].members.push(cell));
  const map = heatMap({
    colour: (cell) => (state.colour === "share" ? ofShare(recorded.share(cell)) : CAUSES[cells.cause[cell]]),
    told: (row, cell) =>
      `${row.label}, iteration ${cells.column[cell]}: ${cells.correct[cell]} of ${cells.samples[cell]} correct, ` +
      causeOf(cells.cause[cell]),
    open: (cell) => go({ run: run.number, iteration: cells.column[cell], question: cells.question[cell] }),
  });
  const status = h("span.soft", { role: "status" });
  const legend = h("div.legend");

  function update() {
    const rows = questions.filter(({ label, members }) => {
      const text = `${label}\n${recorded.prompt(members[0])}`.toLowerCase();
      const caused = !state.cause || members.some((cell) => cells.cause[cell] === state.cause);
      return caused && text.includes(state.filter.toLowerCase());
    });
    const mean = ({ members }) => members.reduce((sum, cell) => sum + recorded.share(cell), 0) / members.length;
    if (state.order === "share") rows.sort((a, b) => mean(a) - mean(b));
    map.update(spread(cells, rows));
    status.textContent = `${number(rows.length)} of ${number(questions.length)} questions`;
    const shares = [0, 0.25, 0.5, 0.75, 1].map((share) => swatch(ofShare(share), percent(share)));
    const causes = Object.entries(CAUSES).map(([cause, colour]) => swatch(colour, named(cause)));
    legend.replaceChildren(...(state.colour === "share" ? shares : causes));
  }

  const causes = Object.keys(CAUSES).map((cause) => [cause, named(cause)]);
  const choices = [
    ["Colour", "colour", COLOURS],
    ["Sort", "order", ORDERS],
    ["Columns", "column", COLUMNS],
    ["Only", "cause", Object.fromEntries([["", "all questions"], ...causes])],
  ];
  main.append(controls(state, "question or prompt", choices, update, status), legend, map.element);
  update();
  map.focus();
}

/** Rows and columns of the heat map: iterations, or how often a question had been seen. */
function spread(cells, rows) {
  const visits = state.column === "visit";
  const iterations = [...new Set(cells.column)].sort((a, b) => a - b);
  const places = new Map(iterations.map((iteration, i) => [iteration, i]));
  const column = (cell, i) => (visits ? i : places.get(cells.column[cell]));
  const placed = ({ members }) => new Map(members.map((cell, i) => [column(cell, i), cell]));
  const longest = rows.reduce((most, { members }) => Math.max(most, members.length), 0);
  return {
    columns: visits ? Array.from({ length: longest }, (_, i) => String(i + 1)) : iterations.map(String),
    rows: rows.map((row) => ({ label: row.label, cells: placed(row) })),
  };
}

/** Show the questions of one iteration. */
export async function showIteration(main, run, iteration) {
  const recorded = await run.recorded();
  const { cells, names } = recorded;
  const { iteration: numbers } = await run.iterations();
  const rows = recorded.cellsOf("column", iteration).map((cell) => {
    const question = cells.question[cell];
    return [
      h("a", { href: address({ run: run.number, iteration, question }) }, names.question[question]),
      `${cells.correct[cell]} of ${cells.samples[cell]}`,
      causeOf(cells.cause[cell]),
      h("span.cut", { dir: "auto" }, recorded.prompt(cell).slice(0, 300)),
    ];
  });
  const near = (by, name) => {
    const next = numbers[numbers.indexOf(iteration) + by];
    return next !== undefined && h("a", { href: address({ run: run.number, iteration: next }) }, name);
  };
  main.append(
    h("h2", `Iteration ${iteration}`),
    h("div.bar", near(-1, "← previous"), near(1, "next →")),
    rows.length
      ? table(["question", "correct", "gradient", "prompt"], rows, { class: "left", id: "questions" })
      : h("p", "No responses were recorded in this iteration."),
  );
}
