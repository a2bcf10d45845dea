// The data blocks of the page, inflated when they are first asked for.

const TYPES = {
  f8: Float64Array,
  f4: Float32Array,
  f2: Uint16Array,
  i4: Int32Array,
  u4: Uint32Array,
  u2: Uint16Array,
  u1: Uint8Array,
};
const KEPT = 24;
const lasting = new Map();
const recent = new Map();

/** Column → typed array or JSON value. Blocks of tokens are forgotten when others have been read since. */
export function read(name) {
  const cache = name.includes("/tokens/") ? recent : lasting;
  const found = cache.get(name) ?? inflate(document.getElementById(name));
  cache.delete(name);
  cache.set(name, found);
  if (recent.size > KEPT) recent.delete(recent.keys().next().value);
  return found;
}

async function inflate(element) {
  const stream = new Blob([bytesOf(element.textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
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

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Values from their bytes, which are stored by significance. */
function numbers(planes, kind) {
  const width = Number(kind[1]);
  const count = planes.length / width;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < width; plane++) {
    const offset = plane * count;
    for (let i = 0, place = plane; i < count; i++, place += width) bytes[place] = planes[offset + i];
  }
  const values = new TYPES[kind](bytes.buffer);
  return kind === "f2" ? Float32Array.from(values, half) : values;
}

/** A half-precision float from its bits. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}
