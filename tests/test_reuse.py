"""The blocks of docs/reuse.md, run as they stand there, and its table of what each callback reads."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from lightning.pytorch import LightningModule
from transformers import AutoModelForCausalLM, AutoTokenizer

from tagrpo import callbacks
from tagrpo.modules.advantages import PassAtKAdvantage
from tagrpo.types import Fields
from tests.helpers import in_fork

pytestmark = pytest.mark.pages

PAGE = (Path(__file__).parents[1] / "docs" / "reuse.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+)\n(.*?)```", PAGE, re.DOTALL))
TABLE = {
    cells[0].strip("` "): cells[1:]
    for line in re.findall(r"^\| (`.*)\|$", PAGE, re.MULTILINE)
    for cells in [[cell.strip() for cell in line.split("|")]]
    if "(" not in cells[0]  # of metrics
}
EVALUATING = ("PassAtKEvaluator", "EvaluationExamples")


@pytest.fixture(scope="module")
def coin(tmp_path_factory):
    """Folder of the logs of the page's trainer, and [20, 2, 4] which responses were heads."""
    folder = tmp_path_factory.mktemp("coin")
    torch.manual_seed(0)
    namespace = {"folder": folder}
    exec(BLOCKS["metrics"], namespace)
    seen = []

    class Watched(namespace["Coin"]):
        def training_step(self, batch, batch_idx):
            outputs = super().training_step(batch, batch_idx)
            seen.append(batch["rollouts"]["correct"].view(2, 4))
            return outputs

    namespace["Coin"] = Watched
    exec(BLOCKS["callbacks"], namespace)
    assert namespace["trainer"].global_step == 20
    return folder, torch.stack(seen).numpy()


def test_metrics_in_a_foreign_module_are_means_over_all_questions(coin):
    folder, heads = coin
    assert PAGE.index("# metrics") < PAGE.index("# callbacks"), "first on the page"
    logged = pd.read_csv(next(folder.rglob("metrics.csv"))).ffill().iloc[-1]
    right = heads.sum(2)
    assert logged["pass@1"] == pytest.approx((right / 4).mean())
    assert logged["pass@4"] == pytest.approx((right > 0).mean())
    assert logged["zero_gradient"] == pytest.approx(100 * ((right == 0) | (right == 4)).mean())
    # A pair of a question's six is at distance 1 if one of it is heads and the other tails, else at 0.
    assert logged["distance"] == pytest.approx((right * (4 - right) / 6).mean(), rel=1e-5)


def test_callbacks_in_a_foreign_module_with_mappings_for_batches(coin):
    folder, heads = coin
    rows = pd.read_csv(next(folder.rglob("metrics.csv"))).dropna(subset=["zero_gradient/percentage"])
    right = heads.sum(2)
    expected = 100 * ((right == 0) | (right == 4)).mean(1)
    assert rows["zero_gradient/percentage"].tolist() == pytest.approx(expected.tolist())
    assert expected[-5:].mean() > expected[:5].mean(), "heads are learnt"


class Recording(Mapping):
    """A mapping that notes the keys that are read."""

    def __init__(self, values, read, prefix=""):
        self.values_, self.read, self.prefix = values, read, prefix

    def __getitem__(self, key):
        value = self.values_[key]
        self.read.add(self.prefix + key)
        return value

    def __iter__(self):
        return iter(self.values_)

    def __len__(self):
        return len(self.values_)


def batch_of(read):
    """Two questions, one of them with a rephrasing; everything that any callback reads."""
    prompts = [
        {"text": f"prompt {n}", "template": "plain", "question": n, "num_samples": 2} for n in range(3)
    ]
    rollouts = {
        "prompts": [Recording(prompt, read, "prompts[…].") for prompt in prompts],
        "prompt": torch.tensor([0, 0, 1, 1, 2, 2]),
        "question": torch.tensor([0, 0, 0, 0, 1, 1]),
        "rephrasing": torch.tensor([0, 0, 1, 1, 0, 0]),
        "token_ids": [torch.tensor([5, 6])] * 6,
        "logprobs": [torch.tensor([-0.5, -0.5])] * 6,
        "lengths": torch.full((6,), 2),
        "truncated": torch.zeros(6, dtype=torch.bool),
        "text": list("abcdef"),
        "answers": list("abcdef"),
        "correct": torch.tensor([True, False, True, True, False, False]),
        "rewards": torch.tensor([1.0, 0, 1, 1, 0, 0]),
        "reward_terms": {},
        "seconds": {"generate": 1.0},
    }
    groups = [Recording({"id": name, "metadata": {}, "answer": ("1",)}, read, "groups[…].") for name in "qr"]
    return {"split": "test", "groups": groups, "rollouts": Recording(rollouts, read)}


