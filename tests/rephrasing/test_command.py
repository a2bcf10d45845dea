"""`tagrpo-rephrase` from the command line and, where that is enough, with a composed configuration."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tagrpo.datamodules.sources.rephrasings import read_rephrasings
from tagrpo.datamodules.sources.table import TableSource
from tagrpo.rephrasing import command as rephrase
from tagrpo.rephrasing.client import ServerRefusedError
from tests.helpers import Fork, in_fork, wait_until

from .conftest import MALFORMED, completion_of, rephrasings

CONFIGS = Path(__file__).parents[2] / "configs"
KEY = os.environ.get("OPENAI_API_KEY", "sk-this-must-never-be-written")


PLACES = ("input=", "output=", "server.base_url=")
"""Settings that differ from test to test; the others are composed once."""


def composed(*overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("rephrase", rephrase.with_commands([o for o in overrides if not o.startswith(PLACES)]))
    for name, _, value in [o.partition("=") for o in overrides if o.startswith(PLACES)]:
        OmegaConf.update(cfg, name, value)
    return cfg


def call(*overrides):
    return rephrase.execute(composed(*overrides))


def run(tmp_path, server, *overrides):
    """The command in this process; returns whether every call got a reply."""
    settings = [f"input={tmp_path}/questions.jsonl", f"output={tmp_path}/out.jsonl", "server.max_retries=0"]
    return call(*settings, f"server.base_url={server.url}", *overrides)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def start(tmp_path, server, paid_before_the_end):
    """A job of nine questions that hangs after some replies."""

    def script(text, n):
        with_reply = sum(server.asked.values()) - server.holding <= paid_before_the_end
        return "ok" if with_reply or server.released.is_set() else "hang"

    server.script = script
    settings = [
        f"input={tmp_path}/questions.jsonl", f"output={tmp_path}/out.jsonl", "rephraser.model=m",
        f"server.base_url={server.url}", "server.concurrency=3", "rephraser.price={prompt: 10, completion: 30}",
    ]  # fmt: skip
    process = Fork(rephrase.main, *settings)
    replies = tmp_path / "out.jsonl.work" / "replies.jsonl"

    def is_in_the_middle():
        """Some replies are on the disk, three calls are on their way."""
        assert not process.has_ended(), process.wait()
        paid = replies.read_bytes().count(b"\n") if replies.exists() else 0
        return paid == paid_before_the_end and server.holding == 3

    wait_until(is_in_the_middle)
    return process, settings


def in_ascii():
    """The command, with a terminal that has no other characters."""
    sys.stdout.reconfigure(encoding="ascii")
    rephrase.main()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_in_the_middle_loses_nothing_and_pays_nothing_twice(server, questions, tmp_path, how):
    groups = questions(9)
    process, settings = start(tmp_path, server, paid_before_the_end=4)
    os.kill(process.pid, how)
    code, first_words = process.wait()
    if how is signal.SIGINT:
        assert code == 1
        assert "The same command goes on" in first_words
    assert sum(server.paid.values()) == 4
    assert not (tmp_path / "out.jsonl").exists(), "an unfinished job writes no output"

    server.released.set()
    code, words = in_fork(in_ascii, *settings)
    assert code == 0, words
    assert set(server.paid.values()) == {1}
    assert len(server.paid) == 9
    written = rows(tmp_path / "out.jsonl")
    assert [row["id"] for row in written] == [group.id for group in groups]
    assert all(len(row["rephrasings"]) == 3 for row in written)
    # 9 replies of 100 and 10 tokens at 10 and 30 a million, the four of the first session included.
    assert "Total cost: 0.01" in words
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in everything + (first_words + words).encode()
    assert b"Bearer" not in everything


def test_a_malformed_reply_costs_its_own_question_at_most_and_is_paid_for_once(server, questions, tmp_path):
    groups = questions(len(MALFORMED) + 2)
    kinds = dict(zip([group.question for group in groups[1:-1]], MALFORMED, strict=True))
    server.script = lambda text, n: next((kind for question, kind in kinds.items() if question in text), "ok")
    assert run(tmp_path, server, "rephraser.model=m")
    first, *malformed, last = rows(tmp_path / "out.jsonl")
    for row, kind in zip(malformed, MALFORMED, strict=True):
        assert row["rephrasings"] == [], kind
        assert row["shortfall"].startswith("box1 lacks 3: "), kind
    for row in (first, last):
        assert len(row["rephrasings"]) == 3
    twice = {text for text, times in server.paid.items() if times == 2}
    assert len(twice) == len(MALFORMED), "each is asked for once more, as an attempt of its own"
    assert all(any(question in text for question in kinds) for text in twice)
    asked = sum(server.paid.values())
    assert asked == 2 * len(MALFORMED) + 2
    assert run(tmp_path, server, "rephraser.model=m")
    assert sum(server.paid.values()) == asked, "but never again"
    assert call("audit", f"input={tmp_path}/out.jsonl", f"output={tmp_path}/good.jsonl")
    kept = [len(row["rephrasings"]) for row in rows(tmp_path / "good.jsonl")]
    assert kept == [3, *[0] * len(MALFORMED), 3]


def test_malformed_opinions_leave_the_judge_undecided(server, questions, tmp_path):
    questions(len(MALFORMED))
    kinds = iter(MALFORMED)
    given = {}
    server.script = lambda text, n: (
        given.setdefault(text, next(kinds, "ok")) if "Second statement" in text else "ok"
    )
    assert run(tmp_path, server, "rephraser.model=m", "judge.model=j", "server.concurrency=1")
    written = rows(tmp_path / "out.jsonl")
    kept = [entry["verdicts"][-1] for row in written for entry in row["provenance"]]
    refused = [entry["verdicts"][-1] for row in written for entry in row["refused"]]
    assert {verdict["check"] for verdict in kept + refused} == {"judge"}
    assert {verdict["passed"] for verdict in kept} == {True}
    assert [verdict["passed"] for verdict in refused].count(None) == len(MALFORMED)


def test_rephrasings_that_are_there_are_not_left_out_of_the_output(server, tmp_path):
    row = {"id": "a", "question": "1 + 1 ?", "answer": "2", "rephrasings": ["Add 1 and 1."]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"questions.jsonl"):
        run(tmp_path, server, "rephraser.model=m")
    assert not server.asked
    assert not (tmp_path / "out.jsonl").exists()


def test_wordings_that_a_check_is_not_for_pass_without_it(server, questions, tmp_path):
    questions(1)
    server.reply = lambda *_: "<rephrasing>What do you get from eleven and forty?</rephrasing>"
    target = "_target_: tagrpo.rephrasing.rephraser.Instruction"
    own = f"+rephraser.instructions.own={{{target}, count: 1, task: Rephrase., unchecked: [numbers_kept, symbols_kept]}}"
    assert run(tmp_path, server, "rephraser.model=m", own, "~rephraser.instructions.box1")
    (row,) = rows(tmp_path / "out.jsonl")
    (made,) = row["provenance"]
    assert "numbers_kept" not in {verdict["check"] for verdict in made["verdicts"]}
    assert "kinds" not in row


def test_a_question_with_a_broken_character_is_refused_before_anything_is_paid_for(server, tmp_path):
    row = {"id": "a", "question": "What is the result of 11 + 40 \ud83d?", "answer": "51"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match="questions.jsonl.*1"):
        run(tmp_path, server, "rephraser.model=m")
    assert not server.asked


def test_the_output_is_read_by_the_sources_and_says_where_each_rephrasing_comes_from(
    server, questions, tmp_path
):
    questions(2)
    run(tmp_path, server, "rephraser.model=m", "seed=7")
    groups = TableSource(tmp_path / "out.jsonl").load()
    assert [len(group.rephrasings) for group in groups] == [3, 3]
    assert (
        read_rephrasings(tmp_path / "out.jsonl")[groups[0].question]["rephrasings"] == groups[0].rephrasings
    )
    for group, row in zip(groups, rows(tmp_path / "out.jsonl"), strict=True):
        assert row["answer"] == group.answer[0]
        for entry in row["provenance"]:
            assert (entry["model"], entry["instruction"], entry["seed"]) == ("m-2026", "box1", 7)
            assert {verdict["check"] for verdict in entry["verdicts"]} >= {
                "numbers_kept",
                "answer_not_leaked",
            }
            assert entry["time"].startswith("20")
    assert all(body["seed"] == 7 and body["model"] == "m" for body in server.bodies)


def reply_by_instruction(texts):
    """A server's reply: the text of the words that stand in the instruction."""

    def reply(body):
        system = body["messages"][0]["content"]
        return rephrasings([next(text for words, text in texts.items() if words in system)])

    return reply


