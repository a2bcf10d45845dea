"""The page in a real browser: what a reader clicks, types and sees."""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest
from chromium import browser, missing, ready
from nasty_texts import NASTY

from tagrpo.report.assemble import explore

pytestmark = [pytest.mark.pages, pytest.mark.skipif(bool(missing()), reason=missing())]
VISIBLE = str.maketrans(
    {c: f"U+{ord(c):04X}" for c in "\u202e\u202c\u200f\u2066\0\a\x1b\x7f\x85\u2028\ufeff"}
)
PANEL = "const panel = [...document.querySelectorAll('.panel')].find((p) => p.innerText.startsWith(arguments[0]));"
PLACE = "const box = panel.querySelector('svg').getBoundingClientRect(); return [box.x, box.y, box.width, box.height];"

CORNER = (  # the colour in which a heat map's canvas was painted, by way of a copy that expects to be read
    "const copy = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});"
    "copy.drawImage(document.querySelector('.heat canvas'), 0, 0); return [...copy.getImageData(0, 0, 1, 1).data];"
)


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


@pytest.fixture
def opened(driver, page):
    """The page of the trained run, at its overview."""
    driver.get("about:blank")
    driver.get(page.as_uri())
    ready(driver)
    yield driver
    assert [entry["message"] for entry in driver.get_log("browser")] == []


@pytest.fixture(scope="module")
def recorded(trained):
    return pd.concat([pd.read_parquet(file) for file in sorted((trained / "rollouts").glob("*.parquet"))])


def go(driver, place):
    """Go to a place of the page and wait until it is shown."""
    shown = ready(driver)
    driver.execute_script("location.hash = arguments[0]", place)
    ready(driver, shown)


def press(driver, *keys):
    """Press keys where the focus is."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def find(driver, selector):
    """Elements that a CSS selector finds."""
    return driver.find_elements("css selector", selector)


def wait(driver, condition):
    """Wait until `condition()` holds."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 60).until(lambda _: condition())


def click_point(driver, panel, share):
    """Click into a figure: `share` of the way from its left to its right, where its line is. Returns what it said."""
    from selenium.webdriver.common.action_chains import ActionChains

    driver.execute_script(f"{PANEL} panel.scrollIntoView({{block: 'center'}})", panel)
    left, top, width, height = driver.execute_script(PANEL + PLACE, panel)
    for down in range(4, 100, 4):  # until the pointer is near to a point
        actions = ActionChains(driver)
        actions.w3c_actions.pointer_action.move_to_location(
            int(left + share * width), int(top + down / 100 * height)
        )
        actions.perform()
        said = driver.execute_script(f"{PANEL} return panel.lastChild.innerText", panel)
        if ":" in said:
            actions.click().perform()
            return said
    raise AssertionError(f"no point was found in {panel}")


def test_three_clicks_from_a_figure_to_the_tokens_of_a_response(opened, recorded):
    shown = ready(opened)
    readout = click_point(opened, "no gradient", 0.55)
    assert "iteration 1" in readout
    ready(opened, shown)
    assert opened.current_url.endswith("#/run/0/iteration/1")
    assert len(find(opened, "#questions tbody tr")) == 4
    shown = ready(opened)
    find(opened, "#questions a")[2].click()
    ready(opened, shown)
    cards = find(opened, ".card")
    assert len(cards) == 16
    cards[5].click()
    wait(opened, lambda: find(opened, ".token"))
    row = int(cards[5].get_attribute("data-row"))
    theirs = recorded.iloc[row]
    assert theirs["iteration"] == 1
    assert len(find(opened, ".token")) == theirs["length"]
    assert find(opened, "[data-part=answer]")[0].text == (theirs["answer"] or "none")
    assert find(opened, "[data-part=reference]")[0].text == " or ".join(theirs["reference"])
    assert float(find(opened, "[data-part=advantage]")[0].text.replace("−", "-")) == pytest.approx(
        theirs["advantage"], rel=1e-3
    )
    find(opened, "summary")[0].click()
    wait(opened, find(opened, "[data-part=text]")[0].is_displayed)
    assert find(opened, "[data-part=text]")[0].text == theirs["response"]