class Silent(LightningModule):
    """A module whose trainer logs nowhere."""

    def __init__(self, folder):
        super().__init__()
        self.logged = {}
        loop = SimpleNamespace(total_batch_idx=0)
        self._trainer = SimpleNamespace(
            default_root_dir=str(folder), is_global_zero=True, fit_loop=loop, global_step=0, callbacks=[], loggers=[],
            sanity_checking=False, testing=True, current_epoch=0, max_epochs=1, max_steps=-1, is_last_batch=True,
        )  # fmt: skip

    def log_dict(self, values):
        self.logged |= values


MADE = {
    "EmbeddingDiversityMonitor": {"encoder": lambda: lambda texts: torch.eye(8)[: len(texts)]},
}


def names(cell):
    return set(re.findall(r"`([^`]+)`", cell))


@pytest.mark.parametrize("name", TABLE)
def test_each_callback_reads_what_the_table_says_and_nothing_else(name, tmp_path):
    read, returned = set(), set()
    values = {
        "advantages": torch.tensor([1.0, -1, 0.5, 0.5, 0, 0]), "masked": torch.zeros(6, dtype=torch.bool),
        "clipped": torch.zeros(6), "ratio": torch.ones(6), "kl": torch.zeros(6), "entropy": torch.ones(6),
        "score_logprob": torch.full((6,), -1.0), "seconds_update": 2.0,
        "token_entropies": [torch.ones(2)] * 6,
    }  # fmt: skip
    outputs, batch, module = Recording(values, returned), batch_of(read), Silent(tmp_path)
    callback = getattr(callbacks, name)(**MADE.get(name, {}))
    if name in EVALUATING:
        batch = Recording(batch, read)
        callback.on_test_epoch_start(module._trainer, module)
        callback.on_test_batch_start(module._trainer, module, batch, 0)
        callback.on_test_batch_end(module._trainer, module, outputs, batch, 0)
    else:
        callback.on_train_batch_start(module._trainer, module, batch, 0)
        callback.on_train_batch_end(module._trainer, module, outputs, batch, 0)
    does, rollouts, others, step = TABLE[name]
    assert does
    assert read - {"rollouts", "groups", "prompts"} == names(rollouts) | names(others)
    assert returned == names(step)
    for missing in sorted(read - {"groups[…].metadata"}):
        if "prompts" in missing or "groups" in missing or missing in ("split", "rollouts"):
            continue
        batch = batch_of(set())
        batch["rollouts"] = {key: value for key, value in batch["rollouts"].items() if key != missing}
        hook = callback.on_test_batch_end if name in EVALUATING else callback.on_train_batch_end
        with pytest.raises(AttributeError, match=rf"batch\.rollouts.*`{missing}`.*(answers|correct)"):
            hook(module._trainer, module, outputs, batch, 0)


def test_every_diagnostic_that_needs_no_model_is_in_the_table():
    monitors = {
        n
        for n in callbacks.__all__
        if n.endswith(("Monitor", "Recorder", "Evaluator", "Examples", "Look", "Table"))
    }
    assert set(TABLE) == monitors


def test_fields_of_objects_and_mappings_are_the_same():
    nested = {"groups": [{"id": "7", "metadata": {"level": 3}}], "rollouts": {"text": ["a"]}}
    objects = SimpleNamespace(
        groups=[SimpleNamespace(id="7", metadata={"level": 3})], rollouts=SimpleNamespace(text=["a"])
    )
    for fields in (Fields("batch", nested), Fields("batch", objects)):
        assert fields.groups[0].id == "7"
        assert fields.groups[0].metadata == {"level": 3}
        assert fields.rollouts.text == ["a"]
        with pytest.raises(AttributeError, match=r"Expected batch\.groups\[0\].*`answer`"):
            fields.groups[0].answer  # noqa: B018


