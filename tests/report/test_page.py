"""The page holds what the run recorded, to the digit, and nothing in it is HTML that a model wrote."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from nasty_texts import NASTY

from tagrpo.metrics.functional import CAUSES
from tagrpo.report.assemble import explore
from tagrpo.report.blocks import block
from tests.helpers import read_blocks

NUMBERS = ("reward", "advantage", "length", "entropy", "ratio", "kl", "clipped", "logprob", "score_logprob")


@pytest.fixture(scope="module")
def blocks(page):
    return read_blocks(page)


@pytest.fixture(scope="module")
def recorded(trained):
    files = sorted((trained / "rollouts").glob("*.parquet"))
    return {file.name: pd.read_parquet(file) for file in files}


def texts_of(blocks, prefix="run0"):
    """Row → text and number of tokens, from the blocks of tokens, as the browser puts it together."""
    found = {}
    for name in (name for name in blocks if name.startswith(f"{prefix}/tokens/")):
        rows = blocks[name]["rows"].tolist()
        assert name == f"{prefix}/tokens/{rows[0]}"
        texts = blocks[name].get("texts", [None] * len(rows))
        for row, tokens, text in zip(rows, blocks[name]["tokens"], texts, strict=True):
            joined = "".join(token for token in tokens if isinstance(token, str))
            found[row] = (joined if text is None else text, len(tokens))
    return found


def test_every_scalar_of_the_log_is_in_the_page_to_the_bit(blocks, trained):
    log = pd.read_csv(trained / "metrics.csv").dropna(subset=["rollout/reward"])
    found = blocks["run0/iterations"]
    assert found["iteration"].tolist() == log["step"].tolist() == [0, 1, 2]
    assert set(found) == {"iteration", *log} - {"step"}
    for name in set(log) - {"step"}:
        np.testing.assert_array_equal(found[name], log[name].to_numpy(), err_msg=name)


def test_the_explorer_counts_what_training_logged(blocks, trained):
    log = pd.read_csv(trained / "metrics.csv").dropna(subset=["rollout/reward"]).set_index("step")
    cells, rows = (pd.DataFrame(blocks[f"run0/{name}"]) for name in ("cells", "rows"))
    share = cells.groupby("column")[["correct", "samples"]].sum()
    assert (share["correct"] / share["samples"]).tolist() == pytest.approx(log["rollout/correct"].tolist())
    means = rows.groupby("iteration")[["reward", "length"]].mean()
    assert means["reward"].tolist() == pytest.approx(log["rollout/reward"].tolist(), abs=1e-6)
    assert means["length"].tolist() == pytest.approx(log["rollout/length"].tolist())
    causes = cells["cause"]
    for cause in CAUSES:
        percentage = 100 * (causes == cause).groupby(cells["column"]).mean()
        assert percentage.tolist() == pytest.approx(log[f"zero_gradient/{cause}"].tolist()), cause
    gradient = 100 * (causes == "gradient").groupby(cells["column"]).mean()
    assert (100 - gradient).tolist() == pytest.approx(log["zero_gradient/without_gradient"].tolist())


def test_ten_random_responses_are_those_of_the_parquet(blocks, recorded):
    rows, names, texts = blocks["run0/rows"], blocks["run0/names"], texts_of(blocks)
    terms = [name for name in rows if name.startswith("reward_term/")]
    assert terms, "the run has shaped rewards"
    assert len(texts) == len(rows["line"]) == sum(map(len, recorded.values())) == 3 * 4 * 4 * 4
    for row in random.Random(0).sample(range(len(texts)), 10):
        theirs = recorded[names["file"][rows["file"][row]]].iloc[rows["line"][row]]
        for name in (*NUMBERS, *terms):
            assert rows[name][row] == pytest.approx(np.float32(theirs[name]), nan_ok=True), name
        for name in ("question", "prompt", "answer", "template"):
            assert names[name][rows[name][row]] == theirs[name], name
        assert names["references"][rows["question"][row]] == theirs["reference"].tolist()
        assert rows["rephrasing"][row] == theirs["rephrasing"]
        assert bool(rows["correct"][row]) == theirs["correct"]
        assert bool(rows["truncated"][row]) == theirs["truncated"]
        assert bool(rows["masked"][row]) == theirs["masked"]
        assert texts[row] == (theirs["response"], len(theirs["token_ids"]))


def test_tokens_have_their_logprobs_and_entropies_in_three_digits(blocks, recorded):
    rows, names = blocks["run0/rows"], blocks["run0/names"]
    tokens = blocks["run0/tokens/0"]
    ours = np.split(tokens["logprobs"].astype(float), rows["length"].cumsum()[:-1])
    entropies = np.split(tokens["entropies"].astype(float), rows["length"].cumsum()[:-1])
    scored = 0
    for row in range(len(ours)):
        theirs = recorded[names["file"][rows["file"][row]]].iloc[rows["line"][row]]
        np.testing.assert_allclose(ours[row], theirs["token_logprobs"], rtol=1e-3, atol=1e-6)
        if theirs["token_entropies"] is None:
            assert np.isnan(entropies[row]).all()
            continue
        scored += 1
        np.testing.assert_array_equal(entropies[row], theirs["token_entropies"].astype(float))
        assert entropies[row].mean() == pytest.approx(theirs["entropy"], rel=2e-3)
    assert scored > len(ours) / 2


def test_cells_are_the_questions_of_an_iteration_and_their_rows(blocks):
    cells, rows = blocks["run0/cells"], blocks["run0/rows"]
    for cell in range(len(cells["first"])):
        members = slice(cells["first"][cell], cells["first"][cell] + cells["samples"][cell])
        assert set(rows["iteration"][members]) == {cells["column"][cell]}
        assert set(rows["question"][members]) == {cells["question"][cell]}
        assert (np.diff(rows["rephrasing"][members].astype(int)) >= 0).all()
    assert cells["samples"].sum() == len(rows["line"])


def test_the_figures_of_evaluations_are_those_of_the_files(blocks, trained):
    files = [*sorted((trained / "evaluations").glob("validation-*.json")), trained / "test.json"]
    theirs = [json.loads(file.read_text()) for file in files]
    points = {
        e["iteration"]: e["splits"]["test_id"]["pass_at_k"]["1"] for e in theirs if "test_id" in e["splits"]
    }
    figures = {figure["title"]: figure for figure in blocks["index"]["index"]["figures"]}
    curve = figures["Pass@k"]["panels"][0]["series"][0]
    assert curve["y"][0] == pytest.approx(100 * points[3]["value"])
    during = figures.get("Evaluations during training", {"panels": []})["panels"]
    assert [panel["series"][0]["x"] for panel in during] == ([sorted(points)] if len(points) > 1 else [])


def test_responses_beyond_the_limit_keep_their_numbers(trained, tmp_path):
    empty = len((explore(trained, output=tmp_path / "all.html")).read_bytes())
    page = explore(trained, output=tmp_path / "less.html", megabytes=(empty - 2000) / 1e6)
    blocks = read_blocks(page)
    about = blocks["index"]["index"]["runs"][0]
    texts = texts_of(blocks)
    assert page.stat().st_size <= empty - 2000
    assert len(texts) == about["kept"] < about["responses"] == len(blocks["run0/rows"]["line"]) == 192
    kept = pd.Series(list(texts)).map(lambda row: int(blocks["run0/rows"]["prompt"][row]))
    assert kept.nunique() == len(np.unique(blocks["run0/rows"]["prompt"])), "every prompt keeps some"


class Tags(HTMLParser):
    """The tags of a page, with the attributes that load something."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.loads = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]


