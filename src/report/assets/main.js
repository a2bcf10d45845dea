// The page: header, places, Escape, theme.

import { read } from "report/blocks";
import { Run } from "report/data";
import { h } from "report/dom";
import { showExplorer, showIteration } from "report/explorer";
import { showOverview } from "report/overview";
import { showQuestion } from "report/question";
import { showResponses } from "report/responses";
import { showCurves } from "report/run";
import { above, address, go, place } from "report/router";

const root = document.documentElement;
const main = document.getElementById("main");
const report = (await read("index")).index;
report.runs = report.runs.map((about, number) => new Run(about, number));
let showing = 0;

/** Show the place that the address names. */
async function show() {
  const at = place();
  const run = report.runs[at.run];
  const turn = ++showing;
  const fresh = h("div");
  header(at, run);
  main.replaceChildren(fresh);
  scrollTo(0, 0);
  await (run ? showRun(fresh, run, at) : showOverview(fresh, report));
  if (turn === showing) root.dataset.ready = String(turn);
}

async function showRun(fresh, run, at) {
  if (at.view === "settings") return fresh.append(h("pre", JSON.stringify(run.about.settings, null, 2)));
  const deeper = at.view !== undefined || at.iteration !== undefined;
  if (!deeper && at.question === undefined) return showCurves(fresh, report, run);
  if (!run.about.responses) {
    return fresh.append(h("p", "This run recorded no responses. Train with callbacks.recorder to see them here."));
  }
  if (at.view === "responses") return showResponses(fresh, run);
  if (at.question !== undefined) return showQuestion(fresh, run, at);
  return at.iteration === undefined ? showExplorer(fresh, run) : showIteration(fresh, run, at.iteration);
}

function header(at, run) {
  const link = (to, label, current) => h("a", { href: address(to), "aria-current": current ? "page" : null }, label);
  const options = report.runs.map((one) => h("option", { value: one.number, selected: one === run }, one.name));
  const change = (event) => go(event.target.value === "" ? {} : { run: Number(event.target.value) });
  const view = at.view ?? (at.iteration === undefined ? "curves" : "iteration");
  const { iteration, run: number } = at;
  const recorded = run?.about.responses > 0;
  const within = run && [
    link({ run: number }, "Curves", view === "curves"),
    (run.about.repeated || view === "map") && link({ run: number, view: "map" }, "Heat map", view === "map"),
    iteration !== undefined && link({ run: number, iteration }, `Iteration ${iteration}`, view === "iteration"),
    recorded && link({ run: number, view: "responses" }, "Responses", view === "responses"),
    link({ run: number, view: "settings" }, "Settings", view === "settings"),
  ];
  const runs = h("select", { "aria-label": "run", onchange: change }, h("option", { value: "" }, "all runs"), options);
  const theme = h("button", { onclick: toggleTheme, title: "light or dark", "aria-label": "light or dark" }, "◐");
  document.getElementById("top").replaceChildren(h("nav", link({}, "Overview", !run), runs, within), theme);
}

function toggleTheme() {
  const now = root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.style.colorScheme = now === "dark" ? "light" : "dark";
  dispatchEvent(new Event("theme")); // for what is drawn on a canvas
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input, select")) event.target.blur();
  else if (event.key === "Escape") go(above(place()));
});
addEventListener("hashchange", show);
await show();
