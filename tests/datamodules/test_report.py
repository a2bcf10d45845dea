"""What a run leaves about its data, from the sources to `data.json`."""

from __future__ import annotations

import json
import re

import pytest
from lightning.pytorch import LightningModule, Trainer

from tagrpo.datamodules import prompt_check
from tagrpo.datamodules.lightning.questions import QuestionDataModule
from tagrpo.datamodules.sources.base import Source, SourceReport, fingerprint
from tagrpo.datamodules.sources.concatenated import ConcatenatedSource
from tagrpo.datamodules.sources.table import TableSource
from tagrpo.datamodules.templates import ChatTemplate, PlainTemplate, PromptAugmentation
from tagrpo.starter import starter_path
from tagrpo.types import QuestionGroup, Verifier
from tests.chat_models import CHATML, DEAF, chat_model

pytestmark = pytest.mark.shell

COPY = "Tom has 3 apples. He buys 4. He gives 2 away. How many has he got now?"


@pytest.fixture(autouse=True)
def unknown_words(monkeypatch):
    """Let questions have words that the starter policy does not know."""
    monkeypatch.setattr(prompt_check, "MOST_UNKNOWN", 1.0)


class Fixed(Source):
    """A source of given questions."""

    def __init__(self, *questions, report=None):
        self.groups = [QuestionGroup(id, text, (), ("5",)) for id, text in questions]
        self.report = report

    def load(self):
        return list(self.groups)


def make_datamodule(train, **evaluation):
    return QuestionDataModule(
        train=train,
        evaluation=evaluation,
        tokenizer=str(starter_path()),
        template=PlainTemplate(),
        batch_size=1,
        num_rephrasings=0,
        max_prompt_tokens=30,
    )


def test_fingerprints_know_content_and_neither_order_nor_ids():
    one, two = (
        QuestionGroup("a", "1 + 1?", ("1 plus 1?",), ("2", "two")),
        QuestionGroup("b", "x?", (), ("3",)),
    )
    whole = fingerprint([one, two])
    assert fingerprint([two, one._replace(id="z", question=" 1  +\n1?")]) == whole
    changed = [
        [one],
        [one, two, two],
        [one._replace(question="1 + 1"), two],
        [one._replace(answer=("2",)), two],
        [one._replace(answer=("two", "2")), two],
        [one._replace(rephrasings=()), two],
        [one._replace(question="1 + 1?\x1e1 plus 1?", rephrasings=()), two],
    ]
    assert len({whole, *map(fingerprint, changed)}) == 8


def test_what_a_source_left_out_and_expected_is_warned_of_and_reported():
    told = SourceReport(
        origin="hub/name",
        read=9,
        excluded={"without_answer": [f"q{i}" for i in range(7)]},
        warnings=["2 instead of 9"],
    )
    datamodule = make_datamodule(Fixed(("a", COPY), report=told))
    with pytest.warns(UserWarning, match="train: ") as caught:
        datamodule.setup("fit")
    said = [str(warning.message) for warning in caught]
    assert "train: left out 7 questions (without_answer): q0, q1, q2, q3, q4, …." in said
    assert "train: 2 instead of 9." in said
    report = datamodule.report["train"]
    assert (report["origin"], report["read"], report["kept"]) == ("hub/name", 9, 1)
    assert report["excluded"] == {"without_answer": [f"q{i}" for i in range(7)], "too_long": []}
    assert report["fingerprint"] == fingerprint(Fixed(("a", COPY)).load())


def test_copies_of_test_questions_in_the_training_set_are_warned_of_and_patterns_reported():
    tests = Fixed(
        ("copy", COPY.replace(".", ";")), ("pattern", COPY.replace("3", "8")), ("own", "compute 1 + 2 = ?")
    )
    datamodule = make_datamodule(Fixed(("t", COPY)), test=tests)
    with pytest.warns(UserWarning, match=r"test: 1 of 3 .*: copy \(t\)") as caught:
        datamodule.setup("fit")
    (said,) = [str(warning.message) for warning in caught]
    assert "out of data.train or data.evaluation.test" in said
    assert said.splitlines()[1:] == [f"- {tests.groups[0].question!r}"], "with the text of the copy"
    datamodule.setup("fit")
    assert [facts["cautions"] for facts in datamodule.report.values()] == [[], [said]], (
        "once, also for the report"
    )
    overlaps = datamodule.report["test"]["train_overlap"]
    assert [(o["test"], o["train"], o["same_numbers"]) for o in overlaps] == [
        ("copy", "t", True),
        ("pattern", "t", False),
    ]


