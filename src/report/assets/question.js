// A question in one iteration: the original and its rephrasings side by side, and a response in full.

import { h, number, percent, textBox, visible } from "report/dom";
import { go, place, replace } from "report/router";
import { responseText } from "report/tokens";

let colour = "entropy";

/** Show the question of `place`; returns what keys do. */
export async function showQuestion(main, run, { iteration, question, response }) {
  const recorded = await run.recorded();
  const cells = recorded.of(question);
  const here = cells.find((cell) => recorded.cells.column[cell] === iteration) ?? cells[0];
  if (here === undefined) return main.append(h("p", {}, "There are no responses to this question here."));
  const columns = byPrompt(recorded, recorded.rowsOf(here));
  const detail = h("section", { class: "detail", "aria-live": "polite" });
  const cards = new Map();

  async function select(row) {
    cards.get(chosen)?.classList.remove("chosen");
    chosen = row;
    const card = cards.get(row);
    card.classList.add("chosen");
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest", inline: "nearest" });
    replace({ ...place(), response: row });
    await showResponse(detail, recorded, row);
  }

  let chosen = recorded.rowsOf(here).includes(response) ? response : undefined;
  main.append(
    heading(recorded, here, cells),
    h(
      "div",
      { class: "columns" },
      columns.map((rows) => column(recorded, rows, cards, select)),
    ),
    detail,
  );
  if (chosen === undefined) detail.append(h("p", { class: "soft" }, "Choose a response to see its tokens."));
  else await select(chosen);

  const step = (down, right) => {
    const at = columns.findIndex((rows) => rows.includes(chosen));
    if (at < 0) return select(columns[0][0]);
    const next = columns[Math.min(Math.max(at + right, 0), columns.length - 1)];
    return select(next[Math.min(Math.max(columns[at].indexOf(chosen) + down, 0), next.length - 1)]);
  };
  return {
    ArrowDown: () => step(1, 0),
    j: () => step(1, 0),
    ArrowUp: () => step(-1, 0),
    k: () => step(-1, 0),
    ArrowRight: () => step(0, 1),
    ArrowLeft: () => step(0, -1),
    n: () => visit(recorded, cells, here, 1),
    p: () => visit(recorded, cells, here, -1),
    Escape: () => go({ run: run.number, iteration: recorded.cells.column[here] }),
  };
}

/** The rows of a cell by prompt: the original first. */
function byPrompt(recorded, rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = `${recorded.rows.rephrasing[row]}/${recorded.rows.template[row]}`;
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return [...groups.values()];
}

function visit(recorded, cells, here, step) {
  const next = cells[cells.indexOf(here) + step];
  if (next !== undefined)
    go({ run: recorded.run.number, iteration: recorded.cells.column[next], question: recorded.cells.question[next] });
}

function heading(recorded, here, cells) {
  const question = recorded.cells.question[here];
  const share = recorded.cells.correct[here] / recorded.cells.samples[here];
  const links = cells.map((cell) =>
    h(
      "a",
      {
        href: `#/run/${recorded.run.number}/iteration/${recorded.cells.column[cell]}/question/${question}`,
        "aria-current": cell === here ? "page" : null,
      },
      `${recorded.cells.column[cell]} (${percent(recorded.cells.correct[cell] / recorded.cells.samples[cell])})`,
    ),
  );
  return h(
    "div",
    {},
    h("h2", {}, visible(recorded.names.question[question])),
    h(
      "p",
      {},
      `Iteration ${recorded.cells.column[here]}: ${recorded.cells.correct[here]} of ${recorded.cells.samples[here]} `,
      `correct (${percent(share)}), `,
      causeOf(recorded.cause(here)),
      ".",
    ),
    recorded.references[question]?.length
      ? h(
          "p",
          {},
          "Reference: ",
          h("b", { "data-part": "reference" }, visible(recorded.references[question].join(" or "))),
        )
      : null,
    h(
      "p",
      { class: "visits" },
      "All iterations of this question: ",
      links.flatMap((link) => [link, " "]),
    ),
  );
}

/** What a cause means for the question, in words. */
export const causeOf = (cause) =>
  cause === "gradient" ? "gives a gradient" : `no gradient: ${cause.replaceAll("_", " ")}`;

function column(recorded, rows, cards, select) {
  const first = rows[0];
  const rephrasing = recorded.rows.rephrasing[first];
  const right = rows.filter((row) => recorded.correct(row)).length;
  return h(
    "section",
    { class: "column" },
    h(
      "h3",
      {},
      rephrasing ? `rephrasing ${rephrasing}` : "original",
      h(
        "span",
        { class: "soft" },
        ` ${right}/${rows.length} correct · `,
        visible(recorded.names.template[recorded.rows.template[first]]),
      ),
    ),
    textBox(recorded.prompt(first), { class: "text prompt" }),
    rows.map((row) => {
      const card = h(
        "button",
        { class: recorded.correct(row) ? "card right" : "card wrong", "data-row": row, onclick: () => select(row) },
        h("b", {}, recorded.correct(row) ? "✓" : "✗"),
        " ",
        h("span", { class: "answer", dir: "auto" }, visible(recorded.answer(row) ?? "no answer")),
        h(
          "span",
          { class: "soft" },
          ` A ${number(recorded.rows.advantage?.[row], 2)}`,
          recorded.rows.ratio ? ` · ratio ${number(recorded.rows.ratio[row], 3)}` : "",
          ` · ${number(recorded.rows.length[row])} tokens`,
          recorded.truncated(row) ? " · cut" : "",
          recorded.masked(row) ? " · masked" : "",
        ),
      );
      cards.set(row, card);
      return card;
    }),
  );
}

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

/** The numbers and the tokens of one response. */
export async function showResponse(box, recorded, row) {
  const { rows, run, names } = recorded;
  const shown = [
    ...Object.keys(LABELS)
      .filter((name) => rows[name])
      .map((name) => [name, LABELS[name], number(rows[name][row], 4)]),
    ...recorded.terms.map((name) => [name, name.replace("reward_term/", "reward term: "), number(rows[name][row], 4)]),
  ];
  const found = await run.response(row);
  box.replaceChildren(
    h(
      "h3",
      {},
      recorded.correct(row) ? "✓ correct" : "✗ wrong",
      ", answer ",
      h("b", { "data-part": "answer", dir: "auto" }, visible(recorded.answer(row) ?? "none")),
    ),
    h(
      "dl",
      {},
      shown.map(([name, label, value]) => h("div", {}, h("dt", {}, label), h("dd", { "data-part": name }, value))),
    ),
    found
      ? responseText(found, colour, (name) => {
          colour = name;
          showResponse(box, recorded, row);
        })
      : h("p", {}, "Its tokens are not in this page, which would have become too large. They are in the file below."),
    h(
      "p",
      { class: "soft" },
      "Recorded in ",
      h("code", {}, `${run.about.path}/rollouts/${names.files[rows.file[row]]}`),
      `, row ${rows.line[row]}.`,
    ),
  );
}
