"""Public datasets, read by `datasets` from copies in the layout that they have on the hub."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagrpo.datamodules.sources.base import fingerprint
from tagrpo.datamodules.sources.catalogue import CATALOGUE
from tagrpo.datamodules.sources.files import read_rows
from tagrpo.datamodules.sources.hub import HubSource

DATA = Path(__file__).parents[3].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the datasets beside the project")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def repository(folder, rows, config="default", split="train"):
    """A copy of a repository of the hub: a card that names the files of each configuration, and the files."""
    (folder / config).mkdir(parents=True)
    file = f"{config}/{split}-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), folder / file)
    card = {"configs": [{"config_name": config, "data_files": [{"split": split, "path": file}]}]}
    (folder / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    return folder


def copy_of(name, root, rows):
    """A copy of dataset `name` at `root`."""
    known = CATALOGUE[name]
    if known.folder:  # without a card, among folders with other sets
        for folder, content in ((known.folder, rows), ("another", rows * 2)):
            (root / name / folder).mkdir(parents=True)
            pq.write_table(pa.Table.from_pylist(content), root / name / folder / f"{known.split}.parquet")
        return root / name
    return repository(root / name, rows, known.config or "default", known.split)


def math_rows(*solutions):
    return [
        {"problem": f"Problem {number}?", "level": "Level 1", "type": "Algebra", "solution": solution}
        for number, solution in enumerate(solutions)
    ]


# One row of each, with the columns that it has on the hub, and what is to become of it: (id, question, answer).
ROWS = {
    "math_train": (
        {
            "problem": "What is $1+1$?",
            "level": "Level ?",
            "solution": r"It is $\boxed{2}$.",
            "type": "Algebra",
        },
        ("math_train-0", "What is $1+1$?", ("2",)),
    ),
    "openr1_math": (
        {
            "problem": "Find $x$.",
            "solution": "…",
            "answer": r"\frac{1}{2}",
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "olympiads",
            "uuid": "cfc7",
            "generations": ["<think>…"],
        },
        ("openr1_math-cfc7", "Find $x$.", (r"\frac{1}{2}",)),
    ),
    "dapo_17k": (
        {
            "prompt": "How many?",
            "solution": "34",
            "data_source": "math_dapo",
            "source_prompt": [{"content": "Solve: How many?", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": "9a98"},
        },
        ("dapo_17k-9a98", "How many?", ("34",)),
    ),
    "gsm8k_train": (
        {"question": "How many clips?", "answer": "48/2 = <<48/2=24>>24 clips.\n#### 1,024"},
        ("gsm8k_train-0", "How many clips?", ("1,024",)),
    ),
    "gsm8k_test": (
        {"question": "How many ducks?", "answer": "It is 3.\n#### 3"},
        ("gsm8k_test-0", "How many ducks?", ("3",)),
    ),
    "simplerl_math": (
        {
            "question": "How long?",
            "prompt": [{"content": "Reason.", "role": "system"}, {"content": "How long? ", "role": "user"}],
            "reward_model": {"ground_truth": "30", "style": "rule"},
            "extra_info": {"index": "1ee2"},
        },
        ("simplerl_math-1ee2", "How long?", ("30",)),
    ),
    "math500": (
        {
            "problem": "Convert.",
            "solution": "…",
            "answer": r"\left( 3, \frac{\pi}{2} \right)",
            "subject": "Precalculus",
            "level": 2,
            "unique_id": "test/precalculus/807.json",
        },
        ("math500-test/precalculus/807.json", "Convert.", (r"\left( 3, \frac{\pi}{2} \right)",)),
    ),
    "amc": (
        {"id": 7, "problem": "Find $m+n$.", "answer": 142.0, "url": "u"},
        ("amc-7", "Find $m+n$.", ("142",)),
    ),
    "olympiadbench": (
        {"id": 1606, "question": "How many moves?", "answer": ["2", "$2$"], "subfield": "Combinatorics"},
        ("olympiadbench-1606", "How many moves?", ("2", "$2$")),
    ),
    "aime24": (
        {
            "id": 60,
            "problem": "Find the minutes.",
            "solution": "…",
            "answer": "204",
            "url": "u",
            "year": "2024",
        },
        ("aime24-60", "Find the minutes.", ("204",)),
    ),
    "aime25": (
        {"problem": "Find the sum.", "answer": "70", "id": "0"},
        ("aime25-0", "Find the sum.", ("70",)),
    ),
    "olymmath_easy": (
        {
            "problem": "How many sequences?",
            "answer": "948",
            "subject": "Combinatorics",
            "unique_id": "OlymMATH-EASY-0-EN",
        },
        ("olymmath_easy-OlymMATH-EASY-0-EN", "How many sequences?", ("948",)),
    ),
    "olymmath_hard": (
        {
            "problem": "Find the minimum.",
            "answer": "2625",
            "subject": "Algebra",
            "unique_id": "OlymMATH-HARD-0-EN",
        },
        ("olymmath_hard-OlymMATH-HARD-0-EN", "Find the minimum.", ("2625",)),
    ),
    "minerva": ({"question": "Find $L$.", "answer": "7e37"}, ("minerva-0", "Find $L$.", ("7e37",))),
    "gpqa_diamond": (
        {
            "Record ID": "rec06",
            "Question": "Which?\n",
            "Correct Answer": "this \n",
            "Incorrect Answer 1": "a",
            "Incorrect Answer 2": "b",
            "Incorrect Answer 3": "c",
            "High-level domain": "Physics",
            "Subdomain": "Optics",
        },
        (
            "gpqa_diamond-rec06",
            "Which?\n\nA) c\nB) this\nC) a\nD) b\n\nAnswer with the letter of the correct choice.",
            ("B",),
        ),
    ),
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_dataset_loads_from_a_copy_of_its_repository(tmp_path, name):
    row, expected = ROWS[name]
    copy_of(name, tmp_path, [row])
    source = HubSource(name, path=tmp_path)
    (group,) = source.load()
    assert (group.id, group.question, group.answer) == expected
    assert source.report.origin == str(tmp_path / name)
    (warning,) = source.report.warnings
    assert f"1 rows instead of {CATALOGUE[name].rows}" in warning


def test_all_forms_of_a_copy_read_alike(tmp_path):
    rows = [ROWS["math_train"][0]]
    copy_of("math_train", tmp_path / "hub", rows)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "math_train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mine.parquet")
    ways = ["hub", "hub/math_train", "files", "files/math_train.jsonl", "mine.json", "mine.parquet"]
    (expected,) = {fingerprint(HubSource("math_train", path=tmp_path / ways[0]).load())}
    for way in ways[1:]:
        assert fingerprint(HubSource("math_train", path=tmp_path / way).load()) == expected, way


def test_a_set_that_is_missing_from_a_folder_is_not_replaced_by_another(tmp_path):
    copy_of("gsm8k_train", tmp_path / "data", [ROWS["gsm8k_train"][0]])
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/data/amc\.jsonl"):
        HubSource("amc", path=tmp_path / "data").load()
    with pytest.raises(FileNotFoundError, match="gsm8k_test"):  # of its own split nothing is known here
        HubSource("gsm8k_test", path=tmp_path / "data").load()
    snapshot = tmp_path / "datasets--AI-MO--aimo-validation-amc" / "snapshots" / "abc"
    copy_of("amc", tmp_path / "one", [ROWS["amc"][0]])
    shutil.copytree(tmp_path / "one" / "amc", snapshot)
    assert len(HubSource("amc", path=snapshot).load()) == 1


def test_a_copy_that_has_changed_is_read_anew(tmp_path):
    for answer in ("1", "2"):
        shutil.rmtree(tmp_path / "math_train", ignore_errors=True)
        copy_of("math_train", tmp_path, math_rows(rf"\boxed{{{answer}}}"))
        assert HubSource("math_train", path=tmp_path).load()[0].answer == (answer,)


def test_answers_of_worked_solutions_are_found_in_every_form(tmp_path):
    forms = {
        r"Hence $\boxed{\frac{1}{\sqrt{2}}}$.": r"\frac{1}{\sqrt{2}}",
        "so\n\\[\\boxed{\n\\begin{pmatrix} 0 \\\\ 1 \\end{pmatrix}\n}.\\]": "\\begin{pmatrix} 0 \\\\ 1 \\end{pmatrix}",
        r"thus $x = \boxed 9$.": "9",
        r"that is $\boxed{\mbox{four}}$.": r"\mbox{four}",
        r"first $\boxed{1}$, then $\boxed{\{2, 3\}}$": r"\{2, 3\}",
    }
    copy_of("math_train", tmp_path, math_rows(*forms))
    assert [group.answer for group in HubSource("math_train", path=tmp_path).load()] == [
        (a,) for a in forms.values()
    ]


def test_rows_without_question_or_answer_are_left_out_by_id(tmp_path):
    rows = math_rows(r"\boxed{1}", r"\boxed{}", "none", r"\boxed{4}")
    rows[3]["problem"] = " "
    copy_of("math_train", tmp_path, rows)
    source = HubSource("math_train", path=tmp_path)
    assert [group.id for group in source.load()] == ["math_train-0"]
    assert source.report.read == 4
    assert source.report.excluded == {
        "without_question": ["math_train-3"],
        "without_answer": ["math_train-1", "math_train-2"],
    }


def test_the_long_columns_of_openr1_are_not_read(tmp_path):
    copy_of("openr1_math", tmp_path, [ROWS["openr1_math"][0]])
    known = CATALOGUE["openr1_math"]
    table = read_rows(tmp_path / "openr1_math", known.config, known.split, columns=known.columns)
    assert set(next(iter(table)).values()) == set(known.columns)


def test_questions_without_a_checkable_answer_are_left_out_of_openr1(tmp_path):
    row = ROWS["openr1_math"][0]
    rows = [
        {**row, "uuid": answer, "problem": f"Show {answer}.", "answer": answer}
        for answer in ("proof", "x", "")
    ]
    copy_of("openr1_math", tmp_path, rows)
    source = HubSource("openr1_math", path=tmp_path)
    assert [group.answer for group in source.load()] == [("x",)]
    assert source.report.excluded == {"without_answer": ["openr1_math-proof", "openr1_math-2"]}


def test_repetitions_are_left_out_of_dapo_and_named(tmp_path):
    texts = ["Find $x^2$.", "Find $y$.", "find  \\(x^2\\)"]
    rows = [
        {"prompt": text, "solution": "1", "extra_info": {"index": str(number)}}
        for number, text in enumerate(texts)
    ]
    copy_of("dapo_17k", tmp_path, rows)
    source = HubSource("dapo_17k", path=tmp_path)
    assert [group.id for group in source.load()] == ["dapo_17k-0", "dapo_17k-1"]
    assert source.report.excluded == {"repeated": ["dapo_17k-2"]}


# ---------------------------------------------------------------------- chunks


def openr1(root, count, order=None):
    row = ROWS["openr1_math"][0]
    rows = [{**row, "uuid": str(number), "problem": f"Find {number}."} for number in order or range(count)]
    copy_of("openr1_math", root, rows)
    return root


def chunk(root, *chunks, **options):
    source = HubSource("openr1_math", path=root, chunks=list(chunks), chunk_size=10, **options)
    return [group.id for group in source.load()]


def test_chunks_are_disjoint_and_the_same_whatever_the_order_of_the_rows(tmp_path):
    one, other = openr1(tmp_path / "one", 35), openr1(tmp_path / "other", 35, order=range(34, -1, -1))
    first, second, third = chunk(one, 0), chunk(one, 1), chunk(one, 2)
    assert len({*first, *second, *third}) == 30
    assert chunk(one, 0, 1, 2) == first + second + third
    assert chunk(other, 0, 1, 2) == first + second + third
    assert chunk(one, 0, seed=1) != first
    # A change of the order would silently train another baseline.
    assert first[:3] == ["openr1_math-12", "openr1_math-22", "openr1_math-29"]


def test_chunks_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"openr1_math: .*\[3\].*`chunks`"):
        chunk(openr1(tmp_path, 35), 3)
    for chunks in ([0, 0], [-1]):
        with pytest.raises(ValueError, match=rf"`chunks`.*{re.escape(str(chunks))}"):
            HubSource("openr1_math", chunks=chunks)


# ---------------------------------------------------------------------- choices


def test_choices_are_shuffled_by_seed_and_the_letter_is_that_of_the_right_one(tmp_path):
    row = ROWS["gpqa_diamond"][0]
    copy_of("gpqa_diamond", tmp_path, [{**row, "Record ID": str(number)} for number in range(198)])
    groups, others = (HubSource("gpqa_diamond", path=tmp_path, seed=seed).load() for seed in (0, 1))
    for group in groups:
        (letter,) = group.answer
        assert f"\n{letter}) this\n" in group.question
        assert group.metadata["choices"]["ABCD".index(letter)] == "this"
    letters = [group.answer[0] for group in groups]
    assert all(25 < letters.count(letter) < 75 for letter in "ABCD")
    assert letters != [group.answer[0] for group in others]
    assert {g.id: g for g in groups} == {g.id: g for g in HubSource("gpqa_diamond", path=tmp_path).load()}


# ---------------------------------------------------------------------- rephrasings


def test_rephrasings_come_from_a_file_by_the_text_of_the_question(tmp_path):
    copy_of("math_train", tmp_path, math_rows(r"\boxed{1}", r"\boxed{2}"))
    file = tmp_path / "rephrased.jsonl"
    file.write_text(
        json.dumps({"id": "x", "question": "Problem\n1?", "rephrasings": ["First?", "One?"]}) + "\n"
    )
    source = HubSource("math_train", path=tmp_path, rephrasings=file)
    assert [group.rephrasings for group in source.load()] == [(), ("First?", "One?")]
    assert "1 of 2 questions have rephrasings" in source.report.notes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "Q"', "row 1: expected a JSON object"),
        ('{"question": "Q"}', "row 1: expected `question`, a text"),
        (
            '{"question": "Q", "rephrasings": "R"}',
            "row 1: expected `question`, a text, and `rephrasings`, a list of texts",
        ),
        (
            '{"question": "Q", "rephrasings": ["R"]}\n{"question": "Q ", "rephrasings": ["S"]}',
            "row 2: expected each question once",
        ),
        ('{"question": "Q", "rephrasings": ["R"]}', "Expected rephrasings of the 1 questions"),
    ],
)
def test_rephrasings_that_cannot_be_joined_are_refused(tmp_path, line, message):
    copy_of("math_train", tmp_path, math_rows(r"\boxed{1}"))
    (tmp_path / "r.jsonl").write_text(line)
    with pytest.raises(ValueError, match=message):
        HubSource("math_train", path=tmp_path, rephrasings=tmp_path / "r.jsonl").load()


# ---------------------------------------------------------------------- what can go wrong


def test_mistakes_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Expected `dataset`.*math_train"):
        HubSource("math")
    with pytest.raises(FileNotFoundError, match="Expected the dataset `amc`"):
        HubSource("amc", path=tmp_path / "none").load()
    copy_of("amc", tmp_path / "a", [{"q": "x", "answer": "1"}])
    with pytest.raises(ValueError, match="problem, question, .*q, answer"):
        HubSource("amc", path=tmp_path / "a").load()
    copy_of("amc", tmp_path / "b", [ROWS["amc"][0]] * 2)
    with pytest.raises(ValueError, match="'amc-7' is repeated"):
        HubSource("amc", path=tmp_path / "b").load()
    (tmp_path / "amc.txt").write_text("x")
    with pytest.raises(ValueError, match=r"amc\.txt"):
        HubSource("amc", path=tmp_path / "amc.txt").load()


def test_a_hub_out_of_reach_is_reported_with_the_way_out(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(RuntimeError, match="`path`"):
        HubSource("amc").load()


# ---------------------------------------------------------------------- real data


@needs_data
@pytest.mark.parametrize("name", [name for name, known in CATALOGUE.items() if known.fingerprint])
def test_real_data_has_the_expected_rows_and_fingerprint(name):
    """Every MATH row but the two whose solution ends in an empty box loads, with an answer."""
    if not any(DATA.glob(f"{name}*")):
        pytest.skip(f"{name} is not among the datasets beside the project")
    source = HubSource(name, path=DATA)
    groups = source.load()
    assert source.report.warnings == []
    assert (source.report.read, len(groups)) == (CATALOGUE[name].rows, CATALOGUE[name].questions)
    assert all(group.question and group.answer and all(group.answer) for group in groups)
    without = ["math_train-5341", "math_train-5343"] if name == "math_train" else None
    assert source.report.excluded.get("without_answer") == without