def test_nothing_that_a_model_wrote_is_html(hostile_page, page):
    ours, theirs = (Tags(path.read_text()) for path in (page, hostile_page))
    scripts = len(read_blocks(page)), len(read_blocks(hostile_page))
    assert ours.seen.count("script") - scripts[0] == theirs.seen.count("script") - scripts[1] == 2
    assert not ours.loads + theirs.loads
    assert not {"img", "b"} & set(theirs.seen)
    text = hostile_page.read_text()
    assert "owned" not in text
    assert "\0" not in text
    assert re.search(r"default-src 'none'; script-src 'nonce-[0-9a-f]{32}'", text)


def test_hostile_texts_come_back_as_they_were(hostile_page):
    blocks = read_blocks(hostile_page)
    assert [text for text, _ in texts_of(blocks).values()] == NASTY
    assert blocks["index"]["index"]["runs"][0]["splits"] == ["lone \ud800 surrogate </script>"]
    (sentence,) = blocks["index"]["index"]["answer"]["sentences"]
    assert "of lone \ud800 surrogate </script> at pass@1" in sentence
    names = blocks["run0/names"]
    assert names["question"] == [NASTY[1]]
    assert [names["answer"][i] for i in blocks["run0/rows"]["answer"]] == [*NASTY[::-1][1:], None]


@pytest.mark.parametrize(
    ("given", "kept"), [("f8", "f8"), ("f4", "f4"), ("i4", "i4"), ("i8", "i4"), ("?", "u1")]
)
def test_blocks_give_numbers_back(given, kept, tmp_path):
    values = np.random.default_rng(0).normal(0, 100, 257).astype(given)
    page = tmp_path / "page.html"
    page.write_text(block("a/b", {"x": values, "words": ["\ud800", "<b>", None], "none": values[:0]}))
    found = read_blocks(page)["a/b"]
    assert found["x"].dtype == np.dtype(kept)
    np.testing.assert_array_equal(found["x"], values)
    assert found["words"] == ["\ud800", "<b>", None]
    assert len(found["none"]) == 0
