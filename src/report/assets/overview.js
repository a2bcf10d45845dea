// The first page: the runs, what they have in common and what not, and the figures.

import { h, number, table, visible } from "report/dom";
import { figures } from "report/figures";

/** Show everything that is about more than one response. */
export function showOverview(main, report) {
  const drawn = figures(report);
  main.append(
    h("h1", {}, visible(report.title)),
    runs(report),
    ...report.tables.map(section),
    h("h2", {}, "Figures"),
    h(
      "p",
      { class: "soft" },
      "A click on a point opens what it stands for; dragging enlarges, a double click goes back.",
    ),
    drawn.element,
    repeat(report),
  );
  return { theme: drawn.redraw };
}

function runs(report) {
  const rows = report.runs.map((run) => [
    h("a", { href: `#/run/${run.number}` }, visible(run.name)),
    number(run.about.ledger.iterations),
    number(run.about.responses),
    run.about.kept < run.about.responses ? number(run.about.kept) : "all",
    run.about.splits
      .map((name, i) => [i ? ", " : "", h("a", { href: `#/run/${run.number}/evaluation/${i}` }, visible(name))])
      .flat(),
    visible(run.about.path),
  ]);
  const lines = rows.map((row) => row.map((cell) => (Array.isArray(cell) ? h("span", {}, cell) : cell)));
  return h(
    "section",
    {},
    h("h2", {}, "Runs"),
    table(["run", "iterations", "responses", "of these with tokens in this page", "evaluated on", "directory"], lines, {
      class: "left",
      id: "runs",
    }),
  );
}

function section({ title, notes, header, rows }) {
  return h(
    "section",
    {},
    h("h2", {}, visible(title)),
    rows.length
      ? table(
          header,
          rows.map((row) => row.map(marked)),
          {},
        )
      : null,
    notes.map((note) => h("p", { class: "soft" }, visible(note))),
  );
}

/** A cell of a table; differences beyond noise, which begin with an arrow, stand out. */
function marked(cell) {
  const change = { "▲": "up", "▼": "down" }[cell[0]];
  return change ? h("span", { class: change }, visible(cell)) : h("span", {}, visible(cell));
}

function repeat(report) {
  const commands = report.runs.map((run) => run.about.command).filter(Boolean);
  return commands.length
    ? h(
        "section",
        {},
        h("h2", {}, "To repeat a run"),
        commands.map((command) => h("pre", {}, visible(command))),
      )
    : null;
}
