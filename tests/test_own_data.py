"""docs/your_own_data.md as a reader follows it: its files, its commands as printed, and the advice of errors."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.chat_models import CHATML, chat_model
from tests.helpers import forked

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "your_own_data.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for line in "\n".join(BLOCKS).replace("\\\n", " ").splitlines()
    if line.strip()
]
PROGRAMS = {"tagrpo-train": "train", "tagrpo-rephrase": "rephrase", "tagrpo-plan": "plan"}
SHORT = [
    "iterations=1", "rollout.sampling.max_new_tokens=4", "data.samples_per_prompt=2", "data.evaluation_samples=1",
    "callbacks=[pass_at_k]", "callbacks.pass_at_k.ks=[1]", "logger=csv", "export=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small chat model that knows all bytes, in place of SmolLM2."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = chat_model(CHATML)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2048,
        **sizes,
        **ends,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the page's commands name: twelve questions of one's own, and what else they read."""
    place = tmp_path_factory.mktemp("own")
    example = re.search(r"```csv\n(.*?)```", PAGE, re.DOTALL)[1]
    header, *rows = example.splitlines()
    more = [f"What is {number} plus 1?,{number + 1},1" for number in range(12 - len(rows))]
    (place / "train.csv").write_text("\n".join([header, *rows, *more]) + "\n")
    (place / "test.csv").write_text(example)
    (place / "folder").mkdir()
    (place / "folder" / "a.csv").write_text("\n".join([header, *more[:5]]))
    (place / "folder" / "b.csv").write_text("\n".join([header, *more[5:], *rows]))
    worked = [
        {"problem": f"What is {n} + 1?", "meta": {"solution": rf"It is $\boxed{{{n + 1}}}$."}}
        for n in range(2)
    ]
    (place / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in worked))
    rephrased = [{"question": "What is 1 + 1?", "answer": "2", "rephrasings": ["1 + 1 is?"]}]
    (place / "rephrased.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rephrased))
    (copy := place / "copies" / "gsm8k" / "main").mkdir(parents=True)
    for split in ("train", "test"):
        table = [{"question": f"What is {n} plus 1?", "answer": f"{n} + 1\n#### {n + 1}"} for n in range(8)]
        pq.write_table(pa.Table.from_pylist(table), copy / f"{split}.parquet")
    files = [{"split": split, "path": f"main/{split}.parquet"} for split in ("train", "test")]
    card = {"configs": [{"config_name": "main", "data_files": files}]}
    (place / "copies" / "gsm8k" / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    return place


def with_model(words, model):
    """The words of a command, with a small model of the same kind in place of SmolLM2."""
    own = ["model=pretrained", f"model.path={model}", "template=chat"]
    return [new for word in words for new in (own if word == "model=smollm2_135m" else [word])]


@pytest.mark.parametrize("words", COMMANDS, ids=shlex.join)
def test_every_command_of_the_page_runs_as_printed(words, model, folder):
    program, *arguments = words
    if program == "tagrpo-train":
        copies = ["data_path=copies"] if "data=hub" in arguments else []
        kept = {word.partition("=")[0] for word in arguments} - {
            "iterations",
            "rollout.sampling.max_new_tokens",
        }
        short = [word for word in SHORT if word.partition("=")[0] not in kept]
        number = COMMANDS.index(words)
        arguments = [*with_model(arguments, model), *short, *copies, f"hydra.run.dir=runs/{number}"]
    code, said = forked(PROGRAMS[program], *arguments, folder=folder)
    assert code == 0, said
    if program == "tagrpo-train":
        assert (folder / "runs" / str(number) / "finished").exists()


def test_the_page_has_a_command_for_each_program_and_kind_of_data():
    assert {words[0] for words in COMMANDS} == set(PROGRAMS)
    assert {word for words in COMMANDS for word in words if word.startswith("data=")} == {
        "data=table",
        "data=hub",
    }


def overrides_in(line):
    """The overrides in a line of advice; `owner/name` stands for a model."""
    return re.findall(r"(?<!\S)[a-z_.]+=[^\s,]*[^\s,.:]", line)


def test_the_advice_of_each_refusal_leads_to_a_run(model, folder):
    """Without a model, with one that does not know the words, with too large a batch; then it trains."""
    given = [
        "experiment=grpo",
        "data=table",
        "data.train.path=train.csv",
        "data.evaluation.test.path=test.csv",
    ]

    def refused(*more):
        code, said = forked("train", *given, *more, "hydra.run.dir=runs/advised", folder=folder)
        assert code == 1, said
        return said

    (advice,) = re.findall(r"Add for example (.*), or (model=pretrained .*)\.", refused())
    assert [overrides_in(line)[0] for line in advice] == ["model=smollm2_135m", "model=pretrained"]
    unknown = refused("model=starter").splitlines()
    assert sum(line.startswith("- ") for line in unknown) == 3
    lines = [overrides_in(line) for line in unknown if line.startswith("model=")]
    assert lines[0] == overrides_in(advice[0])
    for line in lines:
        known = [word for word in line if not word.startswith(("model.path", "template"))]
        own = with_model(["model=smollm2_135m"], model)
        chosen = [*own, *(word for word in known if not word.startswith("model="))]
        (batch,) = re.findall(r"Set (data\.batch_size=\d+),", refused(*chosen))
        assert batch == "data.batch_size=12"
    short = [word for word in SHORT if not word.startswith("template")]
    code, said = forked("train", *given, *chosen, batch, *short, "hydra.run.dir=runs/advised", folder=folder)
    assert code == 0, said
    assert json.loads((folder / "runs/advised/data.json").read_text())["train"]["kept"] == 12
