// The first page: the answer, then runs, tables and figures.

import { choice, h, number, table } from "report/dom";
import { drawn } from "report/plot";

/** Sentences of the answer that are shown at once. */
const MOST = 5;

/** Show everything that is about more than one response. */
export async function showOverview(main, report) {
  const { sentences, note, figure } = report.answer;
  const lines = sentences.map((sentence) => h("li", marked(sentence)));
  const said = [h("ul", lines.slice(0, MOST))];
  const more = lines.slice(MOST);
  if (more.length) said.push(h("details", h("summary", `${more.length} more`), h("ul", more)));
  const picture = figure && (await drawn(report, figure));
  main.append(
    h("h1", report.title),
    h("section.lead", h("div", said, h("p.soft", note)), picture),
    runs(report),
    ...report.tables.map(section),
    h("section", h("h2", "Figures"), h("p.soft", "Arrow keys read a figure; points of training open their iteration.")),
    ...(await Promise.all(report.figures.map((one) => drawn(report, one)))),
    await anyScalar(report),
  );
}

function runs(report) {
  const rows = report.runs.map(({ about, name, number: at }) => [
    h("a", { href: `#/run/${at}` }, name),
    number(about.iterations),
    number(about.responses),
    about.kept < about.responses ? number(about.kept) : "all",
    about.splits.join(", "),
    about.path,
  ]);
  const header = ["run", "iterations", "responses", "of these with tokens here", "evaluated on", "directory"];
  return h("section", h("h2", "Runs"), table(header, rows, { class: "left" }));
}

function section({ title, notes, header, rows }) {
  const cells = rows.map((row) => row.map(marked));
  return h("section", h("h2", title), rows.length > 0 && table(header, cells), notes.map((note) => h("p.soft", note)));
}

/** Text in which a difference beyond noise, which begins with an arrow, stands out; a setting has backticks around it. */
function marked(text) {
  const change = { "▲": "span.up", "▼": "span.down" }[text[0]];
  return /^`.+`$/.test(text) ? h("code", text.slice(1, -1)) : h(change ?? "span", text);
}

/** A chooser of everything that was logged. */
async function anyScalar(report) {
  const names = [...new Set(report.runs.flatMap((run) => run.about.scalars))].sort();
  const first = names.includes("rollout/reward") ? "rollout/reward" : names[0];
  const place = h("div");
  const show = async (name) => {
    const series = report.runs
      .filter((run) => run.about.scalars.includes(name))
      .map((run) => ({ label: run.name, group: run.about.group, run: run.number, column: name }));
    const figure = { title: name, caption: "Running means.", panels: [{ title: "", x: "iteration", series }] };
    place.replaceChildren(await drawn(report, figure));
  };
  if (!names.length) return "";
  await show(first);
  return h("section", h("h2", "Everything that was logged"), choice("Scalar", names, first, show), place);
}
