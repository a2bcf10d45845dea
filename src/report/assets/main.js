// The page: header, places, keys, theme.

import { read } from "report/blocks";
import { Run } from "report/data";
import { h, table, visible } from "report/dom";
import { showEvaluation } from "report/evaluations";
import { showExplorer, showIteration } from "report/explorer";
import { showOverview } from "report/overview";
import { showQuestion } from "report/question";
import { showResponses } from "report/responses";
import { go, place } from "report/router";

const KEYS = [
  ["?", "this help"],
  ["d", "light or dark"],
  ["o", "overview"],
  ["h", "heat map of the run"],
  ["r", "responses of the run"],
  ["e", "evaluations of the run"],
  ["[ ]", "previous or next run"],
  ["/", "search or filter"],
  ["← ↑ → ↓ or j k", "move: cells, responses, prompts"],
  ["Enter", "open"],
  ["n p", "next or previous iteration"],
  ["Esc", "up, or out of a field"],
];
const main = document.getElementById("main");
const report = (await read("index")).index;
report.runs = report.runs.map((about, number) => new Run(about, number, report.causes));
let keys = {};
let showing = 0;

/** Show the place that the address names. */
async function show() {
  const at = place();
  const run = report.runs[at.run];
  const turn = ++showing;
  const fresh = h("div", {});
  keys = {};
  header(at, run);
  main.replaceChildren(fresh);
  scrollTo(0, 0);
  const found = run ? await showRun(fresh, run, at) : showOverview(fresh, report);
  if (turn !== showing) return; // the reader has gone on meanwhile
  keys = found ?? {};
  document.documentElement.dataset.ready = String(turn);
  if (turn === 1) performance.mark("ready");
}

async function showRun(fresh, run, at) {
  if (at.settings !== undefined) return showSettings(fresh, run);
  if (at.evaluation !== undefined) return showEvaluation(fresh, run, at);
  if (!run.about.responses) {
    return run.about.splits.length
      ? showEvaluation(fresh, run, { evaluation: 0 })
      : fresh.append(h("p", {}, "This run recorded no responses. Train with callbacks.recorder to see them here."));
  }
  if (at.responses !== undefined) return showResponses(fresh, run);
  if (at.questionid !== undefined) return byName(run, at);
  if (at.question !== undefined) return showQuestion(fresh, run, at);
  return at.iteration === undefined ? showExplorer(fresh, run) : showIteration(fresh, run, at.iteration);
}

/** Go to a question that a figure knows by its name. */
async function byName(run, at) {
  const { names } = await run.recorded();
  const question = names.question.indexOf(String(at.questionid));
  go({ run: run.number, iteration: at.iteration, question: question < 0 ? undefined : question });
}

function showSettings(fresh, run) {
  const lines = Object.entries(flat(run.about.settings)).map(([name, value]) =>
    [name, visible(String(value))].map((cell) => h("span", {}, cell)),
  );
  fresh.append(h("h2", {}, "Settings"), table(["setting", "value"], lines, { class: "left" }));
}

function flat(settings, prefix = "") {
  if (settings === null || typeof settings !== "object") return { [prefix]: settings };
  return Object.assign(
    {},
    ...Object.entries(settings).map(([name, part]) => flat(part, prefix ? `${prefix}.${name}` : name)),
  );
}

function header(at, run) {
  const link = (to, label, current) => h("a", { href: to, "aria-current": current ? "page" : null }, label);
  const view = ["settings", "evaluation", "responses", "iteration"].find((name) => at[name] !== undefined) ?? "map";
  const chooser = h(
    "select",
    {
      "aria-label": "run",
      onchange: (event) => {
        location.hash = event.target.value === "" ? "#/" : `#/run/${event.target.value}`;
      },
    },
    h("option", { value: "" }, "all runs"),
    report.runs.map((one) => h("option", { value: one.number, selected: one === run }, one.name)),
  );
  const within = run
    ? [
        run.about.responses ? link(`#/run/${run.number}`, "Heat map", view === "map") : null,
        at.iteration === undefined
          ? null
          : link(`#/run/${run.number}/iteration/${at.iteration}`, `Iteration ${at.iteration}`, view === "iteration"),
        run.about.responses ? link(`#/run/${run.number}/responses/`, "Responses", view === "responses") : null,
        run.about.splits.length ? link(`#/run/${run.number}/evaluation/0`, "Evaluations", view === "evaluation") : null,
        link(`#/run/${run.number}/settings/`, "Settings", view === "settings"),
      ]
    : [];
  document
    .getElementById("top")
    .replaceChildren(
      h("nav", {}, link("#/", "Overview", !run), chooser, within.filter(Boolean)),
      h(
        "span",
        {},
        h("button", { onclick: toggleTheme, title: "light or dark (d)" }, "◐"),
        h("button", { onclick: help, title: "keys (?)" }, "?"),
      ),
    );
}

function help() {
  const dialog = h(
    "dialog",
    { onclose: (event) => event.target.remove() },
    h("h2", {}, "Keys"),
    table(["key", ""], KEYS, { class: "left" }),
    h("form", { method: "dialog" }, h("button", {}, "Close")),
  );
  document.body.append(dialog);
  dialog.showModal();
}

function toggleTheme() {
  const { theme } = document.documentElement.dataset;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
  keys.theme?.();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("tagrpo-report-theme", theme);
  } catch {
    /* some browsers refuse it to files */
  }
}

function otherRun(step) {
  const next = report.runs[(place().run ?? -1) + step];
  if (next) go({ run: next.number });
}

const EVERYWHERE = {
  "?": help,
  d: toggleTheme,
  o: () => go({}),
  h: () => toRun({}),
  r: () => toRun({ responses: "" }),
  e: () => toRun({ evaluation: 0 }),
  "[": () => otherRun(-1),
  "]": () => otherRun(1),
  "/": () => document.getElementById("search")?.focus(),
};

function toRun(parts) {
  const { run } = place();
  if (run !== undefined) go({ run, ...parts });
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
  const typing = event.target.matches("input[type=search], select");
  if (typing && event.key === "Escape") event.target.blur();
  const pressed = event.key === "Enter" && event.target.matches("a, button, summary");
  const action = typing || pressed ? null : (keys[event.key] ?? EVERYWHERE[event.key]);
  if (!action) return;
  event.preventDefault();
  action();
});
addEventListener("hashchange", show);
try {
  const theme = localStorage.getItem("tagrpo-report-theme");
  if (theme) setTheme(theme);
} catch {
  /* likewise */
}
await show();