def test_original_and_rephrasings_stand_side_by_side_and_keys_walk_through_them(opened, recorded):
    from selenium.webdriver.common.keys import Keys

    go(opened, "#/run/0/iteration/0/question/0")
    titles = [element.text.split("\n")[0] for element in find(opened, ".column h3")]
    assert [title.split(" ")[0:2] for title in titles[1:]] == [["rephrasing", str(n)] for n in (1, 2, 3)]
    assert titles[0].startswith("original")
    tops = {element.rect["y"] for element in find(opened, ".column")}
    assert len(tops) == 1
    places = []
    for key in (Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.ARROW_LEFT):
        press(opened, key)
        wait(opened, lambda: find(opened, ".card.chosen"))
        places.append(int(find(opened, ".card.chosen")[0].get_attribute("data-row")))
    assert places == [0, 1, 5, 4, 0]
    assert opened.current_url.endswith("response/0")
    for place in ("#/run/0/iteration/0/question/0", "#/run/0/iteration/0", "#/run/0", "#/"):
        shown = ready(opened)
        press(opened, Keys.ESCAPE)
        ready(opened, shown)
        assert opened.current_url.endswith(place)


def test_the_colour_of_a_token_is_its_entropy(opened, recorded):
    row = int(
        recorded["token_entropies"]
        .map(lambda values: 0 if values is None else max(values))
        .to_numpy()
        .argmax()
    )
    theirs = recorded.iloc[row]
    question = list(dict.fromkeys(recorded["question"])).index(theirs["question"])
    go(opened, f"#/run/0/iteration/{theirs['iteration']}/question/{question}/response/{row}")
    wait(opened, lambda: find(opened, ".token"))
    colours = opened.execute_script(
        "return [...document.querySelectorAll('.token')].map((t) => t.style.backgroundColor)"
    )
    strength = [float(c.rstrip(")").rsplit(" ", 1)[-1].rsplit(",", 1)[-1]) for c in colours]
    expected = [0.75 * min(value / 2.5, 1) for value in theirs["token_entropies"].astype(float)]
    assert strength == pytest.approx(expected, abs=0.02)
    assert max(strength) > 0.1


