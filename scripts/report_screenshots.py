"""The pictures of docs/report.md, from the page of real runs.

    make demo && tagrpo-report runs/demo && python scripts/report_screenshots.py runs/demo/report.html

Needs Chromium and selenium, as the tests of the page do.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from tagrpo.report import read_blocks

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "analysis" / "page")]

from chromium import browser, ready  # noqa: E402

PLACES = {
    "overview": ("#/", None),
    "heatmap": ("#/run/{first}?colour=cause", None),
    "question": ("#/run/{run}/iteration/{iteration}/question/{question}", ".card.right"),
    "responses": ("#/run/{run}/responses/?filter=wrong+advantage%3E-0.5&sort=-entropy", None),
}
COLOURS = 256


def main() -> None:
    """Open the places in light, the question in dark too, and save what they look like."""
    page = Path(sys.argv[1]).resolve()
    folder = ROOT / "docs" / "report"
    folder.mkdir(exist_ok=True)
    blocks = read_blocks(page)
    run = max((about["responses"], i) for i, about in enumerate(blocks["index"]["index"]["runs"]))[1]
    first = min(i for i, about in enumerate(blocks["index"]["index"]["runs"]) if about["responses"])
    cells = blocks[f"run{run}/cells"]
    share = cells["correct"] / cells["samples"]
    cell = len(share) // 2 + int(np.abs(share[len(share) // 2 :] - 0.4).argmin())
    iteration, question = int(cells["column"][cell]), int(cells["question"][cell])
    with browser(1240, 820) as driver:
        for theme in ("light", "dark"):
            for name, (place, click) in PLACES.items():
                if theme == "dark" and name != "question":
                    continue
                driver.get("about:blank")
                driver.get(page.as_uri())
                ready(driver)
                driver.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
                where = place.format(run=run, first=first, iteration=iteration, question=question)
                if place != "#/":
                    driver.execute_script("location.hash = arguments[0]", where)
                    ready(driver, 1)
                if click:
                    driver.find_elements("css selector", click)[0].click()
                time.sleep(1.5)  # figures are drawn when they come into view
                path = folder / (f"{name}.png" if theme == "light" else f"{name}_dark.png")
                driver.save_screenshot(str(path))
                Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
                print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
