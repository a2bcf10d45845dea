"""Two ranks on a CPU against one process on the same global batch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tagrpo.modules.policy import sharding
from tagrpo.modules.policy.sharding import check_layout, decoder_layers
from tests.helpers import in_fork

TESTS = str(Path(__file__).parents[2])
SCRIPT = '''
"""python script.py <policy folder> <output folder> <loss>…"""
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

sys.path.insert(0, {tests!r})
from conftest import make_hand_made_batch as make_batch
from helpers import in_forks
from ranks import AttachShare, RankBatches
from tagrpo.contrib.unlikeliness.advantage import UnlikelinessAdvantage
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.contrib.entropy_mechanism.credit import ClipCovCredit
from tagrpo.contrib.high_entropy_tokens.credit import HighEntropyCredit
from tagrpo.contrib.entropy_mechanism.credit import KLCovCredit
from tagrpo.contrib.rl_zvp.credit import ZeroVarianceCredit
from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.mismatch import MismatchCorrection
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.lightning.policy_module import PolicyModule, PolicyOptions
from tagrpo.modules.lightning.strategy import FullyShardedStrategy
from tagrpo.rollouts import TransformersEngine

torch.set_num_threads(1)
folder, output, *names = sys.argv[1:]
kind = in_forks({{"one": 1, "fsdp2": 2, "ddp": 2}})
# Rank 0 has more and longer work; the second question of rank 1 has no gradient, so that rank 1 has an empty turn.
SHARES = [
    make_batch([[[1.0, 0.0, 1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]], seed=1),
    make_batch([[[1.0, 0.0]], [[1.0, 1.0]], [[0.0, 0.3]]], seed=2),
]


def digests(tensors):
    return {{name: sha256(tensor.detach().numpy().tobytes()).hexdigest() for name, tensor in tensors}}


def gathered(model):
    """The trainer's parameters by PyTorch's own gathering, adapters merged by hand."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    del state["lm_head.weight"]  # tied
    for name in [name for name in state if name.endswith("base_layer.weight")]:
        stem = name.removesuffix("base_layer.weight")
        a, b = (state.pop(f"{{stem}}lora_{{side}}.default.weight") for side in "AB")
        state[stem + "weight"] = state.pop(name) + b @ a * 2.0  # alpha / rank
    return state


LOSSES = {{
    "grpo": PolicyLoss(kl_coef=0.0),
    "kl": PolicyLoss(kl_coef=0.3),
    "dapo": PolicyLoss(clip_high=0.28, aggregation="token_mean", kl_coef=0.0, entropy_coef=0.01),
    "dr_grpo": PolicyLoss(aggregation="constant", max_length=8, kl_coef=0.0),
    "gspo": PolicyLoss(ratio="sequence", kl_coef=0.0),
    "gmpo": PolicyLoss(0.4, 0.4, ratio="geometric", kl_coef=0.0),
    "cispo": PolicyLoss(objective="cispo", aggregation="token_mean", kl_coef=0.0),
    "lora": PolicyLoss(kl_coef=0.3),
    "clip_cov": PolicyLoss(1.0, 1.0, kl_coef=0.0),
    "kl_cov": PolicyLoss(None, None, kl_coef=0.0),
    "high_entropy": PolicyLoss(aggregation="token_mean", kl_coef=0.0),
    "zero_variance": PolicyLoss(kl_coef=0.0),
    "unlikeliness": PolicyLoss(kl_coef=0.0),
    "mismatch": PolicyLoss(kl_coef=0.0),
}}
CREDITS = {{
    "clip_cov": ClipCovCredit(share=0.3, low=-0.5, high=1.0),
    "kl_cov": KLCovCredit(share=0.3),
    "high_entropy": HighEntropyCredit(0.4),
    "zero_variance": ZeroVarianceCredit(0.3),
}}
engine = TransformersEngine(folder)
for name in names:
    loss = LOSSES[name]
    lora = LoraSettings(rank=2, alpha=4.0) if name == "lora" else None
    advantage = GroupAdvantage("question", scale="batch")
    module = PolicyModule(
        partial(load_causal_lm, folder, lora=lora), folder,
        UnlikelinessAdvantage(advantage, 1.0) if name == "unlikeliness" else advantage, loss,
        partial(torch.optim.SGD, lr=0.2),
        PolicyOptions(
            mini_batches=3, token_budget=25, schedule="constant", warmup=0.0,
            max_grad_norm=0.5 if name == "kl" else 1e9,
        ),
        credit=CREDITS.get(name),
        mismatch=MismatchCorrection(weight="token", cap=0.9) if name == "mismatch" else None,
    )
    strategy = {{
        "fsdp2": lambda: FullyShardedStrategy(),
        "ddp": lambda: DDPStrategy(process_group_backend="gloo"),
        "one": lambda: "auto",
    }}[kind]()
    trainer = Trainer(
        accelerator="cpu", devices=1 if kind == "one" else 2, strategy=strategy, max_steps=3, logger=False,
        callbacks=[AttachShare()], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, RankBatches(SHARES, single=kind == "one"))
    assert trainer.global_step == 3
    parameters = torch.cat([tensor.flatten() for _, tensor in module.full_parameters()])
    torch.save(parameters, Path(output) / f"{{kind}}-{{name}}-{{trainer.global_rank}}.pt")
    engine.sync(module.full_parameters())
    assert digests(engine.model.named_parameters()) == digests(gathered(module.policy.model).items()), name