def test_the_heat_map_opens_cells_by_keys(opened):
    from selenium.webdriver.common.keys import Keys

    go(opened, "#/run/0?map")
    assert "12 of 12 questions" in find(opened, "[role=status]")[0].text
    press(opened, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    wait(opened, lambda: opened.current_url.endswith("#/run/0/iteration/0/question/1"))


def choose(driver, label, value):
    """Choose a value of the select with this label."""
    from selenium.webdriver.support.ui import Select

    Select(
        next(e for e in find(driver, "label") if e.text.startswith(label)).find_element("tag name", "select")
    ).select_by_value(value)


def test_the_list_filters_searches_and_sorts(opened, recorded):
    go(opened, "#/run/0?responses")
    status = find(opened, "[role=status]")[0]
    assert status.text == "192 of 192 responses"
    assert len(find(opened, "#responses tbody tr")) == 100
    find(opened, "main button")[0].click()
    assert len(find(opened, "#responses tbody tr")) == 192
    choose(opened, "Verdict", "wrong")
    choose(opened, "Prompt", "rephrased")
    expected = recorded[~recorded["correct"] & (recorded["rephrasing"] > 0)]
    assert status.text == f"{len(expected)} of 192 responses"
    choose(opened, "Sort", "length ↓")
    rows = [int(link.get_attribute("data-row")) for link in find(opened, "#responses a")]
    lengths = [recorded.iloc[row]["length"] for row in rows]
    assert lengths == sorted(expected["length"], reverse=True)[: len(rows)]
    word = recorded.iloc[rows[0]]["response"].strip()
    find(opened, "input[type=checkbox]")[0].click()
    find(opened, "input[type=search]")[0].send_keys(word)
    found = expected[expected[["question", "prompt", "answer", "response"]].apply(
        lambda row: any(word.lower() in str(text).lower() for text in row if text is not None), axis=1
    )]  # fmt: skip
    wait(opened, lambda: status.text == f"{len(found)} of 192 responses")
    shown = ready(opened)
    find(opened, f"[data-row='{rows[0]}']")[0].click()
    ready(opened, shown)
    assert opened.current_url.endswith(f"response/{rows[0]}")


def test_names_of_javascript_are_words_like_others(opened):
    go(opened, "#/run/0?responses")
    find(opened, "input[type=search]")[0].send_keys("__proto__")
    wait(opened, lambda: find(opened, "[role=status]")[0].text == "0 of 192 responses")


def paper(driver):
    """The colour of the page."""
    return driver.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_dark_and_light(opened):
    def corner():
        return "rgb({}, {}, {})".format(*opened.execute_script(CORNER)[:3])

    go(opened, "#/run/0?map")
    first = paper(opened)
    assert corner() == first
    toggle = find(opened, "#top button")[0]
    toggle.click()
    assert {first, paper(opened)} == {"rgb(255, 255, 255)", "rgb(20, 22, 26)"}
    assert corner() == paper(opened)
    toggle.click()
    assert corner() == paper(opened) == first


def test_print_is_dark_on_white_without_controls(opened):
    emulated = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
    try:
        assert paper(opened) == "rgb(255, 255, 255)"
        assert not find(opened, "#top")[0].is_displayed()
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.fixture
def narrow(driver):
    """Set the width and the height of the window; smaller ones than a browser's own are emulated."""

    def resize(width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    yield resize
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def fits(driver):
    """Whether the page is no wider than the window."""
    return driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("width", "height"), [(360, 640), (1200, 800)])
def test_the_first_screen_holds_the_answer(driver, narrow, tmp_path, write_run, width, height):
    correct = [i % 3 for i in range(60)]
    (write_run(tmp_path, "untrained", 0, correct) / "ledger.json").unlink()
    write_run(tmp_path, "ta_grpo", 0, [c + 3 + i % 2 for i, c in enumerate(correct)])
    write_run(tmp_path, "a_method_with_a_name_that_is_much_longer_than_a_phone_is_wide", 0, correct)
    narrow(width, height)
    driver.get(explore(tmp_path, output=tmp_path / "report.html").as_uri())
    ready(driver)
    sentence = find(driver, ".verdict")[0]
    assert sentence.text.startswith("ta_grpo against a_method_with_a_name")
    assert "with as many samples, on test_id: pass@1 better (+43.8 [" in sentence.text
    assert sentence.rect["y"] + sentence.rect["height"] <= driver.execute_script("return innerHeight")
    lines = [line.text for line in find(driver, ".lead li")]
    assert lines[0].startswith("ta_grpo (64 samples): pass@1 56.2 %")
    assert lines[-1] == "untrained (not trained): pass@1 12.5 %, pass@8 66.7 %."
    assert len(find(driver, ".lead .plot svg")) == 1
    assert fits(driver)


NAMES = ["a method in many words, " * 9, "x" * 200, "שיטה של למידה " * 15]


def test_names_of_200_characters_leave_the_numbers_in_sight(driver, narrow, tmp_path, write_run):
    (write_run(tmp_path, "untrained", 0, [1] * 30) / "ledger.json").unlink()
    for number, name in enumerate(NAMES):
        run = write_run(tmp_path, f"m{number}", 0, [2 + number] * 29 + [1])
        (run / "config.yaml").write_text(json.dumps({"name": name, "seed": 0}))
    page = explore(tmp_path, output=tmp_path / "report.html").as_uri()
    for width, media in ((360, ""), (1360, ""), (718, "print")):
        narrow(width, 800)
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
        driver.get("about:blank")
        driver.get(page)
        ready(driver)
        try:
            assert fits(driver)
            seconds = [cell for cell in find(driver, "tbody tr > :nth-child(2)") if cell.is_displayed()]
            assert len(seconds) > 12
            assert all(cell.rect["x"] < width - 40 for cell in seconds), width
        finally:
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_answer_on_sixty_runs_names_the_best_and_unfolds_by_keys(driver, narrow, tmp_path, write_run):
    from selenium.webdriver.common.keys import Keys

    (write_run(tmp_path, "untrained", 0, [1] * 9) / "ledger.json").unlink()
    for method in range(12):
        for seed in range(5):
            write_run(
                tmp_path, f"method_{method:02d}", seed, [min(8, 1 + method % 7 + i % 2) for i in range(9)]
            )
    narrow(360, 640)
    driver.get(explore(tmp_path, output=tmp_path / "report.html").as_uri())
    ready(driver)
    assert fits(driver)
    shown = [line for line in find(driver, ".lead li") if line.is_displayed()]
    assert len(find(driver, ".lead li")) == 13
    assert shown[0].text.startswith("method_06 (64 samples)")
    assert len(shown) == 5
    find(driver, ".lead summary")[0].send_keys(Keys.ENTER)
    wait(driver, lambda: all(line.is_displayed() for line in find(driver, ".lead li")))
    assert len(find(driver, "#top option")) == 62


CUT_OFF = """
const cut = [];
const whole = (element) => {
  const box = element.getBoundingClientRect();
  return box.left >= -0.5 && box.right <= innerWidth + 0.5;
};
if (document.documentElement.scrollWidth > innerWidth) cut.push("the page");
for (const box of document.querySelectorAll(".scroll")) if (box.scrollWidth > box.clientWidth) cut.push(box.innerText);
for (const part of document.querySelectorAll("table, .plot, .legend > span, .verdict, .lead li")) {
  if (!whole(part)) cut.push(part.innerText);
}
for (const cell of document.querySelectorAll("tbody th, tbody td")) {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const shown = [...range.getClientRects()];
  const inside = shown.every((box) => box.left >= 0 && box.right <= innerWidth + 0.5);
  const seen = cell.innerText.trim() ? shown.length && inside : true;
  if (!seen || (cell.textContent.trim() && !cell.innerText.trim())) cut.push(cell.textContent);
}
for (const svg of document.querySelectorAll(".plot svg")) {
  const frame = svg.getBoundingClientRect();
  for (const text of svg.querySelectorAll("text")) {
    const box = text.getBoundingClientRect();
    const beside = box.left < frame.left - 1 || box.right > frame.right + 1;
    if (beside || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) cut.push(`${text.textContent} of a plot`);
  }
  const names = [...svg.querySelectorAll("text.axis:not(.upright), text.upright")].map((text) => text.textContent);
  if (names.length < 2 || !names.every(Boolean)) cut.push("an axis without a name");
  if (Math.abs(frame.width - svg.viewBox.baseVal.width) > 1) cut.push("a plot that is scaled");
}
return cut;
"""


def settled(driver):
    """Wait until tables and plots have been fitted to the width, which takes two frames."""
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50)));"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_no_table_or_plot_is_cut_off_and_no_number_hidden(
    driver, narrow, trained, many_methods, width, scheme
):
    narrow(width, 900)
    emulated = {"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
    driver.get("about:blank")
    driver.get(many_methods.as_uri())
    ready(driver)
    try:
        assert paper(driver) == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 22, 26)"}[scheme]
        names = driver.execute_script(
            "return [...document.querySelectorAll('#top option')].map((o) => o.text)"
        )
        number = names.index("small") - 1
        places = [
            "#/",
            f"#/run/{number}",
            f"#/run/{number}/iteration/1",
            f"#/run/{number}?responses",
            f"#/run/{number}?map",
        ]
        for place in places:
            if place != "#/":
                go(driver, place)
            settled(driver)
            assert driver.execute_script(CUT_OFF) == [], place
        assert [entry["message"] for entry in driver.get_log("browser")] == []
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@pytest.fixture(scope="module")
def many_methods(trained, tmp_path_factory, write_run):
    """The page of ten methods on three splits, and of the trained run with its recorded responses."""
    root = tmp_path_factory.mktemp("many")
    shutil.copytree(trained, root / "small" / "seed0")
    test = json.loads((root / "small" / "seed0" / "test.json").read_text())
    count = test["splits"]["test_id"]["num_questions"]
    ids = [row["id"] for row in test["splits"]["test_id"]["questions"]]
    for number in range(9):
        run = write_run(
            root,
            f"a_method_of_some_length_{number}",
            0,
            [min(4, i % 3 + number % 3) for i in range(count)],
            n=4,
        )
        content = json.loads((run / "test.json").read_text())
        for row, id in zip(content["splits"]["test_id"]["questions"], ids, strict=True):
            row["id"] = id
        content["splits"]["test_id"]["pass_at_k"].pop("8", None)
        (run / "test.json").write_text(json.dumps(content))
    (run / "ledger.json").unlink()
    return explore(root, output=root / "report.html")


