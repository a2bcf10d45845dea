"""TRL's trainer with shared prefixes on two ranks, under DDP and FSDP2, against the same trainer as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers import in_fork

pytestmark = pytest.mark.shell
pytest.importorskip("trl", reason="needs TRL, the extra `bench`")

TESTS = Path(__file__).parents[1]
TRAINED = ["whole", "checkpointed", "lora"]
SHARDED = ["untied", "tied"]
SCRIPT = '''
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path[:0] = {paths!r}
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from helpers import in_forks
from tagrpo.packing.trl import share_prefixes
from test_trl import batch, gradient, make_trainer, tiny_model
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen2ForCausalLM

torch.set_num_threads(1)
output = Path(sys.argv[1])
tiny_model().save_pretrained(output / "policy")  # the reference is read from there
in_forks({{"ranks": 2}})
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")


def trained(shared, lora=False, **options):
    """Weights after two optimizer steps of two micro-batches each, under DDP; each rank samples its own prompts."""
    model = Qwen2ForCausalLM.from_pretrained(output / "policy")
    trainer = make_trainer(
        output, model, lora, max_steps=2, learning_rate=1e-2, optim="sgd", gradient_accumulation_steps=2, beta=0.1,
        ddp_backend="gloo", **options,
    )
    if shared:
        share_prefixes(trainer)
    torch.manual_seed(5 + rank)
    trainer.train()
    assert type(trainer.model_wrapped) is DistributedDataParallel
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def sharded(shared, tied):
    """Gradient of the loss of a batch of each rank, under FSDP2 as accelerate wraps it; and by hand, without."""
    trainer = make_trainer(output, tiny_model(tie_word_embeddings=tied), ddp_backend="gloo")
    inputs = batch(seed=rank)
    trainer._compute_loss(trainer.model, inputs).backward()
    expected = gradient(trainer)
    dist.all_reduce(expected)
    trainer.model.zero_grad()
    if shared:
        share_prefixes(trainer)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    trainer.accelerator.state.fsdp_plugin = plugin  # its state has FSDP for GPUs alone, its wrapping works on CPUs
    model = fsdp2_prepare_model(trainer.accelerator, trainer.model)
    assert sum(isinstance(module, FSDPModule) for module in model.modules()) > 2
    trainer._compute_loss(model, inputs).backward()
    found = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    return found, expected / 2


for shared in (False, True):
    found = {{
        "before": torch.cat([p.detach().flatten() for p in tiny_model().parameters()]),
        "whole": trained(shared),
        "checkpointed": trained(shared, gradient_checkpointing=True),
        "lora": trained(shared, lora=True, gradient_checkpointing=True),
        "untied": sharded(shared, tied=False),
        "tied": sharded(shared, tied=True),
    }}
    torch.save(found, output / f"{{shared}}-{{rank}}.pt")
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    script = SCRIPT.format(paths=[str(TESTS), str(TESTS / "packing")])
    code, output = in_fork(lambda: exec(script, {"__name__": "__main__"}), folder)
    assert code == 0, output[-5000:]
    return {key: torch.load(folder / f"{key}.pt") for key in ("False-0", "False-1", "True-0", "True-1")}


@pytest.mark.distributed
@pytest.mark.parametrize("name", TRAINED)
def test_a_training_under_ddp_is_that_of_trl(name, found):
    theirs, ours = found["False-0"][name], found["True-0"][name]
    assert torch.equal(ours, found["True-1"][name])
    assert name == "lora" or (theirs - found["False-0"]["before"]).norm() > 1e-3
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.distributed
@pytest.mark.parametrize("name", SHARDED)
def test_gradients_under_fsdp2_are_those_of_trl_and_of_whole_models(name, found):
    (theirs, by_hand), (ours, _) = found["False-0"][name], found["True-0"][name]
    assert theirs.norm() > 0
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()
    assert (ours - by_hand).norm() < 1e-6 * by_hand.norm()