'''


UNLIKE = ("kl", "dapo", "lora", "clip_cov")
"""Losses with a reference, a clipped norm, sums over tokens of all ranks, adapters, and a choice among all tokens."""
OTHERS = ("grpo", "dr_grpo", "gspo", "gmpo", "cispo")
OTHERS += ("kl_cov", "high_entropy", "zero_variance", "unlikeliness", "mismatch")


@pytest.fixture(
    scope="module", params=[UNLIKE, pytest.param(OTHERS, marks=pytest.mark.runs)], ids=["unlike", "others"]
)
def trained(request, tiny_policy, tmp_path_factory):
    """The names of losses, and the folder with the parameters of every kind and rank after three optimizer steps."""
    folder = tmp_path_factory.mktemp("trained")
    script = SCRIPT.format(tests=TESTS)
    code, output = in_fork(
        lambda: exec(script, {"__name__": "__main__"}), tiny_policy, folder, *request.param
    )
    assert code == 0, output[-3000:]
    return request.param, folder


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["fsdp2", "ddp"])
def test_two_ranks_with_uneven_work_equal_one_process_and_their_engines_hold_the_same_bits(
    kind, tiny_policy, trained
):
    losses, folder = trained
    one_process = {name: torch.load(folder / f"one-{name}-0.pt") for name in losses}
    policy = AutoModelForCausalLM.from_pretrained(tiny_policy)
    start = torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
    for name in losses:
        moved = (one_process[name] - start).norm()
        assert moved > 1e-3, name
        for rank in (0, 1):
            difference = torch.load(folder / f"{kind}-{name}-{rank}.pt") - one_process[name]
            rounding = 1e-7 * one_process[name].norm()
            assert difference.norm() < 1e-6 * moved + rounding, (name, rank)
    assert len({float(parameters.norm()) for parameters in one_process.values()}) == len(losses)


def test_decoder_layers_are_the_longest_list_of_modules():
    layers = [nn.Linear(1, 1) for _ in range(3)]
    module = nn.ModuleDict({"heads": nn.ModuleList([nn.Linear(1, 1)]), "layers": nn.ModuleList(layers)})
    assert decoder_layers(module) == layers
    with pytest.raises(ValueError, match="strategy=auto or strategy=ddp"):
        decoder_layers(nn.Linear(1, 1))


def test_a_model_that_is_not_that_of_rank_0_is_refused_with_the_first_difference(monkeypatch):
    first = [("embed.weight", (8, 4), "torch.float32"), ("head.weight", (8, 4), "torch.float32")]

    def broadcast(objects, src):
        assert src == 0
        objects[0] = first

    monkeypatch.setattr(sharding.dist, "broadcast_object_list", broadcast)
    check_layout(list(first))
    with pytest.raises(ValueError, match=r"config\.json") as refused:
        check_layout(first[:1])  # tied here alone
    assert "has None for ('head.weight', (8, 4), 'torch.float32')" in str(refused.value)
    with pytest.raises(ValueError, match="'torch.bfloat16'"):
        check_layout([first[0], ("head.weight", (8, 4), "torch.bfloat16")])


SHARDED = """
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.utils.logging import disable_progress_bar

from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.policy.sharding import full_tensors, reshard, shard
from tagrpo.packing import batch
from tagrpo.packing.batch import pack
from tagrpo.packing.policy import CausalPolicy

disable_progress_bar()
ranks = 4 if backend == "fake" else 1
store = FakeStore() if backend == "fake" else dist.FileStore(tempfile.mktemp(), 1)
dist.init_process_group(backend, rank=0, world_size=ranks, store=store)
model = load_causal_lm(folder)
master = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
policy = CausalPolicy(model)
shard(policy, init_device_mesh("cpu", (ranks,)), torch.bfloat16)
layouts = []
count = batch.padded_blocks
batch.padded_blocks = lambda *arguments: layouts.append(arguments) or count(*arguments)
prompt, responses = torch.tensor([5, 6, 7]), [torch.tensor([8, 9]), torch.tensor([10])]
packed = pack([prompt], torch.tensor([0, 0]), responses, torch.arange(2))
"""


@pytest.fixture
def in_process_group(tiny_policy):
    """What a program prints after a policy has been sharded in bfloat16, over four fake ranks or over a real one."""

    def printed(backend: str, program: str) -> str:
        names = {"folder": str(tiny_policy), "backend": backend}
        code, said = in_fork(lambda: exec(SHARDED + program, names))
        assert code == 0, said
        return said

    return printed


@pytest.mark.distributed
def test_the_attention_layout_is_built_once_for_all_layers(in_process_group):
    program = "policy(packed)\nprint(len(layouts), len(model.model.layers))"
    assert in_process_group("gloo", program).split() == ["1", "2"]


@pytest.mark.distributed
def test_weights_are_the_masters_after_a_forward_without_gradient(in_process_group):
    program = """
with torch.no_grad():
    policy(packed)
reshard(policy)
found = dict(full_tensors(policy.model))
print(all(torch.equal(found[name], master[name]) for name in master), {str(t.dtype) for t in found.values()})
"""
    assert in_process_group("gloo", program).strip() == "True {'torch.float32'}"


@pytest.mark.distributed
def test_gradients_are_shards_after_every_backward(in_process_group):
    program = """
from contextlib import nullcontext
from lightning.pytorch.strategies import SingleDeviceStrategy
from tagrpo.modules.lightning.strategy import FullyShardedStrategy, gradient_sync
for last in (False, True):
    with gradient_sync(FullyShardedStrategy(), last):
        policy(packed).logprobs.sum().backward()
    kept = sum(parameter.grad.to_local().numel() for parameter in policy.parameters())
    whole = sum(parameter.numel() for parameter in policy.parameters())
    print(kept <= whole / 4 + 64 * len(master))
"""
    assert in_process_group("fake", program).split() == ["True", "True"]


@pytest.mark.shell
def test_offloaded_parameters_stay_in_host_memory_and_buffers_move():
    from tagrpo.modules.lightning.strategy import FullyShardedStrategy

    strategy = FullyShardedStrategy(cpu_offload=True)
    strategy.__dict__["_lightning_module"] = strategy._model = module = nn.BatchNorm1d(3)
    type(strategy).root_device = property(lambda self: torch.device("meta"))
    try:
        strategy.model_to_device()
        assert {p.device.type for p in module.parameters()} == {"cpu"}
        assert {b.device.type for b in module.buffers()} == {"meta"}
        other = FullyShardedStrategy()
        other._model = module
        other.model_to_device()
        assert {p.device.type for p in module.parameters()} == {"meta"}
    finally:
        del type(strategy).root_device


@pytest.mark.shell
def test_an_offloaded_policy_on_gpus_has_a_process_group_for_host_memory_too(monkeypatch):
    from lightning.pytorch import Trainer

    from tagrpo.modules.lightning.strategy import FullyShardedStrategy

    backends = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, **_: backends.append(backend)
    )
    for gpu, offload in ((True, True), (True, False), (False, True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        strategy = FullyShardedStrategy(cpu_offload=offload)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        trainer = Trainer(accelerator="cpu", devices=1, strategy=strategy, logger=False)
        with suppress(ValueError):  # what follows needs the group
            trainer.strategy.setup_environment()
    assert backends == ["cpu:gloo,cuda:nccl", "gloo", "gloo"]


@pytest.mark.shell
@pytest.mark.parametrize(
    ("device", "asked", "expected"),
    [
        ("cuda", "auto", torch.bfloat16),
        ("cpu", "auto", None),
        ("cuda", "float32", None),
        ("cpu", "bfloat16", torch.bfloat16),
    ],
)
def test_gpus_compute_in_bfloat16_and_in_compiled_layers_where_nothing_else_is_said(
    device, asked, expected, monkeypatch
):
    from lightning.pytorch.strategies import SingleDeviceStrategy

    from tagrpo.modules.lightning import strategy as strategies
    from tagrpo.modules.lightning.strategy import prepare, reduced_precision

    strategy = SingleDeviceStrategy(device=torch.device(device))
    assert reduced_precision(strategy, asked) == expected
    calls = []
    monkeypatch.setattr(strategies, "compile_layers", lambda _: calls.append("compiled"))
    for compiled in (None, False):
        prepare(SimpleNamespace(), strategy, asked, compiled)
    assert calls == ["compiled"] * (device == "cuda" and expected is not None)


GATHERING = """
import sys

sys.path.insert(0, sys.argv[2])
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tagrpo.modules.policy import sharding
from tagrpo.packing.policy import CausalPolicy
from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.policy.model import load_causal_lm

from helpers import in_forks

in_forks({"three": 3})
dist.init_process_group("gloo")
for lora in (None, LoraSettings(rank=3)):
    model = load_causal_lm(sys.argv[1], lora=lora)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)  # adapters begin at zero
    before = dict(sharding.full_tensors(model))
    sharding.shard(CausalPolicy(model), init_device_mesh("cpu", (3,)), None)
    after = dict(sharding.full_tensors(model))
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
"""


@pytest.mark.distributed
def test_shards_of_three_ranks_are_gathered_to_the_bit(tiny_policy):
    code, output = in_fork(lambda: exec(GATHERING, {"__name__": "__main__"}), tiny_policy, TESTS)
    assert code == 0, output[-3000:]


@pytest.mark.distributed
def test_clipping_of_shards_in_few_kernels_gives_the_same_norm_and_gradients(in_process_group):
    program = """
from tagrpo.modules.update import clip_gradients
policy(packed).logprobs.sum().backward()
found = []
for kernels in (True, None):
    own = list(policy.parameters())
    saved = [p.grad.clone() for p in own]
    norm = torch.nn.utils.clip_grad_norm_(own, 0.1, foreach=kernels)
    found.append((norm.full_tensor(), [p.grad.full_tensor() for p in own]))
    for p, g in zip(own, saved):
        p.grad = g
torch.testing.assert_close(found[0], found[1])
assert clip_gradients(policy.parameters(), 0.1) == float(found[1][0])
print("same")
"""
    assert in_process_group("gloo", program).strip() == "same"


@pytest.mark.distributed
def test_an_offloaded_policy_trains_also_where_there_is_no_gpu(in_process_group):
    program = """
other = CausalPolicy(load_causal_lm(folder))
shard(other, init_device_mesh("cpu", (ranks,)), torch.bfloat16, cpu_offload=True)
losses = [p(packed).logprobs.sum() for p in (policy, other)]
for loss in losses:
    loss.backward()
found = [[p.grad.full_tensor() for p in model.parameters()] for model in (policy, other)]
print(losses[0].item() == losses[1].item(), all(torch.equal(a, b) for a, b in zip(*found)))
"""
    assert in_process_group("gloo", program).split() == ["True", "True"]
