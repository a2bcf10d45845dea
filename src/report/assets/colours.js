// Colours that people with any colour vision tell apart (Okabe and Ito; cividis), and those of the theme.

const METHODS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a6d3b", "#999999"];
export const CAUSES = {
  gradient: "#009E73",
  all_right: "#56B4E9",
  all_wrong: "#D55E00",
  truncated: "#E69F00",
  unpooled: "#CC79A7",
  masked: "#999999",
  clipped: "#8a6d3b",
  other: "#F0E442",
};
const SHARES = [
  [0, 34, 78],
  [66, 78, 108],
  [125, 124, 120],
  [187, 173, 108],
  [255, 234, 70],
];

/** The colour of a group of series: a cause, or the number of a method. */
export const colourOf = (group) => CAUSES[group] ?? METHODS[group % METHODS.length];

/** A share of 0…1, from blue to yellow. */
export function ofShare(share) {
  const place = Math.min(Math.max(share, 0), 1) * (SHARES.length - 1);
  const left = Math.min(Math.floor(place), SHARES.length - 2);
  const mixed = SHARES[left].map((part, i) => Math.round(part + (place - left) * (SHARES[left + 1][i] - part)));
  return `rgb(${mixed.join(" ")})`;
}

/** The background of a token: nothing at 0, strongest at `limit` and above. */
export function ofToken(value, limit) {
  if (!Number.isFinite(value)) return "transparent";
  return `rgb(230 120 0 / ${Math.round(75 * Math.min(Math.max(value / limit, 0), 1))}%)`;
}

const probe = document.head.appendChild(document.createElement("i"));

/** A colour of the style sheet, as it is in the theme of the moment. */
export function themed(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
