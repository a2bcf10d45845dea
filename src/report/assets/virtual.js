// A list that has only the rows on screen in the document, so that 100,000 scroll as well as ten.

import { h } from "report/dom";

/**
 * A scrolling list of rows of one height.
 *
 * `render(index)` makes the element of a row, `open(index)` is called when one is clicked or entered.
 * Returns its `element`, `update(count)` after the rows have changed, and `move(step)` for keys.
 */
export function virtualList(height, render, open) {
  const inner = h("div", { class: "rows" });
  const element = h("div", { class: "list", tabindex: 0, role: "listbox", "aria-label": "responses" }, inner);
  let count = 0,
    chosen = -1;

  function draw() {
    const first = Math.max(Math.floor(element.scrollTop / height) - 4, 0);
    const last = Math.min(Math.ceil((element.scrollTop + element.clientHeight) / height) + 4, count);
    inner.replaceChildren(...Array.from({ length: Math.max(last - first, 0) }, (_, i) => row(first + i)));
  }

  function row(index) {
    const shown = render(index);
    shown.classList.add("row");
    shown.classList.toggle("chosen", index === chosen);
    shown.setAttribute("role", "option");
    shown.style.transform = `translateY(${index * height}px)`;
    shown.addEventListener("click", () => open(index));
    return shown;
  }

  function move(step) {
    if (!count) return;
    chosen = Math.min(Math.max(chosen + step, 0), count - 1);
    const top = chosen * height;
    if (top < element.scrollTop) element.scrollTop = top;
    if (top + height > element.scrollTop + element.clientHeight)
      element.scrollTop = top + height - element.clientHeight;
    draw();
  }

  let waiting = false;
  element.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  });
  new ResizeObserver(draw).observe(element);
  return {
    element,
    move,
    enter: () => {
      if (chosen >= 0) open(chosen);
    },
    update(rows) {
      count = rows;
      chosen = Math.min(chosen, count - 1);
      inner.style.height = `${count * height}px`;
      draw();
    },
  };
}