def test_a_run_opens_on_its_curves_and_on_three_telling_questions(opened, recorded):
    go(opened, "#/run/0")
    assert [link.text for link in find(opened, "#top nav a")] == [
        "Overview",
        "Curves",
        "Responses",
        "Settings",
    ]
    assert find(opened, "#top [aria-current=page]")[0].text == "Curves"
    curve = find(opened, "main figure")[0]
    assert curve.rect["y"] < find(opened, ".telling")[0].rect["y"]
    titles = [title.text for title in find(opened, ".telling h3")]
    assert titles == ["Rescued by pooling", "Lost in training", "Never solved"]
    rescued = find(opened, ".telling article")[0]
    wordings = rescued.find_elements("css selector", ".wording")
    assert [w.find_element("css selector", "h4").text.split()[0] for w in wordings] == ["original"] + [
        "rephrasing"
    ] * 3
    prompts = [w.find_element("css selector", ".text").text for w in wordings]
    rows = recorded[recorded["prompt"].str.strip().isin(prompts)]
    assert rows["question"].nunique() == 1
    original = rows[rows["rephrasing"] == 0]
    assert original["reward"].nunique() == 1
    assert rows["reward"].nunique() > 1
    shown = ready(opened)
    rescued.find_elements("css selector", "p a")[0].click()
    ready(opened, shown)
    assert find(opened, "main h2")[0].text == rows["question"].iloc[0]