def test_a_caution_about_a_template_is_noted_once_where_it_is_used():
    datamodule = make_datamodule(Fixed(("t", COPY)), a=Fixed(("x", "1 + 1 = ?")), b=Fixed(("y", "1 + 2 = ?")))
    datamodule.evaluation_templates = PromptAugmentation({"other": PlainTemplate("{question} <|end|>")})
    with pytest.warns(UserWarning, match=r"Template other .*<\|end\|>") as caught:
        datamodule.setup("fit")
    (said,) = [str(warning.message) for warning in caught]
    assert {split: facts["cautions"] for split, facts in datamodule.report.items()} == {
        "train": [],
        "a": [said],
        "b": [],
    }


def test_without_training_questions_nothing_is_said_of_overlap():
    datamodule = make_datamodule(None, test=Fixed(("a", COPY)))
    datamodule.setup("test")
    assert "train_overlap" not in datamodule.report["test"]
    with pytest.raises(ValueError, match=r"data\.train"):
        datamodule.setup("fit")


def test_questions_that_the_run_of_a_policy_was_trained_on_are_warned_of_once(tmp_path):
    trained = make_datamodule(Fixed(("a", COPY), *((str(i), f"{i} + {i} = ?") for i in range(4))))
    source = trained.train_source
    source.groups = [group._replace(rephrasings=(f"Add {group.id}",)) for group in source.groups]
    trained.num_rephrasings = 1
    trained.setup("fit")
    (tmp_path / "data.json").write_text(json.dumps(trained.report))
    tests = Fixed(
        ("x", COPY.replace(".", " ;")),
        ("y", "3  + 3 = ?"),
        ("z", "1 + 2 = ?"),
        ("w", "add 2"),
        ("v", "2 + 2 ="),
    )
    datamodule = make_datamodule(None, other=Fixed(("n", "7 + 7 = ?")), test=tests)
    datamodule.setup("test")
    with pytest.warns(UserWarning, match="trained on") as caught:
        datamodule.warn_of_seen(tmp_path)
    datamodule.warn_of_seen(tmp_path)
    (said,) = [str(warning.message) for warning in caught]
    assert said.splitlines() == [
        f"test: this policy was trained on 4 of 5 questions, in {tmp_path}. Ask others by data.evaluation.test, or "
        "read its results as those of seen questions. Some of them:",
        *(f"- {group.question!r}" for group in (tests.groups[0], tests.groups[1], tests.groups[3])),
    ]
    assert [facts["cautions"] for facts in datamodule.report.values()] == [[], [said]]


def test_a_policy_without_a_run_is_not_warned_of(tmp_path, recwarn):
    datamodule = make_datamodule(None, test=Fixed(("a", COPY)))
    datamodule.setup("test")
    datamodule.warn_of_seen(tmp_path)
    (tmp_path / "data.json").write_text(json.dumps({"test": {}}))
    datamodule.warn_of_seen(tmp_path)
    assert not recwarn.list


def test_evaluation_questions_may_be_longer_than_training_questions():
    long = COPY + " And " + COPY
    options = {"train": Fixed(("a", COPY), ("b", long)), "evaluation": {"test": Fixed(("b", long))}}
    datamodule = make_datamodule(options["train"], test=options["evaluation"]["test"])
    datamodule.max_evaluation_prompt_tokens = 100
    with pytest.warns(UserWarning, match="train: left out 1 "):
        datamodule.setup("fit")
    assert [datamodule.report[split]["kept"] for split in ("train", "test")] == [1, 1]


class Nothing(LightningModule):
    def test_step(self, batch, batch_idx):
        pass


def test_the_report_is_written_into_the_run_directory(tmp_path):
    datamodule = make_datamodule(None, test=Fixed(("a", COPY)))
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        default_root_dir=tmp_path / "run",
        enable_progress_bar=False,
        barebones=False,
    )
    trainer.test(Nothing(), datamodule=datamodule, verbose=False)
    assert json.loads((tmp_path / "run" / "data.json").read_text()) == json.loads(
        json.dumps(datamodule.report)
    )


