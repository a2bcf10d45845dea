// Runs and their responses, read from the blocks.

import { numbered, read } from "report/blocks";

/** One run: what the index says of it (`about`), and its blocks. */
export class Run {
  constructor(about, number) {
    Object.assign(this, { about, number, name: about.name });
  }

  iterations() {
    return read(`run${this.number}/iterations`);
  }

  /** Everything but the tokens. */
  recorded() {
    this.opened ??= Promise.all(["rows", "cells", "names"].map((part) => read(`run${this.number}/${part}`))).then(
      ([rows, cells, names]) => new Recorded(this, rows, cells, names),
    );
    return this.opened;
  }

  /**
   * What a response consists of: `text`, and where they were recorded `tokens`; null when it is not in the page.
   * Its tokens are `apart` when they don't add up to its text without further characters.
   */
  async response(row) {
    this.starts ??= numbered(`run${this.number}/tokens/`);
    const start = this.starts.findLast((first) => first <= row);
    const { rows, tokens: found, texts, logprobs, entropies } = await read(`run${this.number}/tokens/${start}`);
    const place = rows?.indexOf(row) ?? -1;
    if (place < 0) return null;
    if (!found) return { text: texts[place], tokens: [] };
    const before = found.slice(0, place).reduce((sum, { length }) => sum + length, 0);
    const tokens = found[place].map((token, i) => ({
      text: String(token),
      special: Array.isArray(token),
      logprob: logprobs?.[before + i],
      entropy: entropies?.[before + i],
    }));
    const joined = tokens.filter((token) => !token.special).map((token) => token.text).join("");
    return { text: texts?.[place] ?? joined, tokens, apart: typeof texts?.[place] === "string" };
  }
}

/** The recorded responses of a run: columns of `rows`, and of `cells` (a question in an iteration). */
export class Recorded {
  constructor(run, rows, cells, names) {
    Object.assign(this, { run, rows, cells, names, count: rows.iteration.length });
  }

  /** Whether a row is `correct`, `truncated` or `masked`. */
  is(flag, row) {
    return this.rows[flag][row] === 1;
  }

  /** The value of a column of strings: `question`, `prompt`, `template`, `answer` or `file`. */
  text(column, row) {
    return this.names[column][this.rows[column][row]];
  }

  /** The prompt of a cell's first response. */
  prompt(cell) {
    return this.text("prompt", this.cells.first[cell]) ?? "";
  }

  share(cell) {
    return this.cells.correct[cell] / this.cells.samples[cell];
  }

  /** The cells whose `column` (an iteration) or `question` is `value`. */
  cellsOf(name, value) {
    return Array.from(this.cells[name].keys()).filter((cell) => this.cells[name][cell] === value);
  }

  /** The rows of a cell. */
  rowsOf(cell) {
    return Array.from({ length: this.cells.samples[cell] }, (_, i) => this.cells.first[cell] + i);
  }
}
