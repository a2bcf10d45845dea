// Questions × iterations of a run, and the questions of one iteration.

import { choice, h, number, percent, swatch, table, visible } from "report/dom";
import { CAUSES, ofShare } from "report/colours";
import { heatMap } from "report/heatmap";
import { causeOf } from "report/question";
import { go, place, replace } from "report/router";

const COLOURINGS = [
  ["share", "share correct"],
  ["cause", "cause of a missing gradient"],
];
const ORDERS = [
  ["seen", "first seen"],
  ["share", "share correct"],
  ["change", "change"],
  ["name", "name"],
];
const SPREADS = [
  ["iteration", "iterations"],
  ["visit", "visits (first, second, …)"],
];

/** Show the heat map; returns what keys do. */
export async function showExplorer(main, run) {
  const recorded = await run.recorded();
  const { cells, names } = recorded;
  const state = { colour: "share", order: "seen", spread: "iteration", cause: "", filter: "", ...place().query };
  const questions = grouped(cells);
  const map = heatMap({
    colour: (cell) =>
      state.colour === "share" ? ofShare(cells.correct[cell] / cells.samples[cell]) : CAUSES[recorded.cause(cell)],
    title: (row, column, cell) =>
      h(
        "div",
        {},
        h("b", {}, visible(row.label)),
        h("br"),
        `iteration ${cells.column[cell]}: `,
        `${cells.correct[cell]} of ${cells.samples[cell]} correct, `,
        causeOf(recorded.cause(cell)),
      ),
    open: (cell) => go({ run: run.number, iteration: cells.column[cell], question: cells.question[cell] }),
  });
  const status = h("span", { class: "soft", role: "status" });
  const legend = h("div", { class: "legend" });

  function set(name, value) {
    state[name] = value;
    replace({ ...place(), query: state });
    update();
  }

  function update() {
    const word = state.filter.toLowerCase();
    const rows = ordered(recorded, questions, state.order).filter(
      ({ question, members }) =>
        (!word ||
          names.question[question].toLowerCase().includes(word) ||
          promptOf(recorded, members[0]).toLowerCase().includes(word)) &&
        (!state.cause || members.some((cell) => recorded.cause(cell) === state.cause)),
    );
    map.update(spread(recorded, rows, state.spread));
    status.textContent = `${number(rows.length)} of ${number(questions.length)} questions`;
    legend.replaceChildren(...(state.colour === "share" ? shareLegend() : causeLegend(run.causes)));
  }

  const change = (name) => (value) => set(name, value);
  main.append(
    h(
      "div",
      { class: "bar" },
      h("input", {
        type: "search",
        id: "search",
        value: state.filter,
        placeholder: "question or prompt",
        "aria-label": "filter",
        oninput: (event) => set("filter", event.target.value),
      }),
      choice("Colour", COLOURINGS, state.colour, change("colour")),
      choice("Sort", ORDERS, state.order, change("order")),
      choice("Columns", SPREADS, state.spread, change("spread")),
      choice(
        "Only",
        [["", "all questions"], ...run.causes.map((name) => [name, name.replaceAll("_", " ")])],
        state.cause,
        change("cause"),
      ),
      status,
    ),
    legend,
    map.element,
  );
  update();
  map.element.focus({ preventScroll: true });
  return map.keys;
}

function grouped(cells) {
  const found = new Map();
  cells.question.forEach((question, cell) => {
    if (!found.has(question)) found.set(question, { question, members: [] });
    found.get(question).members.push(cell);
  });
  return [...found.values()];
}

const promptOf = (recorded, cell) => recorded.prompt(recorded.cells.first[cell]);

function ordered(recorded, questions, order) {
  const share = (cell) => recorded.cells.correct[cell] / recorded.cells.samples[cell];
  const value = {
    seen: () => 0,
    share: ({ members }) => members.reduce((sum, cell) => sum + share(cell), 0) / members.length,
    change: ({ members }) => share(members[0]) - share(members.at(-1)),
  }[order];
  const names = recorded.names.question;
  const compare = value ? (a, b) => value(a) - value(b) : (a, b) => (names[a.question] < names[b.question] ? -1 : 1);
  return [...questions].sort(compare);
}

function spread(recorded, rows, by) {
  const iterations = [...new Set(recorded.cells.column)].sort((a, b) => a - b);
  const places = new Map(iterations.map((iteration, i) => [iteration, i]));
  const longest = rows.reduce((most, { members }) => Math.max(most, members.length), 0);
  return {
    columns: by === "visit" ? Array.from({ length: longest }, (_, i) => String(i + 1)) : iterations.map(String),
    rows: rows.map(({ question, members }) => ({
      label: recorded.names.question[question],
      cells: new Map(members.map((cell, i) => [by === "visit" ? i : places.get(recorded.cells.column[cell]), cell])),
    })),
  };
}

/** The scale of shares, from none to all correct. */
export function shareLegend() {
  return [0, 0.25, 0.5, 0.75, 1].map((share) => swatch(ofShare(share), percent(share)));
}

const causeLegend = (causes) =>
  causes.map((name) => swatch(CAUSES[name], name === "gradient" ? "gives a gradient" : name.replaceAll("_", " ")));

/** Show the questions of one iteration, those of a cause first when one is asked for. */
export async function showIteration(main, run, iteration) {
  const recorded = await run.recorded();
  const { cells } = recorded;
  const found = recorded.at(iteration);
  const { iteration: numbers, ...scalars } = await run.iterations();
  const at = numbers.indexOf(iteration);
  const link = (cell) =>
    h(
      "a",
      { href: `#/run/${run.number}/iteration/${iteration}/question/${cells.question[cell]}` },
      visible(recorded.names.question[cells.question[cell]]),
    );
  const step = (by) => {
    const next = numbers[numbers.indexOf(iteration) + by];
    if (next !== undefined) go({ run: run.number, iteration: next });
  };
  main.append(
    h("h2", {}, `Iteration ${iteration}`),
    h(
      "div",
      { class: "bar" },
      h("button", { onclick: () => step(-1) }, "← previous"),
      h("button", { onclick: () => step(1) }, "next →"),
    ),
    found.length
      ? table(
          ["question", "correct", "share", "gradient", "prompt"],
          found.map((cell) => [
            link(cell),
            `${cells.correct[cell]} of ${cells.samples[cell]}`,
            percent(cells.correct[cell] / cells.samples[cell]),
            causeOf(recorded.cause(cell)),
            h("span", { class: "cut", dir: "auto" }, visible(promptOf(recorded, cell).slice(0, 300))),
          ]),
          { class: "left", id: "questions" },
        )
      : h("p", {}, "No responses were recorded in this iteration."),
    at < 0
      ? null
      : h(
          "details",
          {},
          h("summary", {}, "all that was logged"),
          table(
            ["scalar", "value"],
            Object.entries(scalars)
              .filter(([, values]) => !Number.isNaN(values[at]))
              .map(([name, values]) => [name, number(values[at], 5)]),
          ),
        ),
  );
  const links = [...main.querySelectorAll("#questions a")];
  const focus = (by) =>
    links[Math.min(Math.max(links.indexOf(document.activeElement) + by, 0), links.length - 1)]?.focus();
  return {
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    n: () => step(1),
    p: () => step(-1),
    ArrowDown: () => focus(1),
    j: () => focus(1),
    ArrowUp: () => focus(-1),
    k: () => focus(-1),
    Escape: () => go({ run: run.number }),
  };
}
