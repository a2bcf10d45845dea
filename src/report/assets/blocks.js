// The data blocks of the page, inflated when they are first asked for.

const TYPES = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };
const KEPT = 24;
const found = new Map();

/** Column → typed array or JSON value. Blocks of tokens are forgotten when others have been read since. */
export function read(name) {
  const columns = found.get(name) ?? inflate(document.getElementById(name));
  found.delete(name);
  found.set(name, columns);
  const tokens = [...found.keys()].filter((key) => key.includes("/tokens/"));
  if (tokens.length > KEPT) found.delete(tokens[0]);
  return columns;
}

/** The numbers at the ends of the names of blocks that begin with `prefix`, in the order of the page. */
export function numbered(prefix) {
  const names = Array.from(document.querySelectorAll("script[data-columns]"), (element) => element.id);
  return names.filter((name) => name.startsWith(prefix)).map((name) => Number(name.slice(prefix.length)));
}

async function inflate(element) {
  if (!element) return {};
  const bytes = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = new Uint8Array(await new Response(stream).arrayBuffer());
  const columns = {};
  let start = 0;
  for (const [name, kind, size] of JSON.parse(element.dataset.columns)) {
    const part = content.subarray(start, start + size);
    columns[name] = kind === "json" ? JSON.parse(new TextDecoder().decode(part)) : numbers(part, kind);
    start += size;
  }
  return columns;
}

/** Values from their bytes, which are stored by significance. */
function numbers(planes, kind) {
  const width = Number(kind[1]);
  const count = planes.length / width;
  const bytes = new Uint8Array(planes.length);
  for (let i = 0; i < planes.length; i++) bytes[(i % count) * width + Math.floor(i / count)] = planes[i];
  return new TYPES[kind](bytes.buffer);
}
