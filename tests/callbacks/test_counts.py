"""Files of counts: what was written is read back, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.callbacks.counts import CountStore, read_line, seal_of
from tagrpo.foreign import ForeignDataError
from tagrpo.metrics.evaluation import merge_counts


def record(id="q", n=4, correct=1, wrong=None, split="test"):
    counts = {
        "metadata": {"level": 2}, "n": n, "correct": correct, "right": ["7"][:correct],
        "wrong": {"8": n - correct} if wrong is None else wrong, "tokens": 9 * n, "truncated": 0,
    }  # fmt: skip
    return {"split": split, "id": id, "counts": counts}


def keyed(*records):
    return {(each["split"], each["id"]): each for each in records}


def test_counts_of_all_ranks_are_read_back(tmp_path):
    store = CountStore(tmp_path)
    records = [record("a"), record("b", split="other"), record("c", correct=0)]
    store.append(0, records[:2])
    store.append(1, records[2:])
    assert store.read() == keyed(*records)


def test_records_of_one_question_in_a_batch_are_stored_as_one(tmp_path):
    twice = [record(n=4), record(n=3, wrong={"9": 2})]
    CountStore(tmp_path).append(0, twice)
    (one,) = CountStore(tmp_path).read().values()
    assert one["counts"]["n"] == 7
    assert one["counts"]["wrong"] == {"8": 3, "9": 2}
    assert merge_counts([one]) == merge_counts(twice)


def test_a_damaged_count_is_left_out_with_a_warning(tmp_path):
    records = [record(id) for id in "abcd"]
    CountStore(tmp_path).append(0, records)
    file = tmp_path / "0.counts"
    lines = file.read_text().splitlines()
    changed = lines[0].replace('"correct": 1', '"correct": 2')
    assert changed != lines[0]
    file.write_text("\n".join([changed, *lines[1:-1], lines[-1][:-5]]))
    with pytest.warns(UserWarning, match="Skipping 2 of 4 lines"):
        assert CountStore(tmp_path).read() == keyed(*records[1:-1])
    CountStore(tmp_path).append(0, [records[-1]])
    with pytest.warns(UserWarning, match="Skipping 2"):
        assert CountStore(tmp_path).read() == keyed(*records[1:])


def test_two_different_records_of_a_question_are_refused_and_more_responses_take_the_place_of_fewer(tmp_path):
    store = CountStore(tmp_path)
    store.append(0, [record(n=4)])
    store.append(0, [record(n=6)])
    assert store.read() == keyed(record(n=6))
    store.append(1, [record(n=6, correct=0)])
    with pytest.raises(ForeignDataError, match=r"0\.counts and .*1\.counts"):
        store.read()


@pytest.mark.parametrize(("n", "of_one_evaluation", "enough"), [
    (3, True, False), (4, True, True), (5, True, False), (1000, True, False), (3, False, False), (5, False, True),
])  # fmt: skip
def test_a_record_of_more_responses_than_an_evaluation_samples_is_not_one_of_its_own(
    n, of_one_evaluation, enough, tmp_path
):
    store = CountStore(tmp_path)
    if of_one_evaluation:
        store.identify = dict
    if n > 4 and of_one_evaluation:
        with pytest.warns(UserWarning, match=f"of {n} responses.*samples 4"):
            assert store.suffices(record(n=n), 4) is enough
    else:
        assert store.suffices(record(n=n), 4) is enough


@pytest.mark.parametrize("name", ["0 (copy)", "one", "-1", "0.0", "²"])
def test_a_file_that_no_rank_has_written_is_told(name, tmp_path):
    CountStore(tmp_path).append(0, [record("a")])
    (tmp_path / f"{name}.counts").write_bytes((tmp_path / "0.counts").read_bytes())
    with pytest.warns(UserWarning, match="Skipping .*no rank"):
        assert CountStore(tmp_path).read() == keyed(record("a"))


def test_a_folder_of_the_name_of_a_file_is_told(tmp_path):
    (tmp_path / "3.counts").mkdir()
    with pytest.warns(UserWarning, match="Skipping .*no rank"):
        assert CountStore(tmp_path).read() == {}


def sealed(content, name=""):
    text = content if isinstance(content, str) else json.dumps(content)
    return f"{seal_of(text, name)}\t{text}".encode("utf-8", "surrogatepass")


def without(path, content):
    content = json.loads(json.dumps(content))
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return content


FIELDS = [("split",), ("id",), ("counts",), *(("counts", name) for name in record()["counts"])]


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_a_line_with_a_right_checksum_has_every_field(path):
    read_line(sealed(record()), "", "x")
    with pytest.raises(ForeignDataError, match=path[-1]):
        read_line(sealed(without(path, record())), "", "x")


@pytest.mark.parametrize(
    "changed",
    [
        {"n": 0}, {"n": -4}, {"n": 4.0}, {"n": True}, {"n": "4"}, {"n": None}, {"n": 3}, {"correct": 2},
        {"correct": -1},
        {"correct": 1.0}, {"truncated": 5}, {"wrong": {"8": -3}}, {"wrong": {"8": 9}}, {"wrong": ["8"]}, {"right": "7"},
        {"right": [7]}, {"right": ["7", "8"]}, {"metadata": None}, {"tokens": 1e400}, {"tokens": -1}, {"tokens": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_counts_that_do_not_add_up_are_no_counts(changed):
    content = record()
    content["counts"] |= changed
    with pytest.raises(ForeignDataError):
        read_line(sealed(content), "", "x")


def test_a_line_is_of_one_evaluation():
    assert read_line(sealed(record(), "a"), "a", "x") == record()
    for name in ("", "b", "A"):
        with pytest.raises(ForeignDataError, match="checksum"):
            read_line(sealed(record(), "a"), name, "x")


@given(
    st.binary(max_size=60)
    | st.text(max_size=60).map(sealed)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["split", "id", "counts", "n"]), inner)
        ),
    ).map(sealed)
)
def test_nothing_but_the_error_of_foreign_data_is_raised(line):
    with pytest.raises(ForeignDataError):
        read_line(line, "", "x")


@pytest.mark.parametrize("place", ["0.counts", "identity.json", "."])
@pytest.mark.parametrize("stranger", ["folder", "loop", "pipe"])
def test_what_stands_in_the_place_of_a_file_is_refused_before_anything_is_sampled(place, stranger, tmp_path):
    store = CountStore(tmp_path / "counts")
    store.identify = lambda: {"weights": "1"}
    store.resume()
    path = store.folder if place == "." else store.folder / place
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if stranger == "pipe":
        os.mkfifo(path)
    elif stranger == "loop":
        path.symlink_to(path.name)
    elif place == ".":
        path.touch()
    else:
        path.mkdir()
    again = CountStore(tmp_path / "counts")
    again.identify = lambda: {"weights": "1"}
    with pytest.raises(FileExistsError, match=re.escape(str(path))):
        again.resume()
