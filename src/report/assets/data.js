// Runs and their responses, read from the blocks.

import { read } from "report/blocks";

const CORRECT = 1,
  TRUNCATED = 2,
  MASKED = 4;

/** One run: what the index says of it (`about`), and its blocks. */
export class Run {
  constructor(about, number, causes) {
    this.about = about;
    this.number = number;
    this.causes = causes;
    this.name = about.name;
  }

  iterations() {
    return read(`run${this.number}/iterations`);
  }

  evaluation(split) {
    return read(`run${this.number}/evaluation/${split}`);
  }

  /** Everything but the tokens: `rows`, `cells`, `names`, and where the cells of a question and an iteration are. */
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
    const starts = this.about.blocks;
    let block = starts.length - 1;
    while (block >= 0 && starts[block] > row) block--;
    if (block < 0) return null;
    const columns = await read(`run${this.number}/tokens/${block}`);
    const place = find(columns.rows, row);
    if (place < 0) return null;
    if (!columns.ids) return { text: columns.texts[place], tokens: [] };
    const { rows } = await this.recorded();
    columns.starts ??= startsOf(columns.rows, rows.length);
    const tokens = await this.tokens(columns, columns.starts[place], rows.length[row]);
    const text = columns.texts?.[place];
    return { text: text ?? joined(tokens), tokens, apart: typeof text === "string" };
  }

  async tokens(columns, start, count) {
    const vocabulary = await read(`run${this.number}/vocabulary`);
    return Array.from({ length: count }, (_, i) => {
      const at = columns.ids[start + i];
      return {
        id: vocabulary.ids[at],
        bytes: vocabulary.bytes.subarray(at ? vocabulary.ends[at - 1] : 0, vocabulary.ends[at]),
        special: vocabulary.special[at] === 1,
        logprob: columns.logprobs?.[start + i],
        entropy: columns.entropies?.[start + i],
      };
    });
  }
}

/** The recorded responses of a run: columns of `rows`, and of `cells` (a question in an iteration). */
export class Recorded {
  constructor(run, rows, cells, names) {
    Object.assign(this, { run, rows, cells, names });
    this.count = rows.iteration.length;
    this.references = names.references ?? [];
    this.terms = Object.keys(rows).filter((name) => name.startsWith("reward_term/"));
  }

  correct(row) {
    return (this.rows.flags[row] & CORRECT) !== 0;
  }
  truncated(row) {
    return (this.rows.flags[row] & TRUNCATED) !== 0;
  }
  masked(row) {
    return (this.rows.flags[row] & MASKED) !== 0;
  }
  question(row) {
    return this.names.question[this.rows.question[row]];
  }
  prompt(row) {
    return this.names.prompt?.[this.rows.prompt[row]] ?? "";
  }
  answer(row) {
    return this.names.answer[this.rows.answer[row]];
  }
  cause(cell) {
    return this.run.causes[this.cells.cause[cell]];
  }

  /** The cells of an iteration, in the order of their rows. */
  at(iteration) {
    return indices(this.cells.column.length, (cell) => this.cells.column[cell] === iteration);
  }

  /** The cells of a question, by iteration. */
  of(question) {
    return indices(this.cells.column.length, (cell) => this.cells.question[cell] === question);
  }

  /** The rows of a cell. */
  rowsOf(cell) {
    return Array.from({ length: this.cells.samples[cell] }, (_, i) => this.cells.first[cell] + i);
  }
}

/** Place of `value` in ascending `values`, or −1. */
export function find(values, value) {
  let low = 0,
    high = values.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (values[middle] === value) return middle;
    if (values[middle] < value) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

function indices(count, holds) {
  const found = [];
  for (let i = 0; i < count; i++) if (holds(i)) found.push(i);
  return found;
}

function startsOf(rows, lengths) {
  const starts = new Uint32Array(rows.length);
  for (let i = 1; i < rows.length; i++) starts[i] = starts[i - 1] + lengths[rows[i - 1]];
  return starts;
}

/** The text of tokens, special ones left out. */
function joined(tokens) {
  const shown = tokens.filter((token) => !token.special);
  const bytes = new Uint8Array(shown.reduce((sum, token) => sum + token.bytes.length, 0));
  let end = 0;
  for (const token of shown) {
    bytes.set(token.bytes, end);
    end += token.bytes.length;
  }
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}