def test_the_first_version_asks_one_rephrasing_of_each_of_three_instructions(server, questions, tmp_path):
    questions(1)
    texts = {
        "You paraphrase": "Add 11 and 40.",
        "You rename": "Compute 11 + 40.",
        "You change the format": "Find the result of 11 + 40.",
    }
    server.reply = reply_by_instruction(texts)
    run(tmp_path, server, "rephraser=first_version", "rephraser.model=m")
    (row,) = rows(tmp_path / "out.jsonl")
    assert [entry["instruction"] for entry in row["provenance"]] == ["paraphrase", "renaming", "format"]


def test_reformulations_have_their_kind_and_need_not_pass_the_checks_that_it_cannot(
    server, questions, tmp_path
):
    questions(1)
    texts = {
        "story": "On a day of wind, 7 sailors count 11 gulls and then 40 more. How many gulls is that?",
        "Invent": "Let the join of numbers be what they make together. What is the join of 11 and 40?",
        "small problem": "Add 40 to the least prime above 7.",
    }
    server.reply = reply_by_instruction(texts)
    run(tmp_path, server, "rephraser=harder", "rephraser.model=m", "judge.model=j")
    (row,) = rows(tmp_path / "out.jsonl")
    assert (row["rephrasings"], row["kinds"]) == (list(texts.values()), ["harder"] * 3)
    checked = [{verdict["check"] for verdict in entry["verdicts"]} for entry in row["provenance"]]
    assert [{"numbers_kept", "answer_not_leaked", "judge"} & checks for checks in checked] == [
        {"answer_not_leaked"},
        {"numbers_kept", "answer_not_leaked"},
        {"answer_not_leaked"},
    ]
    assert call("audit", f"input={tmp_path}/out.jsonl", f"output={tmp_path}/again.jsonl")
    assert rows(tmp_path / "again.jsonl") == [row]
    (group,) = TableSource(tmp_path / "again.jsonl").load()
    assert group.kinds == ("harder",) * 3


