"""What a command says to those who use it wrongly: at once, naming the setting, before anything is loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import composition, forked_commands
from tests.forked_commands import LOADED
from tests.helpers import in_fork

TESTS = Path(__file__).parent
TRAIN, EVAL, COMPARE, REPHRASE = "tagrpo-train", "tagrpo-eval", "tagrpo-compare", "tagrpo-rephrase"
OWN = [
    "data=jsonl",
    "model=starter",
    "data.train.path=good.jsonl",
    "data.evaluation.test.path=good.jsonl",
    "data.num_rephrasings=0",
]
GRPO = "experiment=grpo"

# command, arguments, what its message must contain. Of a check one use or two: settings/test_config.py has the others.
AT_ONCE = [
    (TRAIN, ["policy.anchr=own"], "policy.anchr"),
    (TRAIN, ["experiment=ta_grop"], "ta_grpo"),
    (TRAIN, ["data=arithmetik"], "arithmetic_hard"),
    (TRAIN, ["nothing=1"], "nothing"),
    (TRAIN, ["data.batch_size=many"], "data.batch_size to be a whole number.*, but got 'many'"),
    (
        TRAIN,
        ["hydra.searchpath=[file://outside]", "data=mine", "data.batch_size=many"],
        "data.batch_size .*got 'many'",
    ),
    (TRAIN, ["optimizer.lr=fast"], "optimizer.lr to be a number"),
    (TRAIN, ["iterations=-1"], "iterations to be a whole number"),
    (TRAIN, ["seed=-1"], "Expected seed "),
    (TRAIN, ["loss.kl_coef=.inf"], "Expected loss.kl_coef "),
    (TRAIN, ["+trainer.precision=bf16-mixed"], "policy.compute_dtype"),
    (TRAIN, ["name=../../evil"], "`name`"),
    (TRAIN, ["=5"], "name=value"),
    (TRAIN, ["rollout.engine=null"], "Expected rollout.engine "),
    (TRAIN, ["trainer.strategy=ddp_spawn"], "trainer.strategy .*strategy=fsdp2"),
    (TRAIN, ["resume=3"], "Expected resume "),
    (COMPARE, ["methods=[grpo]", "workers=0"], "Expected workers "),
    (TRAIN, ["hydra.run.dir=good.jsonl/run"], "hydra.run.dir"),
    (TRAIN, ["test=maybe"], "test to be true or false"),
    (COMPARE, ["methods=grpo"], "methods to be a list"),
    (TRAIN, ["data=jsonl"], "data.train.path=…"),
    (TRAIN, ["data=jsonl", "data.train.path=good.jsonl"], "data.evaluation.test.path=…"),
    (TRAIN, [word for word in OWN if word != "model=starter"], "model=smollm2_135m "),
    (EVAL, [word for word in OWN if word != "model=starter"], "model=pretrained model.path="),
    (TRAIN, ["data=hub", "data.train.dataset=owner/name"], "model=smollm2_135m "),
    (TRAIN, [*OWN, "data.train.path=none.jsonl"], "none.jsonl.* data.train.path"),
    (TRAIN, [*OWN, "data.evaluation.test.path=none.jsonl"], "none.jsonl.* data.evaluation.test.path"),
    (TRAIN, ["data=gsm8k", "data_path=nowhere"], "nowhere.* data_path"),
    (TRAIN, ["data.train=null"], "data.train is null"),
    (TRAIN, ["data.batch_size=1"], "Raise data.batch_size"),
    (TRAIN, ["data=countdown", "model.path=unmade"], "model.path"),
    (TRAIN, ["model.path=run"], "model.path=run/model"),
    (TRAIN, ["rollout=vllm"], "rollout=(vllm_cpu|transformers)"),
    (TRAIN, ["resume=none.ckpt"], "none.ckpt.* resume"),
    (TRAIN, ["hydra.run.dir=run"], "another name="),
    (TRAIN, ["+logger.wandb.api_key=sk-1234567890abcdef"], "logger.wandb.api_key"),
    (EVAL, ["protocol=ta_gpro"], "ta_grpo"),
    (EVAL, ["model=pretrained"], "model.path=…"),
    (EVAL, ["checkpoint=none.ckpt"], "none.ckpt.* checkpoint"),
    (EVAL, ["diagnose=nowhere"], "`diagnose` .*nowhere has no config.yaml"),
    (EVAL, ["callbacks.pass_at_k.ks=[64]"], "callbacks.pass_at_k.ks .*data.evaluation_samples"),
    (COMPARE, [], "compare=demo"),
    (COMPARE, ["compare=dmo"], "demo"),
    (COMPARE, ["methods=[grop]"], "(?s)methods.grop.*`methods`"),
    (COMPARE, ["methods=[grpo]", "overrides=['data.batch=8']"], "(?s)data.batch.*`overrides`"),
    (COMPARE, ["methods=[grpo]", "overrides=['test=false']"], "methods.grpo .*test=false.*`overrides`"),
    (
        COMPARE,
        ["--config-dir", "outside", "methods={a: ['data=mine']}", "overrides=['test=false']"],
        "methods.a .*test=",
    ),
    (COMPARE, ["methods={a: {overides: ['seed=1']}}"], "methods.a .*overides"),
    (COMPARE, ["methods=[grpo]", "root=full"], "`root`"),
    (REPHRASE, ["output=out.jsonl"], "input=questions.jsonl"),
    (REPHRASE, ["input=none.jsonl", "output=out.jsonl"], "none.jsonl.* `input`"),
    (REPHRASE, ["input=good.jsonl", "rephraser.model=m"], "output=rephrased.jsonl"),
    (REPHRASE, ["input=good.jsonl", "output=out.jsonl"], "rephraser.model=…"),
    ("tagrpo-export", ["none", "model"], "none.* `checkpoint`"),
    ("tagrpo-export", [], "checkpoint, folder"),
    ("tagrpo-diff", ["experiment=grop", "experiment=grpo"], "grpo"),
]
AT_ONCE_TOO = [
    (TRAIN, ["iterations=null"], "iterations is null and trainer.max_epochs is -1. Set one"),
    (TRAIN, ["seed=nan"], "Expected seed "),
    (TRAIN, ["data.batch_size=null"], "Expected data.batch_size "),
    (TRAIN, ["optimizer.lr=.nan"], "Expected optimizer.lr "),
    (TRAIN, ["optimizer.weight_decay=nan"], "optimizer.weight_decay "),
    (TRAIN, ["+trainer.gradient_clip_val=1"], "policy.max_grad_norm"),
    (TRAIN, ["+trainer.accumulate_grad_batches=2"], "policy.token_budget"),
    (TRAIN, ["optimizer=[1,2]"], "optimizer to be the name"),
    (TRAIN, ["logger=[csv,null]"], "logger to be the name"),
    (TRAIN, ["recipe={a: 1}"], "recipe to be the name"),
    (TRAIN, ["trainer.max_steps=[1,2]"], "Expected trainer.max_steps "),
    (TRAIN, ["experiment=pass_at_k", "advantage.k={a: 1}"], "Expected advantage.k "),
    (TRAIN, ["reward.cpu_seconds=1e23", "reward=math"], "Expected reward.cpu_seconds "),
    (TRAIN, ["strategy=fsdp2", "strategy.timeout.minutes=1e23"], "Expected strategy.timeout.minutes "),
    (TRAIN, ["callbacks=5"], "callbacks to be the name"),
    (TRAIN, ["rollout.sampling=3"], "Expected rollout.sampling "),
    (TRAIN, ["iterations=99999999999999999999"], "iterations .*2147483647"),
    (TRAIN, ["threads=100000"], "Expected threads "),
    (TRAIN, ["test=2"], "test to be true or false"),
    (TRAIN, ["resume="], "Expected resume "),
    (REPHRASE, ["input=good.jsonl", "output=x.jsonl", "rephraser.model=m", "limit=0"], "Expected limit "),
    (EVAL, ["data.evaluation_samples=.nan"], "data.evaluation_samples "),
    ("tagrpo-plan", ["gpus_per_node=0"], "gpus_per_node "),
    (TRAIN, ["export=[a]"], "export to be true or false"),
    (TRAIN, ["data.batch_size=[8]"], r"data.batch_size to be .*\[8\]"),
    (TRAIN, ["optimizer.lr={a: 1}"], "optimizer.lr to be "),
    (TRAIN, ["data.train=3"], "data.train to be "),
    (TRAIN, ["data.evaluation=3"], "data.evaluation to be "),
    (TRAIN, ["data.evaluation.test_id=3"], "data.evaluation.test_id to be "),
    (TRAIN, ["rollout.dynamic_sampling=true"], "rollout.dynamic_sampling to be "),
    (TRAIN, ["callbacks.pass_at_k.ks=8"], "callbacks.pass_at_k.ks to be a list"),
    (TRAIN, ["callbacks.pass_at_k.ks=[many]"], "callbacks.pass_at_k.ks to be a list"),
    (EVAL, ["exact=maybe"], "exact to be true or false"),
    (EVAL, ["diagnose=3"], "diagnose to be a text"),
    (COMPARE, ["compare=demo", "launcher.timeout_min=long"], "launcher.timeout_min to be "),
    (
        REPHRASE,
        ["input=good.jsonl", "output=x.jsonl", "rephraser.model=m", "dry_run=maybe"],
        "dry_run to be true",
    ),
    ("tagrpo-plan", ["gpus.h100.memory=much"], "gpus.h100.memory to be a number"),
    (TRAIN, ["data=gsm8k", "data_path=gsm8k", "data.train.rephrasings=no.jsonl"], "data.train.rephrasings"),
    (TRAIN, ["resume=empty"], "empty.* resume"),
    (COMPARE, ["methods=[grpo]", "seeds=3"], "seeds to be a list"),
]
"""More uses that the same checks refuse."""
BEFORE_THE_MODEL = [
    (TRAIN, ["trainer=gpu"], "Use trainer=cpu"),
    (TRAIN, [*OWN, "data.train.path=sets"], "sets: .* data.train.path"),
    (EVAL, ["data=benchmarks", "data_path=sets"], r"sets/amc\.jsonl"),
    (TRAIN, ["model.path=no/such/model/here"], "model.path"),
    (TRAIN, ["policy.token_budget=10"], "Raise policy.token_budget"),
    (TRAIN, ["rollout.sampling.max_new_tokens=99999"], "rollout.sampling.max_new_tokens"),
    (TRAIN, ["data.train.size=4"], "data.batch_size=8 .*Set data.batch_size=4"),
    (
        TRAIN,
        [*OWN, GRPO, "data.train.path=bad.jsonl"],
        r"(?s)bad.jsonl, row 2: .*bad.jsonl, row 4: .*and 93 more",
    ),
    (
        TRAIN,
        [*OWN, GRPO, "data.batch_size=2", "reward=countdown"],
        r"(?s)good.jsonl, row 1, question good-1.*got .1..*good-8",
    ),
    (
        EVAL,
        [*OWN, "reward=shortest_path"],
        r"good.jsonl, row 1, question good-1.*such as `right down`, but got '1'",
    ),
    (TRAIN, [*OWN, "data.num_rephrasings=3", "data.batch_size=2"], "set data.num_rephrasings=0"),
    (TRAIN, ["policy.anchor=q0"], "policy.anchor"),
    (TRAIN, ["rollout.sampling.top_p=2"], "rollout.sampling"),
    (TRAIN, ["policy.schedule=cosin"], "policy.schedule .*cosine_with_min_lr"),
    (TRAIN, ["optimizer=null"], "optimizer to be one of adamw"),
    (TRAIN, ["+lora.dropout=0.1", "lora=default"], "(?s)dropout.*lora"),
    (EVAL, ["checkpoint=run"], "checkpoint"),
    (COMPARE, ["methods=[grpo]", "gpus_per_run=1", "workers=99"], "gpus_per_run"),
    ("tagrpo-report", ["none"], "none"),
]
BEFORE_THE_MODEL_TOO = [
    (
        EVAL,
        ["rollout.evaluation_sampling.max_new_tokens=99999"],
        "rollout.evaluation_sampling.max_new_tokens",
    ),
    (TRAIN, ["data.max_prompt_tokens=3"], "data.max_prompt_tokens=3"),
    (TRAIN, ["callbacks.pass_at_k.store=0"], "callbacks.pass_at_k.store "),
    (TRAIN, ["logger.csv.directory=true"], "logger.csv.directory "),
    (TRAIN, ["logger.csv.directory={a: 1}"], "logger.csv.directory "),
    (TRAIN, ["policy.mini_batches=0"], "policy.mini_batches "),
    (TRAIN, ["+policy.depth=3"], "depth"),
    (TRAIN, ["policy.schedule=cosine_with_min_lr"], "policy.schedule_options"),
    (TRAIN, ["policy.schedule=reduce_lr_on_plateau"], "policy.schedule "),
    (TRAIN, ["optimizer.betas=[1,0]"], "optimizer.betas"),
    (TRAIN, ["+optimizer.weight_dcay=1"], "optimizer.weight_dcay"),
    (TRAIN, ["trainer.devices=0"], "trainer"),
    (TRAIN, ["trainer.accelerator=abacus"], "trainer"),
    (TRAIN, ["advantage.group_by=null"], "advantage.group_by"),
    (
        EVAL,
        ["data.evaluation_samples=0", "callbacks.pass_at_k.ks=[]"],
        "evaluation_samples|callbacks.pass_at_k.ks",
    ),
    ("tagrpo-plan", ["gpu=x100"], "gpu to be one of"),
    ("tagrpo-plan", ["policy.mask_truncated=maybe"], "policy.mask_truncated to be true or false"),
    (TRAIN, ["policy.schedule_options=3"], "policy.schedule_options to be a mapping"),
    (TRAIN, ["policy.mask_truncated=maybe"], "policy.mask_truncated to be true or false"),
    (
        REPHRASE,
        ["input=good.jsonl", "output=x.jsonl", "rephraser.model=m", "server.timeout=long"],
        "server.timeout ",
    ),
]
"""More uses that the same checks refuse."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with a few files of questions, and the directory of a run."""
    place = tmp_path_factory.mktemp("wrong")
    rows = [{"question": f"{i} + 1 ?", "answer": str(i + 1)} for i in range(8)]
    (place / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = [{"question": "x ?", "answer": "" if i % 2 else "1"} for i in range(206)]
    (place / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bad))
    for name in (
        "sets/gsm8k_train",
        "gsm8k/gsm8k_train",
        "run/model",
        "run/checkpoints",
        "full/grpo/seed0/x",
    ):
        (place / name).mkdir(parents=True)
    (place / "outside" / "data").mkdir(parents=True)
    (place / "outside" / "data" / "mine.yaml").write_text("defaults: [arithmetic, _self_]\nbatch_size: 5\n")
    (place / "run" / "config.yaml").write_text("name: run\n")
    (place / "run" / "metrics.csv").write_text("step\n")
    (place / "run" / "model" / "config.json").write_text("{}")
    return place