def test_a_strategy_registers_with_verl_and_is_called_as_there(monkeypatch):
    """The registry and the call of `compute_advantage` are those of verl 0.9.1."""
    registry = {}

    def register_adv_est(name):
        def decorator(function):
            registry[name] = function
            return function

        return decorator

    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.core_algos"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["verl.trainer.ppo.core_algos"].register_adv_est = register_adv_est
    namespace = {}
    exec(BLOCKS["verl"], namespace)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    verdicts = torch.tensor([1.0, 0, 0, 0, 1, 1])
    rewards = torch.zeros(6, 3).scatter(1, mask.sum(1, keepdim=True) - 1, verdicts[:, None])
    uid = np.array(["b", "a", "b", "a", "b", "a"], dtype=object)
    namespace["STRATEGY"] = PassAtKAdvantage(k=2)
    given = {"token_level_rewards": rewards, "response_mask": mask, "config": None}
    advantages, returns = registry["pass_at_k"](**given, index=uid)
    # Each pair of b's responses (two of three right) has a right one, two of a's three pairs (one right) have. Of the
    # pairs with a given wrong response of a, one of two has.
    mean, spread = 2 / 3, math.sqrt(2 / 9)
    right, wrong = (1 - mean) / (spread + 1e-6), (1 - mean - 1 / 2) / (spread + 1e-6)
    expected = torch.tensor([0.0, wrong, 0.0, wrong, 0.0, right])[:, None] * mask
    torch.testing.assert_close(advantages, expected, atol=1e-4, rtol=0)
    assert torch.equal(advantages, returns)


VERL = """
import importlib
import numpy as np
import torch
import verl
from tagrpo.modules.advantages import PassAtKAdvantage
from verl import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage

module = importlib.import_module("pass_at_k_estimator")
module.STRATEGY = PassAtKAdvantage(k=2)
mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
verdicts = torch.tensor([1.0, 0, 0, 0, 1, 1])
rewards = torch.zeros(6, 3).scatter(1, mask.sum(1, keepdim=True) - 1, verdicts[:, None])
uid = np.array(["b", "a", "b", "a", "b", "a"], dtype=object)
data = DataProto.from_dict({"token_level_rewards": rewards, "response_mask": mask}, {"uid": uid})
found = compute_advantage(data, adv_estimator="pass_at_k").batch
assert torch.equal(found["advantages"], found["returns"])
print([round(value, 4) for value in found["advantages"].sum(1).tolist()])
"""


@pytest.mark.skipif(find_spec("verl") is None, reason="needs verl 0.9.1, in an environment of its own")
def test_verl_itself_calls_a_strategy(tmp_path):
    (tmp_path / "pass_at_k_estimator.py").write_text(BLOCKS["verl"])
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "VERL_USE_EXTERNAL_MODULES": "pass_at_k_estimator",
    }
    command = [sys.executable, "-c", VERL]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    mean, spread = 2 / 3, math.sqrt(2 / 9)
    right, wrong = (1 - mean) / (spread + 1e-6), (1 - mean - 1 / 2) / (spread + 1e-6)
    lengths = [2, 3, 1, 2, 3, 1]
    expected = [n * value for n, value in zip(lengths, [0.0, wrong, 0.0, wrong, 0.0, right], strict=True)]
    assert json.loads(result.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-3)


TRL = """
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig
from tagrpo.modules.advantages import GroupAdvantage
{block}
seen = []


class Watched(StrategyTrainer):
    def _compute_loss(self, model, inputs):
        seen.append(inputs["advantages"].tolist())
        return super()._compute_loss(model, inputs)


policy, folder = {policy!r}, {folder!r}
tokenizer = AutoTokenizer.from_pretrained(policy)
values = iter([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
trainer = Watched(
    AutoModelForCausalLM.from_pretrained(policy),
    reward_funcs=lambda completions, **_: [next(values) for _ in completions],
    args=GRPOConfig(
        folder, per_device_train_batch_size=8, num_generations=4, max_completion_length=4, max_steps=1, use_cpu=True,
        report_to="none", save_strategy="no", bf16=False, shuffle_dataset=False,
    ),
    train_dataset=Dataset.from_dict({{"prompt": ["Ann has 3", "Ben has 4"]}}),
    processing_class=tokenizer,
    strategy=GroupAdvantage(group_by="prompt", scale="mean"),
)
trainer.train()
print(sorted(round(value, 4) for value in seen[0]))
"""


def test_strategies_in_trl(tiny_policy, tmp_path):
    program = TRL.format(block=BLOCKS["trl"], policy=str(tiny_policy), folder=str(tmp_path))
    code, output = in_fork(lambda: exec(program, {"__name__": "__main__"}))
    assert code == 0, output[-3000:]
    # (r − r̄) / r̄: MaxRL, which TRL does not have.
    expected = sorted([3.0, -1.0, -1.0, -1.0, *[1 / 3] * 3, -1.0])
    (told,) = [line for line in output.splitlines() if line.startswith("[")]
    assert eval(told) == pytest.approx(expected, abs=1e-4)