def test_refused_rephrasings_are_asked_for_again_once_and_kept_with_their_reasons(
    server, questions, tmp_path
):
    questions(1)
    bad, good = (
        ["Add 11 and 41.", "Add 11 and 40.", "The answer is 51. Add 11 and 40?"],
        ["Sum up 11 and 40.", "What is 40 and 11 in all?"],
    )
    server.reply = lambda body: rephrasings(bad if len(server.bodies) == 1 else good)
    run(tmp_path, server, "rephraser.model=m")
    (row,) = rows(tmp_path / "out.jsonl")
    assert row["rephrasings"] == ["Add 11 and 40.", *good]
    assert [entry["text"] for entry in row["refused"]] == [bad[0], bad[2]]
    assert "Write 2 rephrasings" in server.bodies[1]["messages"][0]["content"], "asks for what lacks"
    reasons = [v["reason"] for v in row["refused"][0]["verdicts"] if not v["passed"]]
    assert reasons == ["missing: 40; new: 41"]


def test_the_judge_refuses_and_what_was_judged_is_not_paid_again(server, questions, tmp_path):
    questions(2)
    run(tmp_path, server, "rephraser.model=m", "judge.model=j")
    (first, _) = rows(tmp_path / "out.jsonl")
    assert len(first["rephrasings"]) == 2
    (refused,) = first["refused"]
    assert "How much" in refused["text"]
    assert refused["verdicts"][-1] == {
        "check": "judge",
        "passed": False,
        "reason": "As I see it.",
        "value": None,
    }
    assert sum(server.paid.values()) == 2 * (1 + 3)
    run(tmp_path, server, "rephraser.model=m", "judge.model=j")
    assert sum(server.paid.values()) == 2 * (1 + 3)


