"""Public datasets of the papers: their places, the meaning of their columns, and their known content.

To add a dataset, add an entry. Copies in circulation name their columns differently: the first listed name
that a copy has is used. If a copy was at hand, its entry has a fingerprint of the rows that `HubSource`
keeps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Entry of the catalogue: location, columns and expected content of one dataset."""

    hub: str  # name on the Hugging Face hub
    config: str | None = None  # configuration on the hub; None for the default
    folder: str | None = None  # folder on the hub, in a repository without configurations
    split: str = "train"
    question: Sequence[str] = ("problem", "question")  # columns of a text or conversation (last user's turn)
    answer: Sequence[str] = ("answer",)  # columns of a text, a number, or a list of accepted answers
    # whether the answer is a worked solution, with the result in `\boxed{}` or after `####`
    worked: bool = False
    # columns of wrong choices, where the answer is the right one of several
    wrong_choices: Sequence[str] = ()
    id: str | None = None  # column; without one, rows are named by their position, from 0
    metadata: Sequence[str] = ()  # columns that are kept for analysis
    # columns to read from Parquet files, if others are large; None reads all
    columns: Sequence[str] | None = None
    no_answer: frozenset[str] = frozenset()  # texts that stand for a missing answer
    deduplicate: bool = False  # leave out a question whose words have been read before
    rows: int  # on the hub
    # distinct questions with an answer among these rows; None if they have not been counted
    questions: int | None
    fingerprint: str | None = None  # of these questions


CATALOGUE: Mapping[str, Dataset] = {
    # 7,498 questions in the papers. Two solutions end in an empty \boxed{}, which no verifier can score; they
    # are left out. (Two other questions have the level `Level ?`, but they have an answer and are kept.)
    "math_train": Dataset(
        hub="DigitalLearningGmbH/MATH-lighteval",
        answer=("solution",), worked=True, metadata=("level", "type"),
        rows=7500, questions=7498, fingerprint="e290dbc194785553655c10cb1230362f",
    ),
    # All 225 thousand problems; the configuration `default` has the 94 thousand that served best for
    # fine-tuning.
    "openr1_math": Dataset(
        hub="open-r1/OpenR1-Math-220k", config="all",
        id="uuid", metadata=("problem_type", "question_type", "source"),
        columns=("uuid", "problem", "answer", "problem_type", "question_type", "source"),
        no_answer=frozenset({"proof", "notfound"}), deduplicate=True,
        rows=225129, questions=None,
    ),
    "dapo_17k": Dataset(
        hub="open-r1/DAPO-Math-17k-Processed", config="all",
        question=("prompt",), answer=("solution", "reward_model.ground_truth"),
        id="extra_info.index", metadata=("data_source",), deduplicate=True,
        rows=17398, questions=17398,
    ),
    "gsm8k_train": Dataset(
        hub="openai/gsm8k", config="main", worked=True,
        rows=7473, questions=7473, fingerprint="f27db470b94e93f499e4f8c0dba3c69e",
    ),
    "gsm8k_test": Dataset(hub="openai/gsm8k", config="main", split="test", worked=True, rows=1319, questions=1319),
    # MATH levels 3 to 5, on which SimpleRL-Zoo and prompt augmentation train: all training questions, and the
    # test questions that are not in MATH-500. Two have no answer. The fingerprint is that of the copy in
    # prompt augmentation's repository.
    "simplerl_math": Dataset(
        hub="hkust-nlp/SimpleRL-Zoo-Data", folder="simplelr_qwen_level3to5",
        question=("question", "extra_info.question"), answer=("reward_model.ground_truth",), id="extra_info.index",
        rows=8523, questions=8521, fingerprint="6ce33e4d8a281717a00b920635064e12",
    ),
    "math500": Dataset(
        hub="HuggingFaceH4/MATH-500", split="test", id="unique_id", metadata=("subject", "level"),
        rows=500, questions=500, fingerprint="1cc5d08e4b582ab3127c8c36fc988556",
    ),
    "amc": Dataset(
        hub="AI-MO/aimo-validation-amc", id="id", metadata=("url",),
        rows=83, questions=83, fingerprint="edcaa904cf37d70678e1d30ebf27102a",
    ),
    "olympiadbench": Dataset(
        hub="knoveleng/OlympiadBench",
        answer=("answer", "final_answer"), id="id", metadata=("subfield", "answer_type"),
        rows=675, questions=675, fingerprint="c7edce729d7235c5081d85d7e016fc45",
    ),
    "aime24": Dataset(hub="HuggingFaceH4/aime_2024", id="id", metadata=("url",), rows=30, questions=30),
    "aime25": Dataset(hub="math-ai/aime25", split="test", id="id", rows=30, questions=30),
    "olymmath_easy": Dataset(
        hub="RUC-AIBOX/OlymMATH", config="en-easy", split="test", id="unique_id", metadata=("subject",),
        rows=100, questions=100, fingerprint="66318c2ff518c139b420e4e7b3a32f9e",
    ),
    "olymmath_hard": Dataset(
        hub="RUC-AIBOX/OlymMATH", config="en-hard", split="test", id="unique_id", metadata=("subject",),
        rows=100, questions=100, fingerprint="9009d177558b05bb5605b7fe36a9eff2",
    ),
    "minerva": Dataset(
        hub="math-ai/minervamath", split="test",
        rows=272, questions=272, fingerprint="bf5dba05cfb521e56a9bf2956c0f7168",
    ),
    "gpqa_diamond": Dataset(
        hub="Idavidrein/gpqa", config="gpqa_diamond",
        question=("Question",), answer=("Correct Answer",),
        wrong_choices=("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
        id="Record ID", metadata=("High-level domain", "Subdomain"),
        rows=198, questions=198,
    ),
}  # fmt: skip
