"""The torchmetrics classes: any split into updates and ranks gives what the functions give at once, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tagrpo import metrics
from tagrpo.metrics import functional

SIZES = [2, 3, 1, 4, 2, 2, 5]
GENERATOR = torch.Generator().manual_seed(0)


def random_rows():
    """Columns of 19 responses to 7 questions of uneven sizes; values that don't add up exactly in float64."""
    question = torch.arange(7).repeat_interleave(torch.tensor(SIZES))
    total = len(question)
    rewards = torch.randint(2, (total,), generator=GENERATOR).double() + 0.1
    variant = torch.tensor([row % 2 for size in SIZES for row in range(size)])
    return {
        "question": question,
        "variant": variant,
        "prompt": 2 * question + variant,
        "rewards": rewards,
        "correct": rewards > 1,
        "truncated": torch.rand(total, generator=GENERATOR) < 0.3,
        "advantages": torch.randn(total, generator=GENERATOR) * (question % 3 > 0),
        "embeddings": torch.randn(total, 5, generator=GENERATOR),
        "answers": [str(int(x)) for x in torch.randint(3, (total,), generator=GENERATOR)],
        "ids": [torch.randint(9, (6,), generator=GENERATOR) for _ in range(total)],
        "logprobs": [-torch.rand(6, generator=GENERATOR) for _ in range(total)],
    }


def take(rows, questions):
    """The rows of some questions."""
    chosen = torch.isin(rows["question"], torch.tensor(questions, dtype=torch.long))
    return {
        name: column[chosen]
        if isinstance(column, torch.Tensor)
        else [column[i] for i in chosen.nonzero()[:, 0].tolist()]
        for name, column in rows.items()
    }


UPDATES = {
    "UniformRewardPercentage": lambda m, r: m.update(r["rewards"], r["question"]),
    "ZeroGradientPercentage": lambda m, r: m.update(r["advantages"], r["question"]),
    "ZeroGradientCauses": lambda m, r: m.update(
        r["advantages"], r["rewards"], r["correct"], r["truncated"], r["question"], r["variant"]
    ),
    "MeanPairwiseDistance": lambda m, r: m.update(r["embeddings"], r["question"]),
    "PairwiseDistanceDensity": lambda m, r: m.update(r["embeddings"], r["question"]),
    "AnswerDiversity": lambda m, r: m.update(r["answers"], r["correct"], r["question"]),
    "AnswerEntropy": lambda m, r: m.update(r["answers"], r["question"]),
    "DistinctN": lambda m, r: m.update(r["ids"], r["question"]),
    "SampledEntropy": lambda m, r: m.update(r["logprobs"], r["question"]),
    "SumAbsoluteAdvantage": lambda m, r: m.update(r["advantages"], r["question"]),
    "EffectiveSampleShare": lambda m, r: m.update(r["advantages"], r["question"]),
    "PassAtK": lambda m, r: m.update(r["correct"], r["question"]),
    "MajAtK": lambda m, r: m.update(r["answers"], r["correct"], r["question"]),
    "MeanByKey": lambda m, r: m.update(r["rewards"], r["variant"]),
    "DifficultyHomogeneity": lambda m, r: m.update(r["correct"], r["prompt"], r["question"]),
    "BudgetLedger": lambda m, r: m.update(
        rollouts=len(r["ids"]), tokens=6 * len(r["ids"]), updates=0, questions=len(r["question"].unique()), seconds={}
    ),
}  # fmt: skip


def make(name):
    return getattr(metrics, name)(**({"ks": (1,)} if name in ("PassAtK", "MajAtK") else {}))


def flat(value):
    """A result as something that can be compared exactly; NaN equals NaN."""
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, dict):
        return {key: flat(part) for key, part in value.items()}
    return str(value)


def test_every_metric_is_covered_here():
    assert set(UPDATES) == set(metrics.__all__)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_updates_in_parts_and_in_any_order_equal_one(name):
    rows = random_rows()
    whole, parts = make(name), make(name)
    UPDATES[name](whole, rows)
    for questions in ([5, 6], [0], [2, 1, 3, 4]):
        UPDATES[name](parts, take(rows, questions))
    assert flat(parts.compute()) == flat(whole.compute())
    if hasattr(whole, "intervals"):
        assert parts.intervals() == whole.intervals()