NONE_REWARDS = """
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from tagrpo.modules.advantages import GroupAdvantage
{block}
seen = {{}}


class Plain(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        kept = seen.setdefault((type(self).__name__, self.model.training), [])
        kept += inputs["advantages"].tolist()
        return super()._compute_loss(model, inputs)


class Ours(StrategyTrainer, Plain):
    pass


policy, folder = {policy!r}, {folder!r}
tokenizer = AutoTokenizer.from_pretrained(policy)
train = [1.0, None, 0.0, 0.0, None, None, None, None, 1.0, 1.0, None, 0.5]
evaluation = [1.0, 0.0, None, 1.0]
for kind, own in ((Plain, {{}}), (Ours, {{"strategy": GroupAdvantage(group_by="prompt", epsilon=1e-4)}})):
    values = iter([*train, *evaluation])
    torch.manual_seed(0)
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(policy),
        reward_funcs=lambda completions, **_: [next(values) for _ in completions],
        args=GRPOConfig(
            folder, per_device_train_batch_size=12, num_generations=4, max_completion_length=4, max_steps=1,
            use_cpu=True, report_to="none", save_strategy="no", bf16=False, shuffle_dataset=False,
            num_generations_eval=2, per_device_eval_batch_size=4, eval_strategy="steps", eval_steps=1,
        ),
        train_dataset=Dataset.from_dict({{"prompt": ["Ann has 3", "Ben has 4", "Cat has 5"]}}),
        eval_dataset=Dataset.from_dict({{"prompt": ["Ann has 6", "Ben has 7"]}}),
        processing_class=tokenizer,
        **own,
    )
    trainer.train()
for mode in (True, False):
    theirs, ours = sorted(seen["Plain", mode]), sorted(seen["Ours", mode])
    print("RESULT", [round(value, 4) for value in theirs], [round(value, 4) for value in ours])
"""


def test_rewards_of_none_and_evaluation_groups_are_those_of_trl(tiny_policy, tmp_path):
    program = NONE_REWARDS.format(block=BLOCKS["trl"], policy=str(tiny_policy), folder=str(tmp_path))
    code, output = in_fork(lambda: exec(program, {"__name__": "__main__"}))
    assert code == 0, output[-3000:]
    results = [line for line in output.splitlines() if line.startswith("RESULT")]
    assert len(results) == 2, "training and evaluation"
    for line in results:
        theirs, ours = json.loads("[" + line.removeprefix("RESULT ").replace("] [", "], [") + "]")
        assert ours == pytest.approx(theirs, abs=1e-4)
        assert any(theirs)
        assert 0.0 in theirs


def responses_to_two_prompts():
    """Token ids, advantages, and what −mean(advantage · log-prob) is by one plain forward per response."""
    prompts, prompt = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])], torch.tensor([1, 0, 1])
    responses, advantages = (
        [torch.tensor(x) for x in ([9, 8], [7], [5, 4, 3])],
        torch.tensor([1.0, -2.0, 0.5]),
    )
    batch = {"prompts": prompts, "prompt": prompt, "responses": responses, "advantages": advantages}

    def plain(model):
        terms = []
        for p, response, advantage in zip(prompt, responses, advantages, strict=True):
            logits = model(torch.cat([prompts[p], response])[None]).logits[0, len(prompts[p]) - 1 : -1]
            terms.append(advantage * logits.log_softmax(-1).gather(1, response[:, None])[:, 0])
        return -torch.cat(terms).mean().item()

    return batch, plain


def test_prompts_are_encoded_once_in_plain_transformers(tiny_policy):
    batch, plain = responses_to_two_prompts()
    expected = plain(AutoModelForCausalLM.from_pretrained(tiny_policy))
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    names = {**batch, "model": model}
    exec(BLOCKS["sharing_transformers"], names)
    assert names["loss"].item() == pytest.approx(expected, rel=1e-5)
    names["loss"].backward()
    assert all(p.grad is not None for p in model.parameters())


def test_prompts_are_encoded_once_in_trl(tiny_policy, tmp_path):
    trl = pytest.importorskip("trl", reason="needs TRL, the extra `bench`")
    trainer = trl.GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(tiny_policy),
        reward_funcs=lambda completions, **_: [float(len(text) % 2) for text in completions],
        args=trl.GRPOConfig(
            str(tmp_path), per_device_train_batch_size=8, num_generations=4, max_completion_length=4, max_steps=1,
            use_cpu=True, report_to="none", save_strategy="no", bf16=False, gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["Ann has 3", "Ben has 4"]}),
        processing_class=AutoTokenizer.from_pretrained(tiny_policy),
    )  # fmt: skip
    exec(BLOCKS["sharing_trl"], {"trainer": trainer})
    shapes = []
    trainer.model.model.register_forward_pre_hook(
        lambda _, __, inputs: shapes.append((len(inputs["input_ids"]), "packed" in inputs)), with_kwargs=True
    )
    trainer.train()
    assert shapes[-1] == (1, True)
    assert trainer.state.global_step == 1
