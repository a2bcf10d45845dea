"""The torchmetrics classes: any split into updates and ranks gives what the functions give at once, bit for bit."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from math import fsum

import pytest
import torch

from tagrpo import metrics
from tests.helpers import in_fork

SIZES = [2, 3, 1, 4, 2, 2, 5]
GENERATOR = torch.Generator().manual_seed(0)


def random_rows():
    """Columns of 19 responses to 7 questions of uneven sizes; values that don't add up exactly in float64."""
    question = torch.arange(7).repeat_interleave(torch.tensor(SIZES))
    total = len(question)
    rewards = torch.randint(2, (total,), generator=GENERATOR).double() + 0.1
    rephrasing = torch.tensor([row % 2 for size in SIZES for row in range(size)])
    return {
        "question": question,
        "rephrasing": rephrasing,
        "prompt": 2 * question + rephrasing,
        "rewards": rewards,
        "correct": rewards > 1,
        "truncated": torch.rand(total, generator=GENERATOR) < 0.3,
        "advantages": torch.randn(total, generator=GENERATOR) * (question % 3 > 0),
        "embeddings": torch.randn(total, 5, generator=GENERATOR),
        "answers": [str(int(x)) for x in torch.randint(3, (total,), generator=GENERATOR)],
        "token_ids": [torch.randint(9, (6,), generator=GENERATOR) for _ in range(total)],
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


NAMES = ["rephrasing 0", "rephrasing 1", "nobody has this"]


def named(rows):
    """Values by name, of unequal lengths; parts of the data lack some of the names."""
    numbers = rows["rephrasing"].unique().tolist()
    return {f"rephrasing {n}": rows["advantages"][rows["rephrasing"] == n] / 3 for n in numbers}


# Name → how to make the metric, its arguments for some rows.
METRICS = {
    "MeanByName": (partial(metrics.MeanByName, NAMES), lambda r: (named(r),)),
    "MeanPairwiseDistance": (metrics.MeanPairwiseDistance, lambda r: (r["embeddings"], r["question"])),
    "PassAtK": (partial(metrics.PassAtK, ks=(1,)), lambda r: (r["correct"], r["question"])),
    "ZeroGradientPercentage": (metrics.ZeroGradientPercentage, lambda r: (r["advantages"], r["question"])),
}


def flat(value):
    """A result as something that can be compared exactly, in any order of its names; NaN equals NaN."""
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, dict):
        return {key: flat(part) for key, part in value.items()}
    return str(value)


def test_every_metric_is_covered_here():
    classes = {make.func if isinstance(make, partial) else make for make, _ in METRICS.values()}
    assert {found.__name__ for found in classes} == set(metrics.__all__)


@pytest.mark.parametrize("name", METRICS)
def test_updates_in_parts_and_in_any_order_equal_one(name):
    make, arguments = METRICS[name]
    rows = random_rows()
    whole, parts = make(), make()
    whole.update(*arguments(rows))
    for questions in ([5, 6], [0], [2, 1, 3, 4]):
        parts.update(*arguments(take(rows, questions)))
    assert flat(parts.compute()) == flat(whole.compute())
    parts.reset()
    parts.update(*arguments(rows))
    assert flat(parts.compute()) == flat(whole.compute())


def test_the_percentage_without_gradient_is_that_of_a_count_by_hand():
    metric = metrics.ZeroGradientPercentage()
    rows = random_rows()
    metric.update(rows["advantages"], rows["question"])
    assert metric.compute() == 100 * 3 / 7, "the questions 0, 3 and 6 have zeros alone"
    assert metric.compute().dtype == torch.float64


def test_the_pairwise_distance_is_that_of_all_pairs_one_by_one():
    metric = metrics.MeanPairwiseDistance()
    rows = random_rows()
    metric.update(rows["embeddings"], rows["question"])
    means = []
    for question, size in enumerate(SIZES):
        own = rows["embeddings"][rows["question"] == question].double()
        pairs = [1 - torch.cosine_similarity(a, b, 0).item() for a, b in combinations(own, 2)]
        means += [sum(pairs) / len(pairs)] if size > 1 else []
    assert len(means) == 6, "a single response has no distance"
    assert float(metric.compute()) == pytest.approx(sum(means) / 6, abs=1e-12)


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
@pytest.mark.parametrize("make", [metrics.ZeroGradientPercentage, metrics.MeanPairwiseDistance])
def test_lightning_logs_them_as_a_scalar(make):
    assert make().compute().isnan(), "no mean of nothing"
    assert make().compute().shape == ()


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_without_any_value_there_is_no_mean():
    metric = metrics.MeanByName("abc")
    metric.update({"a": torch.tensor([torch.nan]), "b": torch.zeros(0), "c": torch.tensor([1.0, torch.nan])})
    assert metric.compute() == {"c": 1.0}


