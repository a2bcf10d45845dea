// Where the reader is: `#/run/0/iteration/12/question/33/response/7?colour=entropy`. Every place is a link.

const NUMBERS = ["run", "iteration", "question", "response", "evaluation"];

/** The place that the address names: an object of its parts and `query`. */
export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean);
  const found = { query: Object.fromEntries(new URLSearchParams(query)) };
  for (let i = 0; i < parts.length; i += 2) {
    const value = decodeURIComponent(parts[i + 1] ?? "");
    found[parts[i]] = NUMBERS.includes(parts[i]) ? Number(value) : value;
  }
  return found;
}

/** The address of a place. */
export function address({ query = {}, ...parts }) {
  const path = Object.entries(parts)
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => `/${name}/${encodeURIComponent(value)}`)
    .join("");
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#${path || "/"}${search ? `?${search}` : ""}`;
}

/** Go to a place. */
export function go(to) {
  location.hash = address(to);
}

/** Change the address without a step in the history and without showing the place anew. */
export function replace(to) {
  history.replaceState(null, "", address(to));
}
