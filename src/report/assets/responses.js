// All responses of a run: filters, search, sort.

import { h, number, visible } from "report/dom";
import { go, place, replace } from "report/router";
import { virtualList } from "report/virtual";

const COLUMNS = [
  "iteration",
  "question",
  "rephrasing",
  "verdict",
  "answer",
  "reward",
  "advantage",
  "ratio",
  "entropy",
  "length",
];
const WORDS = {
  correct: (recorded, row) => recorded.correct(row),
  wrong: (recorded, row) => !recorded.correct(row),
  truncated: (recorded, row) => recorded.truncated(row),
  masked: (recorded, row) => recorded.masked(row),
  original: (recorded, row) => recorded.rows.rephrasing[row] === 0,
  rephrased: (recorded, row) => recorded.rows.rephrasing[row] > 0,
};
const COMPARED = {
  "=": (a, b) => a === b,
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
};
const HINT = "wrong reward>0 iteration>=20 ratio>1.1 apples";

/** Show the list; returns what keys do. */
export async function showResponses(main, run) {
  const recorded = await run.recorded();
  const state = { filter: place().query.filter ?? "", sort: place().query.sort ?? "", texts: null };
  let rows = [];
  const list = virtualList(
    30,
    (index) => line(recorded, rows[index]),
    (index) => open(recorded, rows[index]),
  );
  const status = h("span", { class: "soft", role: "status" });
  const search = h("input", {
    type: "search",
    id: "search",
    value: state.filter,
    placeholder: HINT,
    "aria-label": "filter",
  });
  const deep = h(
    "button",
    { title: "Reads the text of all responses, which takes a moment.", onclick: () => searchTexts() },
    "Search in responses",
  );

  function apply() {
    rows = sorted(recorded, filtered(recorded, state.filter, state.texts), state.sort);
    status.textContent = `${number(rows.length)} of ${number(recorded.count)} responses`;
    replace({ ...place(), query: { filter: state.filter, sort: state.sort } });
    list.update(rows.length);
  }

  async function searchTexts() {
    const texts = new Array(recorded.count);
    for (let row = 0; row < recorded.count; row++) {
      texts[row] = (await run.response(row))?.text ?? "";
      if (row % 500 === 0) {
        status.textContent = `reading ${number(row)} of ${number(recorded.count)}`;
        await new Promise(requestAnimationFrame);
      }
    }
    state.texts = texts;
    deep.textContent = "Searching in responses";
    deep.disabled = true;
    apply();
  }

  search.addEventListener("input", () => {
    state.filter = search.value;
    apply();
  });
  const header = h(
    "div",
    { class: "row header" },
    COLUMNS.map((name) =>
      h(
        "button",
        {
          onclick: () => {
            state.sort = state.sort === name ? `-${name}` : name;
            apply();
          },
        },
        name,
      ),
    ),
  );
  main.append(
    h("div", { class: "bar" }, search, deep, status),
    h(
      "p",
      { class: "soft" },
      `Words: ${Object.keys(WORDS).join(", ")}; numbers: `,
      h("code", {}, "reward>0"),
      " with any column or ",
      h("code", {}, recorded.terms[0] ?? "kl"),
      "; anything else is looked for in questions, prompts and answers. Click a column to sort.",
    ),
    header,
    list.element,
  );
  apply();
  return {
    ArrowDown: () => list.move(1),
    j: () => list.move(1),
    ArrowUp: () => list.move(-1),
    k: () => list.move(-1),
    PageDown: () => list.move(20),
    PageUp: () => list.move(-20),
    Enter: list.enter,
  };
}

function open(recorded, row) {
  go({
    run: recorded.run.number,
    iteration: recorded.rows.iteration[row],
    question: recorded.rows.question[row],
    response: row,
  });
}

function line(recorded, row) {
  const { rows } = recorded;
  return h(
    "div",
    { "data-row": row },
    h("span", {}, String(rows.iteration[row])),
    h("span", {}, visible(recorded.question(row))),
    h("span", {}, String(rows.rephrasing[row])),
    h("span", { class: recorded.correct(row) ? "right" : "wrong" }, recorded.correct(row) ? "✓" : "✗"),
    h("span", { dir: "auto" }, visible(recorded.answer(row)?.slice(0, 200) ?? "–")),
    ["reward", "advantage", "ratio", "entropy", "length"].map((name) => h("span", {}, number(rows[name]?.[row]))),
  );
}

/** The rows for which every part of the filter holds. */
export function filtered(recorded, filter, texts) {
  const conditions = filter
    .trim()
    .split(/\s+/)
    .filter(Boolean)
    .map((part) => condition(recorded, part, texts));
  const found = [];
  for (let row = 0; row < recorded.count; row++) if (conditions.every((holds) => holds(row))) found.push(row);
  return found;
}

function condition(recorded, part, texts) {
  const compared = /^([\w/]+)(<=|>=|=|<|>)([-+.\deE]+)$/.exec(part);
  if (compared && Object.hasOwn(recorded.rows, compared[1]) && Number.isFinite(Number(compared[3]))) {
    const [, name, sign, value] = compared;
    return (row) => COMPARED[sign](recorded.rows[name][row], Number(value));
  }
  if (Object.hasOwn(WORDS, part)) return (row) => WORDS[part](recorded, row);
  const word = part.toLowerCase();
  const [question, prompt, answer] = ["question", "prompt", "answer"].map((name) =>
    (recorded.names[name] ?? []).map((text) => (text ?? "").toLowerCase().includes(word)),
  );
  return (row) =>
    question[recorded.rows.question[row]] ||
    prompt[recorded.rows.prompt?.[row]] ||
    answer[recorded.rows.answer[row]] ||
    (texts?.[row].toLowerCase().includes(word) ?? false);
}

/** `rows` in the order of a column, downwards when its name begins with `-`. What has no number comes last. */
export function sorted(recorded, rows, sort) {
  const name = sort.replace(/^-/, "");
  if (!COLUMNS.includes(name)) return rows;
  const named = recorded.names[name];
  const ranks = named && rankOf(named);
  const values =
    { verdict: (row) => Number(recorded.correct(row)) }[name] ??
    (ranks ? (row) => ranks[recorded.rows[name][row]] : (row) => recorded.rows[name]?.[row] ?? NaN);
  const sign = sort.startsWith("-") ? -1 : 1;
  return rows.sort((a, b) => {
    const [x, y] = [values(a), values(b)];
    return Number.isNaN(x) - Number.isNaN(y) || sign * (x - y) || a - b;
  });
}

function rankOf(names) {
  const ranks = new Array(names.length);
  const order = names.map((_, i) => i).sort((a, b) => ((names[a] ?? "") < (names[b] ?? "") ? -1 : 1));
  order.forEach((place, rank) => {
    ranks[place] = rank;
  });
  return ranks;
}
