// A question in one iteration: the original and its rephrasings side by side, and a response in full.

import { h, number, percent } from "report/dom";
import { causeOf } from "report/explorer";
import { address, place, replace } from "report/router";
import { responseText } from "report/tokens";

const LABELS = {
  reward: "reward",
  advantage: "advantage",
  ratio: "policy ratio, mean",
  entropy: "entropy, mean (nats)",
  kl: "KL, mean",
  clipped: "share of tokens clipped",
  logprob: "log p by the engine",
  score_logprob: "log p under the score prompt",
  length: "tokens",
};
const STEPS = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };

/** Show the question of `place`. */
export async function showQuestion(main, run, { iteration, question, response }) {
  const recorded = await run.recorded();
  const cells = recorded.cellsOf("question", question);
  const here = cells.find((cell) => recorded.cells.column[cell] === iteration) ?? cells[0];
  if (here === undefined) return main.append(h("p", "There are no responses to this question here."));
  const rows = recorded.rowsOf(here);
  const promptOf = (row) => `${recorded.rows.rephrasing[row]}/${recorded.rows.template[row]}`;
  const columns = [...Map.groupBy(rows, promptOf).values()];
  const cards = new Map(rows.map((row) => [row, card(recorded, row, select)]));
  const detail = h("section", h("p.soft", "Choose a response to see its tokens."));
  const board = h("div.columns", { tabindex: 0, "aria-label": "responses; arrow keys move", onkeydown: walk });
  let chosen;

  async function select(row) {
    cards.get(chosen)?.classList.remove("chosen");
    chosen = row;
    cards.get(row).classList.add("chosen");
    cards.get(row).focus({ preventScroll: true });
    cards.get(row).scrollIntoView({ block: "nearest", inline: "nearest" });
    replace({ ...place(), response: row });
    await showResponse(detail, recorded, row);
  }

  function walk(event) {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const at = columns.findIndex((column) => column.includes(chosen));
    const next = columns[Math.min(Math.max(at + step[1], 0), columns.length - 1)];
    const line = at < 0 ? 0 : columns[at].indexOf(chosen) + step[0];
    select(next[Math.min(Math.max(line, 0), next.length - 1)]);
  }

  board.append(...columns.map((column) => ofPrompt(recorded, column, cards)));
  main.append(heading(recorded, here, cells), board, detail);
  if (rows.includes(response)) await select(response);
  else board.focus({ preventScroll: true });
}

function heading(recorded, here, cells) {
  const { cells: of, run, names } = recorded;
  const question = of.question[here];
  const visits = cells.map((cell) => {
    const href = address({ run: run.number, iteration: of.column[cell], question });
    const text = `${of.column[cell]} (${percent(recorded.share(cell))})`;
    return [h("a", { href, "aria-current": cell === here ? "page" : null }, text), " "];
  });
  const share = `${of.correct[here]} of ${of.samples[here]} correct`;
  const references = names.references?.[question] ?? [];
  return h(
    "div",
    h("h2", names.question[question]),
    h("p", `Iteration ${of.column[here]}: ${share}, ${causeOf(of.cause[here])}.`),
    references.length > 0 && h("p", "Reference: ", h("b", { "data-part": "reference" }, references.join(" or "))),
    h("p", "All iterations of this question: ", visits),
  );
}

/** A prompt and the responses to it. */
function ofPrompt(recorded, rows, cards) {
  const rephrasing = recorded.rows.rephrasing[rows[0]];
  const right = rows.filter((row) => recorded.is("correct", row)).length;
  const facts = `${right}/${rows.length} correct · ${recorded.text("template", rows[0])}`;
  return h(
    "section.column",
    h("h3", rephrasing ? `rephrasing ${rephrasing} ` : "original ", h("span.soft", facts)),
    h("div.text.prompt", { dir: "auto" }, recorded.text("prompt", rows[0]) ?? ""),
    rows.map((row) => cards.get(row)),
  );
}

function card(recorded, row, select) {
  const correct = recorded.is("correct", row);
  const { advantage, ratio, length } = recorded.rows;
  const facts = [
    `A ${number(advantage[row], 2)}`,
    ratio && `ratio ${number(ratio[row])}`,
    `${number(length[row])} tokens`,
    recorded.is("truncated", row) && "cut",
    recorded.is("masked", row) && "masked",
  ];
  return h(
    correct ? "button.card.right" : "button.card.wrong",
    { "data-row": row, onclick: () => select(row) },
    h("b", correct ? "✓ " : "✗ "),
    h("span.answer", { dir: "auto" }, recorded.text("answer", row) ?? "no answer"),
    h("span.soft", " ", facts.filter(Boolean).join(" · ")),
  );
}

/** The numbers and the tokens of one response. */
async function showResponse(box, recorded, row) {
  const { rows, run } = recorded;
  const terms = Object.keys(rows).filter((name) => name.startsWith("reward_term/"));
  const facts = [...Object.keys(LABELS).filter((name) => rows[name]), ...terms].map((name) => {
    const label = LABELS[name] ?? name.replace("reward_term/", "reward term: ");
    return h("div", h("dt", label), h("dd", { "data-part": name }, number(rows[name][row], 4)));
  });
  const answer = h("b", { "data-part": "answer", dir: "auto" }, recorded.text("answer", row) ?? "none");
  const found = await run.response(row);
  box.replaceChildren(
    h("h3", recorded.is("correct", row) ? "✓ correct" : "✗ wrong", ", answer ", answer),
    h("dl", facts),
    found ? responseText(found) : h("p", "Its tokens are not in this page, which would have become too large."),
    h("p.soft", `Recorded in ${run.about.path}/rollouts/${recorded.text("file", row)}, row ${rows.line[row]}.`),
  );
}
