// A response token by token, coloured by how uncertain the policy was.

import { choice, h, number } from "report/dom";

const STRONGEST = { entropy: 2.5, surprise: 5 };
const COLOURS = { entropy: "entropy", surprise: "surprise (−log p)", none: "none" };
let colour = "entropy";

/** The text of a response and its tokens. */
export function responseText({ text, tokens, apart }) {
  const whole = h("div.text", { dir: "auto", "data-part": "text" }, text);
  if (!tokens.length) return whole;
  const spans = tokens.map((token, i) =>
    h(token.special ? "span.token.special" : "span.token", { "data-token": i }, token.text),
  );
  const box = h(apart ? "div.text.tokens.apart" : "div.text.tokens", { dir: "auto", "data-part": "tokens" }, spans);
  const about = h("span.soft", "Point at a token.");
  const paint = () => spans.forEach((element, i) => coloured(element, tokens[i]));
  const change = (name) => {
    colour = name;
    paint();
  };
  box.addEventListener("pointerover", (event) => {
    const index = event.target.closest("[data-token]")?.dataset.token;
    if (index !== undefined) about.textContent = described(tokens[index], Number(index));
  });
  paint();
  const bar = h("div.bar", choice("Colour", COLOURS, colour, change), about);
  return h("div", bar, box, h("details", h("summary", "as text"), whole));
}

/** The background: nothing at 0, strongest from a limit on; none where nothing was recorded. */
function coloured(element, token) {
  const value = { entropy: token.entropy, surprise: -token.logprob }[colour];
  const strength = Math.min(Math.max(value / STRONGEST[colour], 0), 1) || 0;
  element.style.backgroundColor = `rgb(230 120 0 / ${Math.round(75 * strength)}%)`;
}

function described(token, index) {
  const parts = [`token ${index + 1}`];
  if (token.logprob !== undefined) parts.push(`log p ${number(token.logprob)}`, `p ${number(Math.exp(token.logprob))}`);
  if (token.entropy !== undefined) parts.push(`entropy ${number(token.entropy)} nats`);
  return parts.join(" · ");
}
