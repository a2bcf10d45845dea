"""The table of methods says what the configuration does."""

from __future__ import annotations

import re
from pathlib import Path

from hydra import compose, initialize_config_module

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| (\d+) \| (\d+) \| (\w+) \| (\w+) \|", re.MULTILINE)


def test_the_table_of_methods_is_the_set_of_experiments():
    rows = ROW.findall((ROOT / "README.md").read_text())
    assert sorted(row[0] for row in rows) == sorted(path.stem for path in (ROOT / "configs/experiment").glob("*.yaml"))
    for name, rephrasings, samples, pool, anchor in rows:
        with initialize_config_module("tagrpo.configs", version_base="1.3"):
            cfg = compose("train", [f"experiment={name}"])
        group_by = cfg.advantage.get("group_by", "question")
        found = (cfg.data.num_rephrasings, cfg.data.samples_per_prompt, group_by, cfg.policy.anchor)
        assert found == (int(rephrasings), int(samples), pool, anchor), name
        assert (cfg.rollout.dynamic_sampling is not None) == (name == "dapo" or name.endswith("_ds"))


def test_every_picture_and_page_that_the_readme_shows_exists():
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
