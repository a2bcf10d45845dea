// A run: its curves, and three telling questions with their wordings and responses.

import { h } from "report/dom";
import { anyScalar } from "report/overview";
import { CAUSES, drawn } from "report/plot";
import { address } from "report/router";

const CURVES = ["learning", "zero_gradient", "evaluations"];
/** Responses to a wording that are shown here, and how many of their characters. */
const [SHOWN, LETTERS] = [2, 600];

/** Show a run. */
export async function showCurves(main, report, run) {
  const { telling } = run.about;
  const [first, ...others] = await Promise.all(figuresOf(report, run).map((figure) => drawn(report, figure)));
  const cards = await Promise.all(telling.map((one) => card(run, one)));
  main.append(
    h("h1", run.name),
    first ?? h("p", "This run logged no iterations."),
    telling.length > 0 && h("section", h("h2", "Three telling questions"), h("div.telling", cards)),
    ...others,
    await anyScalar(report, [run]),
  );
}

/** The figures of training with the series of this run alone. */
function figuresOf(report, run) {
  const own = (one) => one.run === run.number || (one.run === undefined && one.label === run.name);
  const found = report.figures
    .filter(({ name }) => CURVES.includes(name))
    .map((figure) => {
      const panels = figure.panels.map((panel) => ({ ...panel, series: panel.series.filter(own) }));
      return { ...figure, panels: panels.filter(({ series }) => series.length) };
    });
  const causes = Object.keys(CAUSES).filter((cause) => run.about.scalars.includes(`zero_gradient/${cause}`));
  const series = causes.map((cause) => ({
    label: cause.replaceAll("_", " "),
    group: cause,
    run: run.number,
    column: `zero_gradient/${cause}`,
  }));
  const why = {
    title: "Why questions gave no gradient",
    caption: "In percent, by the first cause that holds; running means.",
    y: "% of questions",
    panels: [{ title: "questions without gradient", x: "iteration", from_zero: true, series }],
  };
  return [...found, ...(series.length ? [why] : [])].filter(({ panels }) => panels.length);
}

/** A telling question. */
async function card(run, one) {
  const parts = one.iteration === undefined ? ofEvaluation(one) : await ofTraining(run, one);
  return h("article", h("h3", one.kind), h("p", one.said), parts);
}

/** The wordings of a question of training, each with some of its responses. */
async function ofTraining(run, { iteration, question }) {
  const recorded = await run.recorded();
  const cell = recorded.cellsOf("question", question).find((at) => recorded.cells.column[at] === iteration);
  const rows = recorded.rowsOf(cell);
  const wordings = [...Map.groupBy(rows, (row) => recorded.rows.rephrasing[row])];
  const shown = await Promise.all(
    wordings.map(async ([rephrasing, own]) => {
      const right = own.filter((row) => recorded.is("correct", row));
      const wrong = own.filter((row) => !recorded.is("correct", row));
      const chosen = [...right.slice(0, 1), ...wrong.slice(0, 1), ...right.slice(1), ...wrong.slice(1)].slice(0, SHOWN);
      const responses = await Promise.all(
        chosen.map(async (row) => ({
          correct: recorded.is("correct", row),
          answer: recorded.text("answer", row),
          text: (await run.response(row))?.text,
          href: address({ run: run.number, iteration, question, response: row }),
        })),
      );
      const name = rephrasing ? `rephrasing ${rephrasing}` : "original";
      return wording(name, `${right.length} of ${own.length} correct`, recorded.text("prompt", own[0]), responses);
    }),
  );
  const references = recorded.names.references?.[question] ?? [];
  const all = h("a", { href: address({ run: run.number, iteration, question }) }, "All responses to this question");
  return [expected(references), shown, h("p", all)];
}

/** A question of the evaluations, before and after training. */
function ofEvaluation({ before, after }) {
  const stages = [before, after].filter((stage) => stage);
  if (!stages.length) return [];
  if (!stages.some(({ prompt }) => prompt)) {
    return h("p.soft", "Its responses were not kept. Train with callbacks.evaluation_examples to read them here.");
  }
  const { prompt, reference } = stages.find((stage) => stage.prompt);
  const shown = stages.map(({ iteration, n, correct, responses = [] }) => {
    const when = iteration ? `after ${iteration} iterations` : "before training";
    return wording(when, `${correct} of ${n} correct`, null, responses.slice(0, SHOWN));
  });
  return [h("div.text", { dir: "auto" }, prompt), expected(reference), shown];
}

const expected = (references) => references.length > 0 && h("p", "Reference: ", h("b", { dir: "auto" }, references.join(" or ")));

function wording(name, facts, prompt, responses) {
  return h(
    "section.wording",
    h("h4", name, " ", h("span.soft", facts)),
    prompt && h("div.text", { dir: "auto" }, prompt),
    responses.map(({ correct, answer, text, href }) =>
      h(
        correct ? "div.said.right" : "div.said.wrong",
        h("b", correct ? "✓ " : "✗ "),
        href ? h("a", { href, dir: "auto" }, answer ?? "no answer") : h("span.answer", { dir: "auto" }, answer ?? "no answer"),
        text && h("div.text.answer", { dir: "auto" }, text.length > LETTERS ? `…${text.slice(-LETTERS)}` : text),
      ),
    ),
  );
}
