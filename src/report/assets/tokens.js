// A response token by token, coloured by how uncertain the policy was.

import { choice, h, number, textBox, visible } from "report/dom";
import { ofToken } from "report/colours";

const AT_ONCE = 3000;
const STRONGEST = { entropy: 2.5, surprise: 5 };
const NAMES = { entropy: "entropy", surprise: "surprise (−log p)", none: "none" };

/** The colourings that a response has values for. */
export function colourings(tokens) {
  const some = (name) => tokens.some((token) => Number.isFinite(token[name]));
  return [...(some("entropy") ? ["entropy"] : []), ...(some("logprob") ? ["surprise"] : []), "none"];
}

/** The text of a response; `colour` is the chosen colouring, `change` is called with another one. */
export function responseText({ text, tokens, apart }, colour, change) {
  if (!tokens.length) return h("div", {}, textBox(text, { "data-part": "text" }));
  const found = colourings(tokens);
  const chosen = found.includes(colour) ? colour : found[0];
  const box = h("div", { class: apart ? "text tokens apart" : "text tokens", dir: "auto", "data-part": "tokens" });
  const about = h("span", { class: "soft about" }, "Point at a token.");
  const more = h("button", { onclick: () => add() });
  let shown = 0;

  function add() {
    const next = tokens.slice(shown, shown + AT_ONCE);
    box.append(...next.map((token, i) => span(token, shown + i, chosen)));
    shown += next.length;
    more.hidden = shown >= tokens.length;
    more.textContent = `Show ${number(Math.min(AT_ONCE, tokens.length - shown))} more of ${number(tokens.length)} tokens`;
  }

  box.addEventListener("mouseover", (event) => {
    const index = event.target.closest("[data-token]")?.dataset.token;
    if (index !== undefined) about.textContent = described(tokens[index], Number(index));
  });
  add();
  return h(
    "div",
    {},
    h(
      "div",
      { class: "bar" },
      choice(
        "Colour",
        found.map((name) => [name, NAMES[name]]),
        chosen,
        change,
      ),
      about,
    ),
    box,
    more,
    details(text),
  );
}

function span(token, index, colouring) {
  const value = colouring === "surprise" ? -token.logprob : token[colouring];
  const element = h(
    "span",
    { class: token.special ? "token special" : "token", "data-token": index },
    visible(readable(token.bytes)),
  );
  if (colouring !== "none") element.style.backgroundColor = ofToken(value, STRONGEST[colouring]);
  return element;
}

/** The bytes of a token as text; those of an incomplete letter by their numbers. */
function readable(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
  }
}

function described(token, index) {
  const parts = [`token ${index + 1}`, `id ${token.id}`];
  if (token.logprob !== undefined) parts.push(`log p ${number(token.logprob)}`, `p ${number(Math.exp(token.logprob))}`);
  if (token.entropy !== undefined) parts.push(`entropy ${number(token.entropy)} nats`);
  return parts.join(" · ");
}

/** The text as it was recorded, to be read and copied without the seams of tokens. */
function details(text) {
  const box = h("div", {});
  return h(
    "details",
    {
      ontoggle: (event) => {
        if (event.target.open) box.replaceChildren(textBox(text, { "data-part": "text" }));
      },
    },
    h("summary", {}, "as text"),
    box,
  );
}
