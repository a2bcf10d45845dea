// Where the reader is: `#/run/0/iteration/12/question/33/response/7`. Every place is a link.

const PARTS = ["run", "iteration", "question", "response"];

/** The place that the address names: `run`, `iteration`, `question`, `response` (numbers) and `view` (a word). */
export function place() {
  const [path, view] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean);
  const found = { view };
  for (let i = 0; i < parts.length; i += 2) if (PARTS.includes(parts[i])) found[parts[i]] = Number(parts[i + 1]);
  return found;
}

/** The address of a place. */
export function address({ view, ...parts }) {
  const named = PARTS.filter((name) => parts[name] !== undefined).map((name) => `/${name}/${parts[name]}`);
  return `#${named.join("") || "/"}${view ? `?${view}` : ""}`;
}

/** Go to a place. */
export function go(to) {
  location.hash = address(to);
}

/** The place above: of a response its question, of that its iteration, of that the run. */
export function above(at) {
  const last = at.view ? "view" : PARTS.findLast((name) => at[name] !== undefined);
  return { ...at, [last]: undefined };
}

/** Change the address without a step in the history and without showing the place anew. */
export function replace(to) {
  history.replaceState(null, "", address(to));
}
