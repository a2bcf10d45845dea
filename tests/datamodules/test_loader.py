"""What a loader serves for any sizes, ranks and splits; the rest is tested with its data module."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tagrpo.datamodules.loader import QuestionLoader
from tagrpo.types import QuestionBatch, QuestionGroup

SIZES = st.tuples(st.integers(1, 12), st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 9))


def loader(sizes, rank=0, world_size=1):
    questions, batch_size, shuffle, drop_last, seed = sizes
    groups = [QuestionGroup(str(i), f"question {i}", (), ("1",)) for i in range(questions)]
    drop_last = drop_last and questions >= batch_size and not batch_size % world_size
    return QuestionLoader(
        groups, lambda groups, epoch: QuestionBatch(groups=list(groups), prompts=[]), batch_size,
        shuffle=shuffle, drop_last=drop_last, seed=seed, rank=rank, world_size=world_size,
    )  # fmt: skip


def ids(batch):
    return [group.id for group in batch.groups]


@given(SIZES)
def test_an_epoch_serves_every_question_once_but_for_what_is_dropped(sizes):
    one = loader(sizes)
    served = [ids(batch) for batch in one]
    flat = [id for batch in served for id in batch]
    assert len(served) == len(one)
    assert len(set(flat)) == len(flat) == (len(one) * one.batch_size if one.drop_last else len(one.groups))


@given(SIZES, st.integers(1, 4))
def test_ranks_share_out_each_batch_of_one_process(sizes, ranks):
    parts = [loader(sizes, rank, ranks) for rank in range(ranks)]
    alone = loader((*sizes[:3], parts[0].drop_last, sizes[4]))
    for _ in range(2):
        for whole, *shares in zip(alone, *parts, strict=True):
            assert [id for share in shares for id in ids(share)] == ids(whole)


@given(SIZES, st.integers(0, 30), st.sets(st.integers(0, 11), max_size=6))
def test_a_loader_goes_on_from_any_split(sizes, at, left_out):
    def batches(one, count):
        one.serve_by(lambda id: float(int(id) not in left_out))
        found = []
        while len(found) < count:
            found += [ids(batch) for batch, _ in zip(one, range(count - len(found)), strict=False)]
        return found

    whole, first, second = (loader(sizes) for _ in range(3))
    expected = [ids(whole.draw()) for _ in range(at + 8)]
    assert [ids(first.draw()) for _ in range(at)] == expected[:at]
    second.load_state_dict(first.state_dict())
    assert [ids(second.draw()) for _ in range(8)] == expected[at:]
    assert ids(second.peek(1)[0]) == ids(second.draw()), "to look takes nothing"
    assert batches(second, 1)


@given(SIZES, st.sets(st.integers(0, 11)))
def test_what_is_left_out_is_served_only_where_too_little_would_be_left(sizes, left_out):
    one = loader(sizes)
    out = {str(i) for i in left_out if i < sizes[0]}
    one.serve_by(lambda id: float(id not in out))
    served = {id for batch in one for id in ids(batch)}
    if sizes[0] - len(out) >= sizes[1]:
        assert not served & out
        assert one.drop_last or served == {group.id for group in one.groups} - out


@given(SIZES, st.integers(1, 5))
def test_evaluations_that_are_cut_short_begin_with_the_same_batches(sizes, count):
    questions, batch_size, _, _, seed = sizes
    one = loader((questions, batch_size, False, False, seed))
    first, again = ([ids(batch) for _, batch in zip(range(count), one, strict=False)] for _ in range(2))
    assert again == first
    assert first[0][0] == "0"
    assert one.epoch == 0