def quiet(environment):
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment.pop("HYDRA_FULL_ERROR", None)
    return environment


@pytest.fixture(scope="module")
def outcomes(folder):
    """A function that runs commands in forks of one process, which has imported nothing heavy."""
    process = subprocess.Popen(
        [sys.executable, TESTS / "forked_commands.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=quiet({**os.environ}),
    )

    def run(cases):
        found = []
        for command, arguments, *_ in cases:
            process.stdin.write(json.dumps([command, arguments, str(folder)]) + "\n")
            process.stdin.flush()
            found.append(json.loads(process.stdout.readline()))
        return found

    yield run
    process.communicate()
    assert process.returncode == 0


def before_the_model(cases, folder):
    def run():
        quiet(os.environ)
        forked_commands.refuse_models()
        composition.parse()
        for command, arguments, _ in cases:
            print(json.dumps(forked_commands.outcome(command, arguments, str(folder))), flush=True)

    code, output = in_fork(run)
    assert code == 0, output
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"code"')]


def check(found, message):
    assert found["code"] in (1, 2), found["output"]
    assert re.search(message, found["output"]), found["output"]
    assert "Traceback" not in found["output"], found["output"]
    assert LOADED not in found["output"]


@pytest.mark.parametrize(
    "cases",
    [
        AT_ONCE[::4],
        pytest.param([case for number, case in enumerate(AT_ONCE) if number % 4], marks=pytest.mark.runs),
        pytest.param(AT_ONCE_TOO, marks=pytest.mark.slow),
    ],
    ids=["", "others", "more"],
)
def test_it_ends_with_nothing_heavy_imported_and_names_the_setting(cases, outcomes, subtests):
    for case, found in zip(cases, outcomes(cases), strict=True):
        with subtests.test(" ".join([case[0], *case[1]])):
            check(found, case[2])
            assert found["heavy"] == []


@pytest.mark.parametrize(
    "cases",
    [
        BEFORE_THE_MODEL[::4],
        pytest.param(
            [case for number, case in enumerate(BEFORE_THE_MODEL) if number % 4], marks=pytest.mark.runs
        ),
        pytest.param(BEFORE_THE_MODEL_TOO, marks=pytest.mark.slow),
    ],
    ids=["", "others", "more"],
)
def test_it_ends_before_the_model_is_loaded_and_names_the_setting(cases, folder, subtests):
    for case, found in zip(cases, before_the_model(cases, folder), strict=True):
        with subtests.test(" ".join([case[0], *case[1]])):
            check(found, case[2])


SHOWN = [
    *((command, ["--help"]) for command in forked_commands.COMMANDS),
    (TRAIN, ["--help", "experiment"]),
    (TRAIN, ["experiment=grpo", "--help"]),
    (REPHRASE, ["audit", "--help"]),
    (TRAIN, ["--cfg", "job"]),
    (TRAIN, ["--cfg", "job", "experiment=dapo", "scale=paper", "data=math"]),
    (EVAL, ["--cfg", "job"]),
    (COMPARE, ["--cfg", "job", "compare=demo"]),
    (REPHRASE, ["--cfg", "job"]),
    ("tagrpo-plan", ["--cfg", "job"]),
]


@pytest.fixture(scope="module")
def shown(outcomes):
    return outcomes(SHOWN)


@pytest.mark.parametrize("number", range(len(SHOWN)), ids=[" ".join([c, *a]) for c, a in SHOWN])
def test_help_settings_and_completion_import_nothing_heavy(shown, number):
    assert shown[number]["code"] == 0, shown[number]["output"]
    assert shown[number]["heavy"] == []


def test_help_says_what_can_be_chosen(shown):
    texts = {
        " ".join([command, *arguments]): one["output"]
        for (command, arguments), one in zip(SHOWN, shown, strict=True)
    }
    train = texts["tagrpo-train --help"]
    assert "experiment=ta_grpo" in train
    for group in ("advantage", "loss", "data", "model", "rollout", "trainer", "scale"):
        assert re.search(rf"^  - /?{group}: \S+ +# \S", train, re.MULTILINE), (
            f"{group} has a default and a line on it"
        )
    assert re.search(r"^iterations: 48 +# \S", train, re.MULTILINE)
    assert re.search(r"^  loss: .*\bclip\b", train, re.MULTILINE), "options of a group are named"
    assert "install=bash" in train
    assert re.search(r"^  experiment=dapo +.*DAPO", texts["tagrpo-train --help experiment"], re.MULTILINE)
    assert texts["tagrpo-train experiment=grpo --help"] == train
    assert texts["tagrpo-rephrase audit --help"] == texts["tagrpo-rephrase --help"]
    assert "compare: null" in texts["tagrpo-compare --help"]
    assert "protocol: none" in texts["tagrpo-eval --help"]
    assert "iterations: 48" in texts["tagrpo-eval --help"], "settings of tagrpo-train are its own"


def test_tab_completes_settings_and_options():
    command = [Path(sys.executable).with_name("tagrpo-train"), "-sc", "query=bash"]
    line = "tagrpo-train experiment=ta_g"
    environment = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "experiment=ta_grpo_star" in done.stdout.split()