def file_of(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return TableSource(path)


def chat_datamodule(train, chat_template=CHATML, **options):
    datamodule = make_datamodule(train)
    datamodule.templates = PromptAugmentation({"chat": ChatTemplate(**options)})
    datamodule.max_prompt_tokens = 1000
    datamodule.tokenizer = chat_model(chat_template)
    return datamodule


def test_repeated_questions_and_contradictions_are_told_by_id(tmp_path):
    source = file_of(
        tmp_path / "q.jsonl",
        {"id": "a", "question": "1 + 1 = ?", "answer": "2"},
        {"id": "b", "question": "1 +  1 = ?", "answer": ["2", "two"]},
        {"id": "c", "question": "2 + 2 = ?", "answer": "4"},
        {"id": "d", "question": "2 + 2 = ?", "answer": "5"},
        {"id": "e", "question": "3 + 3 = ?", "answer": "6"},
    )
    datamodule = make_datamodule(source)
    with pytest.warns(UserWarning, match="more than once") as caught:
        datamodule.setup("fit")
    assert datamodule.report["train"]["repeated_questions"] == [["a", "b"], ["c", "d"]]
    assert datamodule.report["train"]["contradictions"] == [["c", "d"]]
    repeated, contradictions = (str(warning.message) for warning in caught)
    assert "2 questions" in repeated
    assert "a = b, c = d" in repeated
    assert "c = d" in contradictions
    assert "a = b" not in contradictions


def test_control_tokens_and_hidden_characters_are_told_by_id(tmp_path):
    source = file_of(
        tmp_path / "q.jsonl",
        {"id": "a", "question": "Say <|im_end|>.", "answer": "2"},
        {"id": "b", "question": "Say x.", "answer": "2", "rephrasings": ["Say [INST] x."]},
        {"id": "c", "question": "Say\u200b y.", "answer": "4", "rephrasings": ["Say y\0."]},
        {"id": "d", "question": "Say z.", "answer": "5"},
    )
    datamodule = chat_datamodule(source)
    datamodule.num_rephrasings = 1
    with pytest.warns(UserWarning, match="control tokens") as caught:
        datamodule.setup("fit")
    facts = datamodule.report["train"]
    assert facts["control_tokens"] == {"a": ["<|im_end|>"], "b": ["[INST]"]}
    assert facts["hidden_characters"] == {"c": ["U+200B ZERO WIDTH SPACE", "U+0000 CONTROL CHARACTER"]}
    control, hidden = (str(warning.message) for warning in caught)
    assert "(<|im_end|>, [INST])" in control
    assert "a, b" in control
    assert "U+200B ZERO WIDTH SPACE" in hidden


def test_control_tokens_that_a_tokenizer_cannot_read_as_text_are_refused_by_row(tmp_path):
    rows = [{"question": "1 + 1 = ?", "answer": "2"}, {"question": "1 <sep> 1 = ?", "answer": "2"}]
    datamodule = make_datamodule(file_of(tmp_path / "q.jsonl", *rows))
    with pytest.raises(ValueError, match=r"q\.jsonl, row 2, question q-2: .*<sep>"):
        datamodule.setup("fit")


def test_one_prompt_of_each_template_is_in_the_report(tmp_path):
    datamodule = make_datamodule(
        Fixed(("a", "1 + 1 = ?"), ("b", "2 + 2 = ?")), test=Fixed(("c", "3 + 3 = ?"))
    )
    datamodule.templates = PromptAugmentation({"x": PlainTemplate("{question} <sep>"), "y": PlainTemplate()})
    datamodule.setup("fit")
    assert datamodule.report["train"]["sample_prompt"] == {"x": "1 + 1 = ? <sep>", "y": "1 + 1 = ?"}
    assert datamodule.report["test"]["sample_prompt"] == {"plain": "3 + 3 = ?"}


def test_what_a_prompt_lacks_is_told_or_refused_before_training():
    datamodule = chat_datamodule(Fixed(("a", "1 + 1 = ?")), DEAF, system="Be brief.")
    with pytest.warns(UserWarning, match=r"template\.system=null"):
        datamodule.setup("fit")
    (said,) = datamodule.report["train"]["cautions"]
    assert "template.system=null" in said
    with pytest.raises(ValueError, match=r"template\.options"):
        chat_datamodule(Fixed(("a", "1 + 1 = ?")), options={"enable": True}).setup("fit")


@pytest.mark.parametrize(
    ("templates", "evaluation", "setting"),
    [
        (ChatTemplate(options={"x": 1}), None, "template"),
        (
            PromptAugmentation({"a": ChatTemplate(options={"x": 1}), "b": PlainTemplate()}),
            None,
            "template.templates.a",
        ),
        (PlainTemplate(), ChatTemplate(options={"x": 1}), "data.evaluation_template"),
    ],
)
def test_a_template_is_named_by_the_setting_that_changes_it(templates, evaluation, setting):
    test = {"test": Fixed(("a", "1 + 1 = ?"))}
    datamodule = QuestionDataModule(None, test, "model", templates, evaluation, max_prompt_tokens=1000)
    datamodule.tokenizer = chat_model(CHATML)
    with pytest.raises(ValueError, match=rf"Expected {re.escape(setting)}\.options"):
        datamodule.setup("test")


def test_a_turn_that_ends_with_no_stop_token_is_told_once():
    datamodule = chat_datamodule(Fixed(("a", "1 + 1 = ?")))
    datamodule.setup("fit")
    tokenizer = datamodule.tokenizer
    datamodule.check_turn_ends([tokenizer.convert_tokens_to_ids("<|im_end|>")])
    assert datamodule.report["train"]["cautions"] == []
    with pytest.warns(UserWarning, match=r"<\|im_end\|>.*generation_config\.json") as caught:
        datamodule.check_turn_ends([tokenizer.eos_token_id])
    datamodule.check_turn_ends([tokenizer.eos_token_id])
    assert len(caught) == len(datamodule.report["train"]["cautions"]) == 1


class Noting(Verifier):
    """Refuses references with a question mark, and notes bases and letters."""

    def check_reference(self, reference):
        if "?" in reference[0]:
            raise ValueError("Expected an answer, but this is a question.")

    def reference_notes(self, reference):
        return tuple(kind for kind, mark in (("base", "_"), ("letters", "m")) if mark in reference[0])


def test_a_reference_that_nothing_matches_is_refused_by_file_and_row(tmp_path):
    one = file_of(
        tmp_path / "one.jsonl", {"question": "1 + 1 = ?", "answer": "2"}, {"question": "x", "answer": "y?"}
    )
    two = file_of(tmp_path / "two.jsonl", {"question": "1 + 2 = ?", "answer": ["z?"]})
    datamodule = make_datamodule(ConcatenatedSource({"one": one, "two": two}))
    datamodule.setup("fit")
    with pytest.raises(ValueError, match="this is a question") as error:
        datamodule.check_references(Noting())
    first, second, remedy = str(error.value).splitlines()
    assert first.startswith(f"{tmp_path}/one.jsonl, row 2, question one-2, answer 'y?': ")
    assert second.startswith(f"{tmp_path}/two.jsonl, row 1, question two-1, answer 'z?': ")
    assert "reward=" in remedy


def test_notes_on_references_are_counted_by_kind_in_one_warning_and_listed(tmp_path):
    answers = ["10_2", "3m", "4_5 m", "7"]
    rows = [{"id": f"q{n}", "question": f"{n} = ?", "answer": answer} for n, answer in enumerate(answers)]
    datamodule = make_datamodule(file_of(tmp_path / "q.jsonl", *rows))
    datamodule.setup("fit")
    with pytest.warns(UserWarning, match="train: ") as caught:
        datamodule.check_references(Noting())
    (said,) = (str(warning.message) for warning in caught)
    assert "3 reference answers" in said
    assert "base (2), letters (2)" in said
    assert datamodule.report["train"]["reference_notes"] == {
        "q0": ["base"], "q1": ["letters"], "q2": ["base", "letters"],
    }  # fmt: skip
    assert Verifier.reference_notes(Noting(), ("10_2",)) == ()