def test_a_mean_is_rounded_once():
    metric = metrics.MeanByName(["x"])
    for x in [1e16, 1.0, 1.0, -1e16]:
        metric.update({"x": torch.tensor([x], dtype=torch.float64)})
    assert metric.compute() == {"x": 0.5}, "a running sum would lose both ones"


def test_a_metric_can_be_part_of_a_module():
    module = torch.nn.Module()
    module.metric = metrics.PassAtK(ks=(2,))
    module.to(torch.float64)
    module.metric.update(torch.tensor([True, False]), torch.tensor([0, 0]))
    assert module.metric.compute() == {"pass@2": 1.0}
    assert not module.state_dict(), "an accumulator is no weight"


RANKS = f"""
import importlib.util, os, sys, warnings
import torch, torch.distributed as dist
from tagrpo.callbacks.shared import batch_means
torch.set_num_threads(1)
warnings.simplefilter("ignore")           # torchmetrics wonders about a rank without data
spec = importlib.util.spec_from_file_location("here", {str(__file__)!r})
here = importlib.util.module_from_spec(spec); spec.loader.exec_module(here)

rows = here.random_rows()
alone, synced = {{}}, {{}}
for name, (make, arguments) in here.METRICS.items():
    metric = make()
    metric.update(*arguments(rows))
    alone[name] = here.flat(metric.compute())

child = os.fork()                     # before any thread; one import for both ranks
rank = int(child == 0)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
for shares in ([[1, 4, 6], [0, 2, 3, 5]], [[], [0, 1, 2, 3, 4, 5, 6]]):        # uneven, and a rank without data
    mine = here.take(rows, shares[rank])
    for name, (make, arguments) in here.METRICS.items():
        metric = make()
        if shares[rank]:
            metric.update(*arguments(mine))
        synced[name] = here.flat(metric.compute())
        assert here.flat(batch_means(here.named(mine))) == alone["MeanByName"], "ranks may have different names"
        assert sum(map(len, metric.rows)) <= len(mine["question"]), "what other ranks hold is not kept"
    assert synced == alone, [(name, synced[name], alone[name]) for name in alone if synced[name] != alone[name]]
dist.destroy_process_group()
if rank:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.distributed
def test_two_ranks_equal_one_exactly_even_when_one_has_no_data(tmp_path):
    code, output = in_fork(lambda: exec(RANKS, {"__name__": "__main__"}), tmp_path / "store")
    assert code == 0, output[-2000:]


def test_the_value_of_one_batch_does_not_change_what_is_accumulated():
    """Also `merge_state` and copies are those of every metric; the type of a module around it does not matter."""
    first = {"a": torch.tensor([0.1, 0.2], dtype=torch.float64)}
    second = {"a": torch.tensor([0.7]), "b": torch.tensor([1, 2])}
    metric = metrics.MeanByName("ab").to(torch.bfloat16)
    other = metrics.MeanByName("ab")
    assert metric(first) == {"a": (0.1 + 0.2) / 2}
    assert metric(second) == {"a": second["a"].item(), "b": 1.5}
    other.update(second)
    both = {"a": fsum([*first["a"].tolist(), *second["a"].tolist()]) / 3, "b": 1.5}
    copy = metric.clone()
    assert metric.compute() == copy.compute() == both
    metric.reset()
    metric.update(first)
    metric.merge_state(other)
    assert metric.compute() == both


def test_a_name_that_was_not_announced_is_refused():
    with pytest.raises(ValueError, match=r"names.*other.*mine"):
        metrics.MeanByName(["mine"]).update({"mine": torch.zeros(1), "other": torch.zeros(1)})


def test_without_names_there_are_no_means():
    metric = metrics.MeanByName([])
    metric.update({})
    assert metric.compute() == {}