def test_the_heat_map_is_offered_where_questions_are_seen_again(driver, trained, tmp_path):
    folder = tmp_path / "again"
    shutil.copytree(trained, folder)
    file = sorted((folder / "rollouts").glob("*.parquet"))[-1]
    again = pd.read_parquet(file).assign(iteration=9)
    again.to_parquet(file.with_name("000009-0.parquet"))
    driver.get(explore(folder, output=tmp_path / "report.html").as_uri())
    ready(driver)
    go(driver, "#/run/0")
    assert "Heat map" in [link.text for link in find(driver, "#top nav a")]


def test_sixty_four_methods_have_sixty_four_looks(driver, page):
    driver.get(page.as_uri())
    ready(driver)
    looks = driver.execute_async_script(
        "const done = arguments[0]; import('report/plot').then(({ lookOf }) =>"
        "done(Array.from({ length: 64 }, (_, i) => JSON.stringify(lookOf(i)))));"
    )
    assert len(set(looks)) == 64
    assert len({json.dumps({**json.loads(look), "marker": ""}) for look in looks[:32]}) == 32, (
        "without markers"
    )


def test_no_place_is_wider_than_a_phone(opened, narrow):
    narrow(360, 640)
    question = "#/run/0/iteration/0/question/0"
    for place in (
        "#/run/0",
        "#/run/0?map",
        "#/run/0/iteration/0",
        question,
        f"{question}/response/0",
        "#/run/0?responses",
        "#/run/0?settings",
    ):
        go(opened, place)
        assert fits(opened), place


def test_no_place_is_wider_than_paper(opened, narrow):
    narrow(718, 1000)  # A4 in CSS pixels without its margins
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for place in (
            "#/",
            "#/run/0/iteration/0",
            "#/run/0/iteration/0/question/0/response/0",
            "#/run/0?responses",
        ):
            go(opened, place)
            wait(opened, lambda: find(opened, "table, .token"))
            assert fits(opened), place
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_nothing_is_loaded_from_anywhere(opened):
    go(opened, "#/run/0/iteration/0/question/0/response/0")
    loaded = opened.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert not [name for name in loaded if not name.startswith("data:")]


def test_nasty_texts_are_shown_as_text(driver, hostile_page):
    driver.get(hostile_page.as_uri())
    ready(driver)
    assert driver.title == "Results of </title><script>1</script>"
    assert "of lone U+D800 surrogate </script> at pass@1" in find(driver, ".verdict")[0].text
    for row, text in enumerate(NASTY):
        go(driver, f"#/run/0/iteration/0/question/0/response/{row}?turn={row}")
        wait(driver, lambda: find(driver, ".tokens"))
        driver.execute_script("document.querySelector('details').open = true")
        wait(driver, lambda: find(driver, "[data-part=text]"))
        assert find(driver, "[data-part=text]")[0].get_property("textContent") == text.translate(VISIBLE)
    assert find(driver, "h2")[0].get_property("textContent") == NASTY[1]
    assert not find(driver, "main img, main script")
    assert driver.title == "Results of </title><script>1</script>"
    assert [entry["message"] for entry in driver.get_log("browser")] == []
