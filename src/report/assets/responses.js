// All responses of a run: a text filter, a few choices, sorting.

import { controls, h, number, table } from "report/dom";
import { address } from "report/router";

const AT_ONCE = 100;
const TEXTS = ["question", "prompt", "answer"];
const NUMBERS = ["reward", "advantage", "ratio", "entropy", "length"];
const VERDICTS = ["all", "correct", "wrong", "truncated", "masked"];
const PROMPTS = ["all", "original", "rephrased"];
const SORTS = ["as recorded", ...NUMBERS.flatMap((name) => [`${name} ↑`, `${name} ↓`])];

/** Show the list. */
export async function showResponses(main, run) {
  const recorded = await run.recorded();
  const state = { filter: "", verdict: "all", prompt: "all", sort: SORTS[0] };
  const texts = new Array(recorded.count).fill("");
  const status = h("span.soft", { role: "status" });
  const place = h("div");
  const more = h("button", { onclick: () => show(place.querySelectorAll("tbody tr").length + AT_ONCE) }, "Show more");
  let rows = [];

  function show(count) {
    const header = ["question", "iteration", "rephrasing", "verdict", "answer", ...NUMBERS];
    const lines = rows.slice(0, count).map((row) => line(recorded, row));
    place.replaceChildren(table(header, lines, { class: "left", id: "responses" }));
    more.hidden = count >= rows.length;
  }

  function update() {
    rows = sorted(recorded, filtered(recorded, state, texts), state.sort);
    status.textContent = `${number(rows.length)} of ${number(recorded.count)} responses`;
    show(AT_ONCE);
  }

  async function searchTexts(event) {
    event.target.disabled = true;
    for (const row of texts.keys()) texts[row] = (await run.response(row))?.text.toLowerCase() ?? "";
    update();
  }

  const choices = [
    ["Verdict", "verdict", VERDICTS],
    ["Prompt", "prompt", PROMPTS],
    ["Sort", "sort", SORTS],
  ];
  const deeper = h("label", h("input", { type: "checkbox", onchange: searchTexts }), " also in responses");
  main.append(controls(state, TEXTS.join(", "), choices, update, deeper, status), place, more);
  update();
}

function line(recorded, row) {
  const { rows, run } = recorded;
  const at = { run: run.number, iteration: rows.iteration[row], question: rows.question[row], response: row };
  const correct = recorded.is("correct", row);
  return [
    h("a", { href: address(at), "data-row": row }, recorded.text("question", row)),
    rows.iteration[row],
    rows.rephrasing[row],
    h(correct ? "span.right" : "span.wrong", correct ? "✓" : "✗"),
    h("span.cut", { dir: "auto" }, recorded.text("answer", row)?.slice(0, 200) ?? "–"),
    ...NUMBERS.map((name) => number(rows[name]?.[row])),
  ];
}

/** The rows that a filter leaves; its text may stand in the question, the prompt, the answer, or in `texts`. */
function filtered(recorded, { filter, verdict, prompt }, texts) {
  const word = filter.trim().toLowerCase();
  const has = TEXTS.map((name) => recorded.names[name].map((text) => (text ?? "").toLowerCase().includes(word)));
  const holds = (row) => TEXTS.some((name, i) => has[i][recorded.rows[name][row]]) || texts[row].includes(word);
  const judged = (row) => recorded.is(verdict === "wrong" ? "correct" : verdict, row) !== (verdict === "wrong");
  const asked = (row) => prompt === "all" || (prompt === "original") === (recorded.rows.rephrasing[row] === 0);
  return Array.from(texts.keys()).filter((row) => (verdict === "all" || judged(row)) && asked(row) && holds(row));
}

/** `rows` in the order of a column, `length ↓` say. What has no number comes last. */
function sorted(recorded, rows, sort) {
  const [name, direction] = sort.split(" ");
  const values = recorded.rows[name];
  if (!values) return rows;
  const sign = direction === "↓" ? -1 : 1;
  const order = (a, b) => Number.isNaN(values[a]) - Number.isNaN(values[b]) || sign * (values[a] - values[b]) || a - b;
  return rows.sort(order);
}
