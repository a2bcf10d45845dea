// The first page: the verdict, a line for each method, then runs, tables and figures.

import { choice, h, number, table } from "report/dom";
import { drawn } from "report/plot";

/** Lines of methods that are shown at once. */
const MOST = 5;
const COLOURS = { better: "span.up", worse: "span.down", "cannot be told": "span.soft-word" };

/** Show everything that is about more than one response. */
export async function showOverview(main, report) {
  const { sentences, note, figure, about } = report.answer;
  const [first, ...others] = sentences;
  const lines = others.map((sentence) => h("li", worded(sentence)));
  const said = [h("p.verdict", worded(first)), lines.length > 0 && h("ul", lines.slice(0, MOST))];
  const more = lines.slice(MOST);
  if (more.length) said.push(h("details", h("summary", `${more.length} more`), h("ul", more)));
  const picture = figure && (await drawn(report, figure));
  main.append(
    h("h1", report.title),
    h("section.lead", h("div", said, h("p.soft", note)), picture),
    about.length > 0 && h("section", h("h2", "What was compared"), h("ul", about.map((line) => h("li", line)))),
    runs(report),
    ...report.tables.map(section),
    h("section", h("h2", "Figures"), h("p.soft", "Arrow keys read a figure; points of training open their iteration.")),
    ...(await Promise.all(report.figures.map((one) => drawn(report, one)))),
    await anyScalar(report, report.runs),
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
  const cells = rows.map((row) => row.map((text, i) => marked(text, header[i].includes("without gradient"))));
  return h("section", h("h2", title), rows.length > 0 && table(header, cells), notes.map((note) => h("p.soft", note)));
}

/**
 * Text in which a difference beyond noise, which begins with an arrow, stands out; a setting has backticks around it.
 * Where `fewer` are better, downwards is good.
 */
function marked(text, fewer) {
  const [good, bad] = fewer ? ["▼", "▲"] : ["▲", "▼"];
  const change = COLOURS[text] ?? { [good]: "span.up", [bad]: "span.down" }[text[0]];
  return /^`.+`$/.test(text) ? h("code", text.slice(1, -1)) : h(change ?? "span", text);
}

/** A sentence in which the verdicts in words, each with a difference behind it, stand out. */
function worded(sentence) {
  const parts = sentence.split(/ (better|worse|cannot be told)(?= \([+−])/);
  return parts.map((part, i) => (i % 2 ? [" ", h(COLOURS[part], part)] : part));
}

/** A chooser of everything that was logged. */
export async function anyScalar(report, runs) {
  const names = [...new Set(runs.flatMap((run) => run.about.scalars))].sort();
  const first = names.includes("rollout/reward") ? "rollout/reward" : names[0];
  const place = h("div");
  const show = async (name) => {
    const series = runs
      .filter((run) => run.about.scalars.includes(name))
      .map((run) => ({ label: run.name, group: run.about.group, run: run.number, column: name }));
    const figure = { title: name, caption: "Running means.", y: name, panels: [{ title: name, x: "iteration", series }] };
    place.replaceChildren(await drawn(report, figure));
  };
  if (!names.length) return "";
  await show(first);
  return h("section", h("h2", "Everything that was logged"), choice("Scalar", names, first, show), place);
}