def test_the_classes_give_what_the_functions_give():
    rows = random_rows()
    question = rows["question"]
    expected = {
        "UniformRewardPercentage": functional.uniform_reward_percentage(rows["rewards"], question),
        "ZeroGradientPercentage": functional.zero_gradient_percentage(rows["advantages"], question),
        "MeanPairwiseDistance": functional.mean_pairwise_distance(rows["embeddings"], question).nanmean(),
        "AnswerEntropy": functional.answer_entropy(rows["answers"], question).mean(),
        "DistinctN": functional.distinct_n(rows["ids"], question, 2).mean(),
        "SampledEntropy": functional.sampled_entropy(rows["logprobs"], question).mean(),
        "SumAbsoluteAdvantage": functional.sum_absolute_advantage(rows["advantages"], question).mean(),
    }
    for name, value in expected.items():
        metric = make(name)
        UPDATES[name](metric, rows)
        torch.testing.assert_close(metric.compute(), value)


def test_causes_and_rescue_are_counted_by_hand():
    metric = metrics.ZeroGradientCauses()
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    advantages = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, -1.0])
    question = torch.tensor([0, 0, 1, 1, 2, 2])
    variant, truncated = torch.tensor([0, 1] * 3), torch.tensor([0, 0, 1, 1, 0, 0]).bool()
    for _ in range(2):
        metric.update(advantages, rewards, rewards > 0, truncated, question, variant)
    found = {name: round(float(value), 4) for name, value in metric.compute().items() if value}
    assert found == {"all_right": 33.3333, "truncated": 33.3333, "total": 66.6667, "rescued": 33.3333}


def test_the_density_integrates_to_one_and_peaks_where_distances_are():
    metric = metrics.PairwiseDistanceDensity(points=401)
    for angle in (0.5, 0.6, 0.7):
        pair = torch.tensor([[1.0, 0.0], [torch.tensor(angle).cos(), torch.tensor(angle).sin()]])
        metric.update(pair, torch.tensor([0, 0]))
    density = metric.compute()
    assert float(torch.trapezoid(density, metric.grid)) == pytest.approx(1, abs=0.01)
    assert float(metric.grid[density.argmax()]) == pytest.approx(1 - float(torch.tensor(0.6).cos()), abs=0.03)


def test_the_ledger_adds_samples_and_takes_the_slowest_rank():
    ledger = metrics.BudgetLedger(phases=("generate",))
    for _ in range(3):
        ledger.update(rollouts=4, tokens=10, updates=2, questions=1, seconds={"generate": 0.5, "other": 9.0})
    assert ledger.compute() == functional.Budget(12, 30, 6, 3, {"generate": 1.5})


RANKS = f"""
import importlib.util, os, sys, warnings
import torch, torch.distributed as dist
torch.set_num_threads(1)
warnings.simplefilter("ignore")           # torchmetrics wonders about a rank without data
spec = importlib.util.spec_from_file_location("here", {str(__file__)!r})
here = importlib.util.module_from_spec(spec); spec.loader.exec_module(here)
from tagrpo.callbacks.shared import mean_over_ranks

rows = here.random_rows()
alone, synced = {{}}, {{}}
for name, update in here.UPDATES.items():
    metric = here.make(name)
    update(metric, rows)
    alone[name] = here.flat(metric.compute())
alone["mean"] = mean_over_ranks({{"x": rows["advantages"].double() / 3}})

child = os.fork()                     # before any thread; one import for both ranks
rank = int(child == 0)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
for shares in ([[1, 4, 6], [0, 2, 3, 5]], [[], [0, 1, 2, 3, 4, 5, 6]]):        # uneven, and a rank without data
    mine = here.take(rows, shares[rank])
    for name, update in here.UPDATES.items():
        metric = here.make(name)
        if shares[rank]:
            update(metric, mine)
        synced[name] = here.flat(metric.compute())
    synced["mean"] = mean_over_ranks({{"x": mine["advantages"].double() / 3}})
    assert synced == alone, [(name, synced[name], alone[name]) for name in alone if synced[name] != alone[name]]
dist.destroy_process_group()
if rank:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.distributed
def test_two_ranks_equal_one_exactly_even_when_one_has_no_data(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
