"""Experiments on two ranks against one process, from the same rollouts and with what is remembered of questions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tagrpo.modules.policy.model import load_causal_lm
from tests.helpers import in_fork

ROOT = Path(__file__).parents[2]
SHARED = ["greso", "luffy", "outcome_exploration", "questa", "seed_grpo", "skywork_or1"]
"""Experiments in which what one rank has seen changes what another does, and two whose loss sums over ranks."""
OTHERS = [
    "cog_drift", "dgpo", "entropy_shaped", "grpo", "mathforge", "max_rl", "ngrpo", "nsr", "pkpo", "prorl", "psr",
    "rs_grpo", "svs", "ucpo", "w_reinforce",
]  # fmt: skip
SCRIPT = '''
"""python script.py <policy folder> <output folder>"""
import os
import sys
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

sys.path.insert(0, {tests!r})
from conftest import make_hand_made_batch as make_batch
from helpers import in_forks
import tagrpo.configs
from tagrpo.datamodules.memory import QuestionMemory
from tagrpo.packing.policy import CausalPolicy
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.update import PolicyUpdate
from tagrpo.rollouts.dynamic_sampling import join_batches, take_questions

torch.set_num_threads(1)
warnings.simplefilter("ignore")
SETTINGS = {{
    "luffy": ["loss.max_length=2"],  # a large step: differences are those of rounding
    "seed_grpo": ["loss.max_length=2", "advantage.alpha=1"],
    "skywork_or1": [f"callbacks.adaptive_entropy.{{part}}" for part in ("target=1.2", "step=0.3", "most=1.0")],
}}
with initialize_config_module("tagrpo.configs", version_base="1.3"):
    composed = {{
        name: compose("train", [f"experiment={{name}}", *SETTINGS.get(name, ())]) for name in {experiments!r}
    }}
folder, output, world = sys.argv[1], Path(sys.argv[2]), in_forks({{1: 1, 2: 2}})
rank = int(os.environ.get("RANK", "0"))
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{{output}}/rendezvous", world_size=world, rank=rank)


def whole_batch(seed):
    """Four questions with two phrasings of five responses each, of which the first half is less likely."""
    whole = make_batch([[[1.0, 0, 0, 1, 0], [0.0] * 5], [[0.0] * 5, [0.0, 1, 0, 0, 0]],
                        [[1.0, 1, 1, 0, 1], [1.0] * 5], [[0.0] * 5, [0.0] * 5]], seed=seed)
    logprobs = [torch.full((len(ids),), -1.5 if row < 20 else -0.5) for row, ids in enumerate(whole.rollouts.token_ids)]
    return replace(whole, rollouts=replace(whole.rollouts, logprobs=logprobs))


def share_of(whole):
    """This rank's half of the questions, or all of them."""
    return whole if world == 1 else take_questions(whole, torch.tensor([2 * rank, 2 * rank + 1]))


@contextmanager
def averaged(last, parameters):
    """Gradients are averaged over ranks after the last micro-batch, as DDP does."""
    yield
    for parameter in parameters if last and world > 1 else ():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def with_demonstrations(batch):
    """The first response to each question has been written by somebody else."""
    rollouts = batch.rollouts
    replayed = torch.tensor([int(row) not in rollouts.question[:n].tolist() for n, row in enumerate(rollouts.question)])
    logprobs = [0 * part if given else part for part, given in zip(rollouts.logprobs, replayed, strict=True)]
    return replace(batch, rollouts=replace(rollouts, replayed=replayed, logprobs=logprobs))


for name, cfg in composed.items():
    torch.manual_seed(0)
    policy, reference = (CausalPolicy(load_causal_lm(folder)) for _ in range(2))
    parameters = list(policy.parameters())
    options, loss = instantiate(cfg.policy, mini_batches=1, max_grad_norm=1e9), instantiate(cfg.loss)
    update = PolicyUpdate(
        Scorer(policy, reference, token_budget=10**6, device=torch.device("cpu")), instantiate(cfg.advantage),
        loss, torch.optim.SGD(parameters, lr=1.0), options,
        credit=instantiate(cfg.get("credit")),
        gradient_sync=lambda last, parameters=parameters: averaged(last, parameters),
    )
    memory, asked = QuestionMemory(), []
    curriculum, adaptive = instantiate(cfg.data.get("curriculum")), instantiate(cfg.callbacks.get("adaptive_entropy"))
    module = SimpleNamespace(loss=loss, log_dict=lambda values: None, trainer=SimpleNamespace(callbacks=[]))
    for seed in (1, 2):  # the second time something is known of every question
        whole = whole_batch(seed)
        batch = share_of(with_demonstrations(whole) if cfg.rollout.get("replay") else whole)
        memory.remember(batch)
        update(batch.rollouts, len(batch.groups), progress=0.5)
        if adaptive:
            adaptive.on_train_batch_end(None, module, None, batch, 0)
        for group in whole.groups if curriculum else ():  # any rank may have any of them next
            known = memory[group.id]
            asked.append((seed, group.id, curriculum.chance(known), curriculum.asked(group, known)))
    (output / f"{{name}}-{{world}}-{{rank}}.txt").write_text("\\n".join(map(repr, asked)))
    torch.save(torch.cat([p.detach().flatten() for p in parameters]), output / f"{{name}}-{{world}}-{{rank}}.pt")
'''


@pytest.mark.distributed
@pytest.mark.parametrize(
    "experiments", [SHARED, pytest.param(OTHERS, marks=pytest.mark.runs)], ids=["shared", "others"]
)
def test_two_ranks_move_the_policy_as_one_process_does_with_what_they_remember(
    experiments, tiny_policy, tmp_path
):
    script = SCRIPT.format(tests=str(ROOT / "tests"), experiments=experiments)
    code, output = in_fork(lambda: exec(script, {"__name__": "__main__"}), tiny_policy, tmp_path)
    assert code == 0, output[-3000:]
    policy = torch.cat([p.detach().flatten() for p in load_causal_lm(tiny_policy).parameters()])
    for name in experiments:
        one, first, second = (torch.load(tmp_path / f"{name}-{key}.pt") for key in ("1-0", "2-0", "2-1"))
        moved = (one - policy).norm()
        assert moved > 0, name
        assert torch.equal(first, second), name
        assert (first - one).norm() < 1e-6 * moved, (name, float((first - one).norm() / moved))
        one, *ranks = ((tmp_path / f"{name}-{key}.txt").read_text() for key in ("1-0", "2-0", "2-1"))
        assert ranks == [one, one], name
