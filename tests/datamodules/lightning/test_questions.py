"""The data module on real sources, and its loader in the middle of an epoch."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch

from tagrpo.datamodules.lightning.questions import QuestionDataModule
from tagrpo.datamodules.loader import QuestionLoader
from tagrpo.datamodules.sources.base import Source
from tagrpo.datamodules.sources.concatenated import ConcatenatedSource
from tagrpo.datamodules.sources.table import TableSource
from tagrpo.datamodules.templates import PlainTemplate
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.rewards import FinalAnswerReward, FunctionReward
from tagrpo.starter import starter_path
from tagrpo.types import QuestionBatch, QuestionGroup, Verifier


class Fixed(Source):
    """A source of given questions."""

    def __init__(self, *groups):
        self.groups = groups

    def load(self):
        return list(self.groups)


def make_datamodule(**options):
    options = {
        "train": ArithmeticSource(size=16, num_rephrasings=3),
        "evaluation": {"test_id": ArithmeticSource(split="test_id", size=5)},
        "tokenizer": str(starter_path()),
        "template": PlainTemplate("{question} <sep>"),
        "batch_size": 4,
        "num_rephrasings": 2,
        "samples_per_prompt": 3,
        "max_prompt_tokens": 128,
        **options,
    }
    return QuestionDataModule(**options)


def loader_of(count=10, batch_size=3, **options):
    groups = [QuestionGroup(str(i), f"q{i}", (), ("1",)) for i in range(count)]
    options = {"shuffle": True, "drop_last": True, "seed": 1, **options}
    return QuestionLoader(
        groups, lambda g, epoch: QuestionBatch(groups=list(g), prompts=[]), batch_size, **options
    )


def ids(batches):
    return [[group.id for group in batch.groups] for batch in batches]


def test_prompts_render_the_question_and_anchor_its_rephrasings():
    datamodule = make_datamodule()
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    assert len(batch.groups) == 4
    assert [p.rephrasing for p in batch.prompts] == [0, 1, 2] * 4
    for prompt in batch.prompts:
        group = batch.groups[prompt.question]
        question = (group.question, *group.rephrasings)[prompt.rephrasing]
        assert prompt.text == f"{question} <sep>"
        assert datamodule.tokenizer.decode(prompt.token_ids) == prompt.text
        assert datamodule.tokenizer.decode(prompt.anchor_ids) == f"{group.question} <sep>"
        assert prompt.num_samples == 3


def test_evaluation_asks_the_original_alone_and_covers_every_question():
    datamodule = make_datamodule(evaluation_batch_size=2, evaluation_samples=7)
    datamodule.setup("test")
    (loader,) = datamodule.test_dataloader()
    batches = list(loader)
    assert [len(batch.groups) for batch in batches] == [2, 2, 1]
    assert {batch.split for batch in batches} == {"test_id"}
    assert {(p.rephrasing, p.num_samples) for batch in batches for p in batch.prompts} == {(0, 7)}


def test_validation_may_sample_less_than_the_test():
    for given, expected in ((None, (7, 7)), (2, (2, 7))):
        datamodule = make_datamodule(evaluation_samples=7, validation_samples=given)
        datamodule.setup("test")
        loaders = (*datamodule.val_dataloader(), *datamodule.test_dataloader())
        assert (
            tuple({p.num_samples for batch in loader for p in batch.prompts}.pop() for loader in loaders)
            == expected
        )
    with pytest.raises(ValueError, match=r"data\.validation_samples"):
        make_datamodule(validation_samples=0)


def test_reformulations_are_rendered_without_their_question_and_only_new_ones_that_fit():
    datamodule = make_datamodule(max_prompt_tokens=12, template=PlainTemplate("Question: {question} <sep>"))
    long = "Mia has 6 cards. " * 4
    forms = (" ", "Mia has  6 cards.", "6 cards", "", long, "6  cards", "Mia finds 6 cards.")
    groups = [
        QuestionGroup(
            "a", "Mia has 6 cards.", forms, ("6",), {"level": 1}, tuple(f"kind{n}" for n in range(7))
        ),
        QuestionGroup("b", "Mia has 6 cards.", ("", long), ("6",)),
        QuestionGroup("c", "Mia has 5 cards.", ("6 cards",), ("5",)),
    ]
    batch = datamodule.reformulated(groups)
    assert [group.id for group in batch.groups] == ["a", "c"]
    assert batch.groups[0] == groups[0]._replace(rephrasings=("6 cards", forms[6]), kinds=("kind2", "kind6"))
    assert [(p.question, p.rephrasing, p.kind, p.num_samples) for p in batch.prompts] == [
        (0, 1, "kind2", 3), (0, 2, "kind6", 3), (1, 1, "", 3),
    ]  # fmt: skip
    assert [p.text for p in batch.prompts] == [
        f"Question: {t} <sep>" for t in ("6 cards", forms[6], "6 cards")
    ]
    anchors = [datamodule.tokenizer.decode(p.anchor_ids) for p in batch.prompts]
    assert ["5" in anchor for anchor in anchors] == [False, False, True], "the original question"
    assert (batch.split, batch.rollouts) == ("train", None)
    nothing = datamodule.reformulated([])
    assert (nothing.groups, nothing.prompts) == ([], [])


def test_prompts_over_the_limit_are_left_out_and_counted():
    short, long = "Compute 1 + 2 = ?", "Compute 1" + " , + 2" * 20 + " = ?"
    source = Fixed(
        QuestionGroup("kept", short, (long, short), ("3",)), QuestionGroup("too long", long, (short,), ("3",))
    )
    datamodule = make_datamodule(train=source, evaluation={}, batch_size=1, max_prompt_tokens=20)
    with pytest.warns(UserWarning, match="1 questions and 1 rephrasings"):
        datamodule.setup("fit")
    report = datamodule.report["train"]
    assert report["excluded"]["too_long"] == ["too long"]
    assert (report["read"], report["kept"], report["rephrasings_too_long"]) == (2, 1, 1)
    assert report["rephrasings"] == {1: 1}


def test_what_is_no_source_is_refused_by_its_setting():
    with pytest.raises(TypeError, match=r"data\.evaluation\.mine .*load"):
        make_datamodule(evaluation={"mine": object()})


def test_a_split_without_questions_is_refused():
    datamodule = make_datamodule(
        train=Fixed(QuestionGroup("a", "Compute 1 + 2 = ?", (), ("3",))), max_prompt_tokens=2
    )
    with pytest.raises(ValueError, match="max_prompt_tokens=2"):
        datamodule.setup("fit")


def test_training_serves_whole_batches_in_an_order_of_their_own():
    module = make_datamodule(train=ArithmeticSource(size=10, num_rephrasings=3), batch_size=4)
    module.setup("fit")
    served = ids(module.train_dataloader())
    assert [len(batch) for batch in served] == [4, 4]
    assert sum(served, []) != sorted(sum(served, []))
    assert ids(module.evaluation_loaders()["test_id"]) == [[f"test_id-mixed-0-{i:05d}" for i in range(5)]]


def test_references_are_checked_once_for_each_question_and_the_first_refused_ones_named():
    class Even(Verifier):
        asked: ClassVar = []

        def check_reference(self, reference):
            self.asked.append(reference)
            if int(reference[0]) % 2:
                raise ValueError(f"Expected an even number, but got {reference[0]}.")

    train = [QuestionGroup(f"t{i}", f"{i} + 4 = ?", (), (str(i),)) for i in range(22)]
    test = [QuestionGroup("e0", "3 + 7 = ?", (), ("8",))]
    module = make_datamodule(train=Fixed(*train), evaluation={"test": Fixed(*test)}, num_rephrasings=0)
    module.setup("fit")
    with pytest.raises(ValueError, match="and 1 more") as error:
        module.check_references(Even())
    lines = str(error.value).splitlines()
    assert lines[0] == "Fixed, question t1, answer '1': Expected an even number, but got 1."
    assert [line.split(",")[1] for line in lines[:-2]] == [f" question t{i}" for i in range(1, 20, 2)]
    assert Even.asked == [group.answer for group in train + test]


def test_columns_that_a_reward_function_needs_are_checked_in_each_split():
    train = [QuestionGroup(f"t{i}", f"{i} + 4 = ?", (), (str(i),), {"level": i}) for i in range(4)]
    test = [QuestionGroup("e0", "3 + 7 = ?", (), ("8",))]
    module = make_datamodule(train=Fixed(*train), evaluation={"test": Fixed(*test)}, num_rephrasings=0)
    module.setup("fit")
    module.check_references(FunctionReward(lambda completions, answer: []))
    with pytest.raises(ValueError, match=r"^Expected.*'level'.*answer, question, id.*test"):
        module.check_references(FunctionReward(lambda completions, level: []))
    with pytest.raises(ValueError, match=r"^Expected.*'colour'.*level.*train"):
        module.check_references(FunctionReward(lambda completions, colour: []))


def test_questions_may_have_different_numbers_of_rephrasings():
    q = "Compute 1 + 2 = ?"
    source = Fixed(QuestionGroup("a", q, (), ("3",)), QuestionGroup("b", q, (q, q, q), ("3",)))
    datamodule = make_datamodule(train=source, batch_size=2)
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    assert sorted(sum(p.question == row for p in batch.prompts) for row in (0, 1)) == [1, 3]


def test_rephrasings_of_the_kinds_that_are_asked_for_are_the_first_n():
    q = "Compute 1 + 2 = ?"
    texts, kinds = tuple(f"{q} {n}" for n in range(4)), ("hint", "harder", "wording", "harder")
    source = Fixed(QuestionGroup("a", q, texts, ("3",), kinds=kinds), QuestionGroup("b", q, texts, ("3",)))

    def served(**options):
        module = make_datamodule(train=source, batch_size=2, **options)
        module.setup("fit")
        (batch,) = module.train_dataloader()
        return {group.id: (group.rephrasings, group.kinds) for group in batch.groups}

    assert served(num_rephrasings=None)["a"] == (texts, kinds)
    assert served(num_rephrasings=1, kinds=["harder"]) == {"a": (texts[1:2], ("harder",)), "b": ((), ())}
    assert served(num_rephrasings=2, kinds=["harder", "wording"])["a"] == (texts[1:3], ("harder", "wording"))
    assert served(num_rephrasings=3, kinds=["wording"])["b"] == (texts[:3], ()), (
        "what names no kind is a wording"
    )
    with pytest.raises(ValueError, match=r"data.kinds"):
        served(num_rephrasings=1, kinds=["easier"])


def test_rephrasings_that_are_all_too_long_are_not_called_missing():
    source = Fixed(QuestionGroup("a", "1 + 2 = ?", ("Compute " * 60 + "1 + 2 = ?",), ("3",)))
    module = make_datamodule(train=source, batch_size=1, num_rephrasings=1, max_prompt_tokens=40)
    with pytest.raises(ValueError, match=r"data.max_prompt_tokens=40"):
        module.setup("fit")


def test_every_epoch_has_its_own_order_and_every_question_once():
    loader = loader_of(9)
    first, second = ids(loader), ids(loader)
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == sorted(str(i) for i in range(9))
    assert first != second
    assert ids(loader_of(9)) == first, "the order follows from the seed"


@pytest.mark.parametrize("rank", [0, 1])
def test_questions_that_are_left_out_give_way_to_the_next_ones(rank):
    gone = set()
    loader = loader_of(10, 4, rank=rank, world_size=2)
    whole = sum(ids(loader_of(10, 1)), [])
    loader.serve_by(lambda id: float(id not in gone))
    batches = iter(loader)
    assert ids([next(batches)]) == [whole[:4][rank * 2 : rank * 2 + 2]]
    gone.update([whole[0], whole[5], whole[6]])
    # 4 and 7 of the second batch are served, with 8 and 9 of what would have been left over.
    rest = [whole[4], whole[7], whole[8], whole[9]]
    assert ids(batches) == [rest[rank * 2 : rank * 2 + 2]]
    assert loader.epoch == 0
    assert not gone & set(sum(ids(loader), []))
    assert loader.epoch == 1


def test_an_epoch_without_enough_questions_ends_and_the_last_batch_of_questions_is_never_left_out():
    loader, gone = loader_of(10, 4), {"0", "1", "2"}
    loader.serve_by(lambda id: float(id not in gone))
    assert len(ids(loader)) == 1  # seven questions are left: one batch of four
    gone.update(str(i) for i in range(6))
    assert sorted(sum(ids(loader), [])) == ["6", "7", "8", "9"]
    gone.add("6")
    assert len(ids(loader)) == 2, "three questions make no batch: all are served"


def test_a_question_is_served_as_often_as_its_chance_says_and_no_chance_hangs_on_another():
    loader, other = loader_of(40, 2), loader_of(40, 2)
    loader.serve_by(lambda id: 0.25 if int(id) < 20 else 1.0)
    other.serve_by(lambda id: 0.25 if int(id) < 20 else float(int(id) < 30))
    served = [sum(ids(loader), []) for _ in range(100)]
    count = sum(int(id) < 20 for epoch in served for id in epoch)
    assert abs(count / 2000 - 0.25) < 4 * (0.25 * 0.75 / 2000) ** 0.5
    assert all(sum(int(id) >= 20 for id in epoch) >= 19 for epoch in served), "but for an odd one at the end"
    fewer = [sum(ids(other), []) for _ in range(100)]
    for one, two in zip(served, fewer, strict=True):
        skipping = {id for id in one if int(id) < 20} ^ {id for id in two if int(id) < 20}
        assert len(skipping) <= 1, "the same are skipped, but for an odd one at the end"


def test_peeking_into_the_next_epoch_shows_its_first_batch_and_takes_nothing():
    loader = loader_of(4, 2)
    served = iter(loader)
    ids([next(served), next(served)])
    before = loader.state_dict()
    ahead = ids(loader.peek(1))
    assert loader.state_dict() == before
    assert ids(loader)[:1] == ahead


def test_resuming_among_questions_that_are_left_out_goes_on_with_the_next_batch():
    gone = {"1", "4", "8"}
    straight, stopped, resumed = loader_of(20), loader_of(20), loader_of(20)
    for loader in (straight, stopped, resumed):
        loader.serve_by(lambda id: float(id not in gone))
    expected = ids(straight) + ids(straight)
    seen = ids(batch for _, batch in zip(range(2), stopped, strict=False))
    resumed.load_state_dict(stopped.state_dict())
    assert seen + ids(resumed) + ids(resumed) == expected


def test_resuming_in_the_middle_of_an_epoch_goes_on_with_the_next_batch():
    straight = loader_of()
    expected = ids(straight) + ids(straight)
    stopped = loader_of()
    seen = []
    for batch in stopped:
        seen += ids([batch])
        if len(seen) == 2:
            break
    resumed = loader_of()
    resumed.load_state_dict(stopped.state_dict())
    assert seen + ids(resumed) + ids(resumed) == expected


def test_drawing_out_of_turn_takes_the_next_batch_and_crosses_epochs():
    expected = ids(loader_of(6, 2))
    loader = loader_of(6, 2)
    iterator = iter(loader)
    seen = ids([next(iterator), loader.draw(), next(iterator)])
    assert seen == expected
    later = loader.draw()
    assert loader.state_dict()["epoch"] == 1
    straight = loader_of(6, 2)
    ids(straight)
    assert ids([later]) == ids(straight)[:1]


def test_peeking_shows_the_next_batch_and_takes_nothing():
    loader, straight = loader_of(6, 2), loader_of(6, 2)
    expected = ids(straight) + ids(straight)
    seen = []
    for _ in range(2):
        for number, batch in enumerate(loader, start=1):
            seen.append(ids([batch, *loader.peek(1)]))
            assert loader.state_dict()["cursor"] == 2 * number
    assert seen[:5] == [expected[i : i + 2] for i in range(5)], "over the end of the epoch too"


def test_a_state_of_other_questions_is_refused():
    with pytest.raises(ValueError, match="resume on 10 questions"):
        loader_of(11).load_state_dict(loader_of(10).state_dict())


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_each_batch_without_splitting_a_question(world_size):
    whole = ids(loader_of(16, 4))
    parts = [ids(loader_of(16, 4, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert [sum(batches, []) for batches in zip(*parts, strict=True)] == whole


def test_uneven_evaluation_batches_reach_every_question_once():
    options = {"shuffle": False, "drop_last": False, "world_size": 3}
    parts = [ids(loader_of(7, 4, rank=rank, **options)) for rank in range(3)]
    assert {len(part) for part in parts} == {2}
    assert sorted(id for part in parts for batch in part for id in batch) == [str(i) for i in range(7)]


def test_batches_that_cannot_be_shared_out_are_refused():
    with pytest.raises(ValueError, match="2 ranks"):
        loader_of(10, 3, world_size=2)
    with pytest.raises(ValueError, match="at least data.batch_size=20"):
        loader_of(10, 20)


def test_numbers_out_of_range_are_refused():
    for name in ("batch_size", "samples_per_prompt", "evaluation_samples"):
        with pytest.raises(ValueError, match=rf"data\.{name}"):
            make_datamodule(**{name: 0})


def test_tokens_are_long_tensors():
    datamodule = make_datamodule()
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    assert {p.token_ids.dtype for p in batch.prompts} == {torch.long}


def test_prompts_stay_on_the_cpu_where_they_meet_their_responses():
    datamodule = make_datamodule()
    datamodule.setup("fit")
    batch = next(iter(datamodule.train_dataloader()))
    moved = datamodule.transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert {ids.device.type for prompt in moved.prompts for ids in (prompt.token_ids, prompt.anchor_ids)} == {
        "cpu"
    }


def test_questions_with_unknown_words_are_refused_before_anything_else():
    source = Fixed(*(QuestionGroup(str(n), "What is half of 18?", (), ("9",)) for n in range(8)))
    with pytest.raises(ValueError, match=r"(?s)train.*<unk>.*model=smollm2_135m "):
        make_datamodule(train=source, evaluation={}).setup("fit")
    with pytest.raises(ValueError, match=r"(?s)test.*<unk>.*model=smollm2_135m "):
        make_datamodule(train=None, evaluation={"test": source}).setup("test")


def test_sources_know_the_settings_that_their_messages_name(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"prompt": "1 + 1 = ?", "answer": "2"}\n')
    table = TableSource(tmp_path / "q.jsonl")
    for train, evaluation, setting in (
        (table, {}, "data.train"),
        (None, {"mine": table}, "data.evaluation.mine"),
        (ConcatenatedSource({"a": table}), {}, "data.train.sources.a"),
    ):
        datamodule = make_datamodule(train=train, evaluation=evaluation)
        with pytest.raises(ValueError, match=rf"{setting}\.columns\.question=prompt"):
            datamodule.setup("test" if train is None else "fit")


def test_worked_solutions_are_refused_with_the_override_that_reads_them(tmp_path):
    row = {"question": "1 + 1 = ?", "answer": "1 + 1 = 2\n#### 2"}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    path = tmp_path / "q.jsonl"
    datamodule = make_datamodule(
        train=TableSource(path), evaluation={"test": TableSource(path)}, batch_size=1, num_rephrasings=0
    )
    datamodule.setup("fit")
    with pytest.raises(ValueError, match="data.train.worked=true data.evaluation.test.worked=true"):
        datamodule.check_references(FinalAnswerReward())
    sources = {
        "train": TableSource(path, worked=True),
        "evaluation": {"test": TableSource(path, worked=True)},
    }
    datamodule = make_datamodule(**sources, batch_size=1, num_rephrasings=0)
    datamodule.setup("fit")
    datamodule.check_references(FinalAnswerReward())