def test_a_dry_run_estimates_and_asks_nothing(server, questions, tmp_path, capsys):
    questions(4)
    run(
        tmp_path,
        server,
        "rephraser.model=m",
        "rephraser.price={prompt: 10, completion: 30}",
        "judge.model=j",
        "--dry-run",
    )
    shown = capsys.readouterr().out
    assert not server.asked
    assert not (tmp_path / "out.jsonl").exists()
    assert [line.split()[2] for line in shown.splitlines() if "rephrase" in line or "judge" in line] == [
        "4",
        "12",
    ]
    assert "unknown, for lack of prices" in shown
    run(tmp_path, server, "rephraser.model=m")
    capsys.readouterr()
    run(tmp_path, server, "rephraser.model=m", "dry_run=true")
    assert "nothing is asked" in capsys.readouterr().out


def test_questions_that_read_the_same_share_their_rephrasings_and_are_asked_once(server, tmp_path):
    texts = [
        "What is the result of 11 + 40?",
        "What is the  result of 11 + 40? ",
        "What is the result of 12 + 40?",
    ]
    lines = [
        json.dumps({"id": f"q{i}", "question": text, "answer": str(51 + i // 2)})
        for i, text in enumerate(texts)
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    run(tmp_path, server, "rephraser.model=m")
    assert sum(server.asked.values()) == 2
    first, second, third = (row["rephrasings"] for row in rows(tmp_path / "out.jsonl"))
    assert first == second != third
    assert len(read_rephrasings(tmp_path / "out.jsonl")) == 2


def test_what_got_no_reply_is_said_and_asked_again(server, questions, tmp_path, capsys):
    groups = questions(3)
    server.script = lambda text, n: "400" if groups[1].question in text and n == 1 else "ok"
    assert not run(tmp_path, server, "rephraser.model=m")
    assert "1 calls got no reply, one because: Error code: 400" in capsys.readouterr().out
    assert [len(row["rephrasings"]) for row in rows(tmp_path / "out.jsonl")] == [3, 0, 3]
    assert "box1 lacks 3: Error code: 400" in rows(tmp_path / "out.jsonl")[1]["shortfall"]
    assert run(tmp_path, server, "rephraser.model=m")
    assert [len(row["rephrasings"]) for row in rows(tmp_path / "out.jsonl")] == [3, 3, 3]
    assert set(server.paid.values()) == {1}


def test_a_refusal_writes_nothing_and_keeps_what_was_paid(server, questions, tmp_path):
    questions(3)
    server.script = lambda text, n: "401" if "13" in text else "ok"
    with pytest.raises(ServerRefusedError, match="Correct the key"):
        run(tmp_path, server, "rephraser.model=m")
    assert not (tmp_path / "out.jsonl").exists()
    server.script = lambda text, n: "ok"
    assert run(tmp_path, server, "rephraser.model=m")
    assert set(server.paid.values()) == {1}


def test_an_audit_filters_and_lists_a_sample(server, questions, tmp_path, capsys):
    questions(1)
    run(tmp_path, server, "rephraser.model=m")
    (row,) = rows(tmp_path / "out.jsonl")
    row["level"] = "easy"
    row["rephrasings"].append("Add 11 and 41.")
    row["provenance"].append({})
    (tmp_path / "edited.jsonl").write_text(json.dumps(row) + "\n")
    call("audit", f"input={tmp_path}/edited.jsonl", f"output={tmp_path}/good.jsonl")
    (good,) = rows(tmp_path / "good.jsonl")
    assert good["level"] == "easy"
    assert len(good["rephrasings"]) == 3
    assert good["refused"][-1]["text"] == "Add 11 and 41."
    page = (tmp_path / "good.jsonl.work" / "audit.md").read_text()
    assert "missing: 40; new: 41" in page
    assert "Questions by number of accepted rephrasings: 1 with 3" in capsys.readouterr().out


def test_an_audit_asks_a_judge_about_rephrasings_that_somebody_else_made(server, tmp_path, capsys):
    texts = ["Add 11 and 40.", "How much is 11 plus 40?", "Add 11 and 41."]
    row = {"id": "a", "question": "What is the result of 11 + 40?", "answer": "51", "rephrasings": texts}
    (tmp_path / "theirs.jsonl").write_text(json.dumps(row))
    judged = ["audit", f"input={tmp_path}/theirs.jsonl", f"output={tmp_path}/good.jsonl", "judge.model=j"]
    judged.append(f"server.base_url={server.url}")
    call(*judged)
    (good,) = rows(tmp_path / "good.jsonl")
    assert good["rephrasings"] == texts[:1]
    assert sum(server.asked.values()) == 2, "what the checks refuse is not worth a judge"
    call(*judged)
    assert sum(server.asked.values()) == 2


@pytest.mark.parametrize("group", ["rephraser", "source"])
def test_every_option_builds_what_it_names(group, tmp_path):
    (tmp_path / "questions.jsonl").write_text("")
    required = {"model": "m", "dataset": "math_train"}
    for path in sorted(set((CONFIGS / group).glob("*.yaml")) - {CONFIGS / "rephraser" / "base.yaml"}):
        with initialize_config_module("tagrpo.configs", version_base="1.3"):
            cfg = compose("rephrase", [f"{group}={path.stem}", f"input={tmp_path}/questions.jsonl"])
        for name, value in required.items():
            if OmegaConf.is_missing(cfg[group], name):
                cfg[group][name] = value
        made = rephrase.built(cfg[group])
        assert (made.func.__name__ if isinstance(made, partial) else type(made).__name__) == cfg[
            group
        ]._target_.rpartition(".")[2]


def test_words_of_the_command_line_are_commands_only_where_they_stand_alone():
    assert rephrase.with_commands(["audit", "input=audit"]) == ["command=audit", "input=audit"]


def test_box_1_is_sent_word_for_word_and_only_the_form_of_the_reply_is_ours(server, questions, tmp_path):
    groups = questions(1)
    run(tmp_path, server, "rephraser.model=m", "judge.model=null")
    system, user = (message["content"] for message in server.bodies[0]["messages"])
    first, *middle, last, ask = [line for line in system.splitlines() if line]
    assert first.startswith(
        "You are a helpful AI assistant. Given the question, your task is rephrasing it from"
    )
    assert [line.split(":")[0] for line in middle] == ["Question", "Rephrasing it"] * 8
    assert last.startswith(
        "Write each rephrasing between the tags <rephrasing> and </rephrasing>, and nothing"
    )
    assert ask == "Write 3 rephrasings, each different from the others, of the question that follows."
    assert user == f"Question: {groups[0].question}"


@pytest.mark.parametrize("setting", ["--dry-run", "limit=1"])
def test_an_audit_refuses_what_would_not_be_obeyed(setting, tmp_path):
    with pytest.raises(ValueError, match="command=generate alone"):
        rephrase.check_rephrasing(composed("audit", f"input={tmp_path}/x.jsonl", "judge.model=m", setting))


def test_an_error_in_a_body_of_status_200_is_asked_again_by_the_same_command(
    server, questions, tmp_path, capsys
):
    groups = questions(3)
    server.script = lambda text, n: (
        "an error in the choice" if groups[1].question in text and n == 1 else "ok"
    )
    assert not run(tmp_path, server, "rephraser.model=m"), "it exits with 1"
    assert (
        "1 calls got no reply, one because: Error code: 429 - slow down. The same command"
        in capsys.readouterr().out
    )
    assert run(tmp_path, server, "rephraser.model=m")
    assert [len(row["rephrasings"]) for row in rows(tmp_path / "out.jsonl")] == [3, 3, 3]
    assert set(server.paid.values()) == {1}


def test_the_settings_that_a_refusal_advises_can_be_set_as_printed(server, questions, tmp_path):
    questions(40)
    said = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    body = json.dumps({"error": {"message": said, "param": "max_tokens"}}).encode()
    server.script = lambda text, n: (400, body) if "max_tokens" in server.bodies[-1] else "ok"
    given = ["server.concurrency=4"]  # the little server takes few connections at a time
    for part, expected in (("rephraser", 1), ("judge", 41)):
        with pytest.raises(ServerRefusedError) as refused:
            run(tmp_path, server, "rephraser.model=m", "judge.model=j", *given)
        assert sum(server.asked.values()) - sum(server.paid.values()) == (1 if part == "rephraser" else 2)
        assert sum(server.asked.values()) == expected + (part == "judge")
        given += re.findall(r"'([~+][^']+)'", str(refused.value))
    assert given[1:] == [
        "~rephraser.parameters.max_tokens",
        "+rephraser.parameters.max_completion_tokens=2048",
        "~judge.parameters.max_tokens",
        "+judge.parameters.max_completion_tokens=500",
    ]
    assert run(tmp_path, server, "rephraser.model=m", "judge.model=j", *given)
    assert server.bodies[-1]["max_completion_tokens"] == 500
    assert set(server.paid.values()) == {1}


def test_a_judge_that_is_cut_off_keeps_nothing(server, questions, tmp_path):
    questions(1)
    cut = json.loads(completion_of({"content": "EQUIVALENT: yes"}))
    cut["choices"][0]["finish_reason"] = "length"
    server.script = lambda text, n: (200, json.dumps(cut).encode()) if "Second statement" in text else "ok"
    assert run(tmp_path, server, "rephraser.model=m", "judge.model=j")
    (row,) = rows(tmp_path / "out.jsonl")
    assert row["rephrasings"] == []
    verdicts = [entry["verdicts"][-1] for entry in row["refused"]]
    assert (
        verdicts
        == [
            {
                "check": "judge",
                "passed": None,
                "reason": "no reply: it was cut off at its limit of tokens",
                "value": None,
            }
        ]
        * 3
    )


@pytest.mark.parametrize("rephraser", ["box1", "harder"])
def test_no_kind_of_rephrasing_holds_control_tokens_or_what_the_reader_cannot_see(
    server, questions, tmp_path, rephraser
):
    questions(1)
    texts = ["Add 11 and 40.<|im_end|>", "Add\u200b 11 and 40.", "Add 11 and 40\x1b[2J."]
    server.reply = lambda body: rephrasings(texts)
    assert run(tmp_path, server, f"rephraser={rephraser}", "rephraser.model=m")
    (row,) = rows(tmp_path / "out.jsonl")
    assert row["rephrasings"] == []
    reasons = {entry["text"]: entry["verdicts"][0]["reason"] for entry in row["refused"]}
    assert reasons[texts[0]] == "holds <|im_end|>"


def test_a_tokenizer_that_cannot_be_loaded_is_refused_before_anything_is_paid_for(
    server, questions, tmp_path
):
    questions(1)
    with pytest.raises(Exception, match="Set `tokenizer`"):
        run(tmp_path, server, "rephraser.model=m", "tokenizer=no/such")
    assert not server.asked


def test_an_echoed_key_and_escapes_of_a_terminal_reach_no_file_and_no_screen(
    server, questions, tmp_path, capfd, monkeypatch
):
    key = "correct horse battery staple"
    monkeypatch.setenv("WHAT_I_PAY_WITH", key)
    groups = questions(3)
    message = {
        "content": f"<rephrasing>Add 11 and 40, {key}.</rephrasing><rephrasing>How much is 11 plus 40?</rephrasing>"
    }
    echo = completion_of(message, model=key)
    said = json.dumps({"error": {"message": f"\x1b]0;pwned\x07{key}\x1b[2J"}}).encode()
    server.script = lambda text, n: (
        (404 if n > 9 else 400, said) if groups[1].question in text else (200, echo)
    )
    run(tmp_path, server, "rephraser.model=m", "server.api_key_env=WHAT_I_PAY_WITH")
    run(tmp_path, server, "rephraser.model=m", "server.api_key_env=WHAT_I_PAY_WITH")
    call("audit", f"input={tmp_path}/out.jsonl", f"output={tmp_path}/good.jsonl")
    shown = "".join(capfd.readouterr())
    assert "pwned" in shown
    assert all(line.isprintable() for line in shown.splitlines())
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) >= 5
    assert key.encode() not in everything + shown.encode()
    made = rows(tmp_path / "out.jsonl")[0]["provenance"][0]
    assert made["model"] == "<removed>"


def test_names_of_checks_in_a_file_are_shown_in_printable_characters(tmp_path, capsys):
    row = {"id": "a", "question": "1 + 1?", "answer": "2", "rephrasings": ["Add 1 and 1."]}
    row["provenance"] = [{"verdicts": [{"check": "own\x1b[2J", "passed": True, "reason": ""}]}]
    (tmp_path / "theirs.jsonl").write_text(json.dumps(row))
    call("audit", f"input={tmp_path}/theirs.jsonl")
    assert r"own\x1b[2J" in capsys.readouterr().out
