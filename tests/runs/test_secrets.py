"""Secrets reach no file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tagrpo.cli.console import entry_point
from tagrpo.cli.train import train
from tagrpo.files import write_json
from tagrpo.redaction import is_secret, redacted, without_secrets
from tagrpo.runs.grid import GridRun
from tagrpo.runs.secrets import literal_secrets, refuse_secrets, save_resolved
from tagrpo.settings.config import build, compose_run
from tagrpo.study import compare
from tests.helpers import forked

SECRET = "sk-4f9a0c7d21"
HIDDEN = "a plain text, of 27 letters"
"""A secret that its spelling does not tell; only the name of its variable does."""
SMALL = [
    "iterations=1", "threads=1", "data.train.size=4", "data.batch_size=2", "data.samples_per_prompt=2",
    "data.evaluation_samples=2", "data.evaluation.test_id.size=2", "~data.evaluation.test_phrasing",
    "~data.evaluation.test_size", "rollout.sampling.max_new_tokens=4", "~callbacks.embedding_diversity",
    "~callbacks.progress", "+trainer.enable_progress_bar=false", "data.num_rephrasings=1",
]  # fmt: skip


def composed(directory: Path, *overrides: str):
    return compose_run(directory, [*SMALL, *overrides])


def files_with(secret: str, directory: Path) -> list[str]:
    return [
        str(path) for path in directory.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
    ]


def test_no_file_of_a_run_holds_a_secret_of_the_environment(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    cfg = composed(
        tmp_path, "+server.api_key=${oc.env:OPENAI_API_KEY}", "+server.url='https://x?key=${oc.env:HF_TOKEN}'"
    )
    run = build(cfg)
    save_resolved(cfg, tmp_path)
    train(run.module, run.datamodule, run.trainer, export=tmp_path / "model")
    run.close()
    written = OmegaConf.load(tmp_path / "config.yaml")
    assert written.server == {"api_key": "<removed>", "url": "https://x?key=<removed>"}
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) > 10
    assert files_with(SECRET, tmp_path) == []


def test_a_secret_given_as_a_setting_ends_the_program_and_no_file_has_it(tmp_path):
    cfg = composed(tmp_path, f"+logger.wandb.api_key={SECRET}")
    with pytest.raises(SystemExit) as left:
        refuse_secrets(cfg, tmp_path)
    assert "logger.wandb.api_key" in str(left.value)
    assert SECRET not in str(left.value)
    assert files_with(SECRET, tmp_path) == []


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "overrides=['seed=1','+logger.wandb.api_key=SECRET']", "root=DIRECTORY"],
        ["train", "-m", "+logger.x.api_key=SECRET,b", "hydra.sweep.dir=DIRECTORY"],
        ["train", "name=SECRET", "+root=DIRECTORY"],
        [
            "rephrase",
            "+server.api_key=SECRET",
            "rephraser.model=m",
            "input=a.jsonl",
            "output=DIRECTORY/b.jsonl",
        ],
    ],
)
def test_comparisons_and_rephrasing_refuse_secrets_too(tmp_path, command):
    filled = [part.replace("SECRET", SECRET).replace("DIRECTORY", str(tmp_path)) for part in command]
    code, output = forked(*filled, f"hydra.run.dir={tmp_path}")
    assert code == 1
    assert ". Settings are written to files" in output
    assert list(tmp_path.iterdir()) == []
    assert SECRET not in output
    assert files_with(SECRET, tmp_path) == []


@pytest.mark.parametrize(
    "argument",
    [
        "server.api_key_env=KEY", "server.base_url=https://me:hunter2secret@host/v1",
        "server.base_url=https://host/v1?api_key=hunter2secret", "server.base_url='https://host/v1?a=1&token=hunter2secret'",
        "+server.headers={Authorization: Bearer hunter2secret}", "+server.headers.X-Api-Key=hunter2secret",
        "+rephraser.parameters.extra_body.key=hunter2secret", "+logger.wandb_key=hunter2secret", "name=KEY",
        "~logger.api_key=hunter2secret", "overrides=['seed=1','+a.api_key=hunter2secret']", "name=runs/KEY/seed0",
        "methods={grpo: [+logger.password=hunter2secret]}", "KEY", "name=0123456789abcdef-from-the-environment",
    ],
)  # fmt: skip
def test_an_argument_with_a_secret_is_refused_before_hydra_sees_it(argument, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "0123456789abcdef-from-the-environment")
    called = []
    monkeypatch.setattr(sys, "argv", ["tagrpo-train", "seed=1", argument.replace("KEY", SECRET)])
    with pytest.raises(SystemExit) as left:
        entry_point()(lambda: called.append(1))()
    assert "Expected no secrets among the settings" in str(left.value)
    assert not called
    for secret in (SECRET, "hunter2secret", "from-the-environment"):
        assert secret not in str(left.value)


def test_ordinary_arguments_pass_on(monkeypatch):
    arguments = [
        "experiment=ta_grpo", "-m", "seed=0,1", "--config-dir", "/a/b", "optimizer.lr=1e-6",
        "server.api_key_env=MY_KEY", "data.sort_key=question",
        "server.base_url=http://localhost:8000/v1", "+logger.wandb.api_key=${oc.env:WANDB_API_KEY}",
        "template.instruction='Basic arithmetic: bear the sign'", "~callbacks.progress",
        "model.path=hub/hf_models_qwen3_1b_instruct",
        "methods=[grpo,dapo]", "launcher=slurm", "rollout.sampling.stop=['</s>']",
        "tokenizer.eos_token=<|end_of_text_12|>",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["tagrpo-train", *arguments])
    assert entry_point()(lambda: "ran")() == "ran"


def test_a_directory_named_after_a_secret_variable_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    directory = tmp_path / f"run-{SECRET}" / "a" / "seed0"
    directory.mkdir(parents=True)
    (directory / "train.log").touch()
    with pytest.raises(SystemExit, match="run's directory"):
        refuse_secrets(composed(directory, "+name2=${oc.env:HF_TOKEN}"), directory)
    assert list(tmp_path.iterdir()) == []


def test_what_a_run_prints_and_advises_holds_no_secret(tmp_path):
    overrides = [
        *SMALL,
        "+notes=${oc.env:MY_API_KEY}",
        "test=false",
        "logger=csv",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    code, output = forked("train", *overrides, environment={"MY_API_KEY": HIDDEN})
    assert code == 0, output[-2000:]
    assert HIDDEN not in output
    assert files_with(HIDDEN, tmp_path) == []
    (again,) = [line for line in output.splitlines() if "resume=auto" in line]
    assert "'+notes=${oc.env:MY_API_KEY}'" in again


def test_a_message_about_settings_holds_no_secret(tmp_path):
    settings = ["data.batch_size=${oc.env:MY_API_KEY}", f"hydra.run.dir={tmp_path}"]
    _, output = forked("train", *settings, environment={"MY_API_KEY": HIDDEN})
    assert "Expected data.batch_size to be a whole number of at least 1, but got '<removed>'" in output
    assert HIDDEN not in output


def test_a_comparison_hands_on_where_a_secret_is_and_not_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", HIDDEN)
    seen = []

    def stand_in(runs, *_):
        seen.extend(runs)
        for run in runs:
            run.directory.mkdir(parents=True)
            write_json(run.directory / "run.json", {"settings": run.settings})
        return []

    monkeypatch.setattr(compare, "compare", stand_in)
    methods = (
        "methods={a: ['+notes=${oc.env:MY_API_KEY}'], b: {overrides: ['+model.note=${oc.env:MY_API_KEY}x']}}"
    )
    overrides = ["overrides=['+other=${oc.env:MY_API_KEY}','optimizer.lr=${lr}']", "+lr=0.5", methods]
    monkeypatch.setattr(sys, "argv", ["tagrpo-compare", f"root={tmp_path}", *overrides])
    with pytest.raises(SystemExit) as left:
        compare.main()
    assert left.value.code == 0
    assert files_with(HIDDEN, tmp_path) == []
    given = [run.command[-3:] for run in seen]
    assert [[part for part in parts if "oc.env" in part] for parts in given] == [
        ["+other=${oc.env:MY_API_KEY}", "+notes=${oc.env:MY_API_KEY}"],
        ["+other=${oc.env:MY_API_KEY}", "+model.note=${oc.env:MY_API_KEY}x"],
    ]
    assert all("optimizer.lr=0.5" in parts for parts in given)
    secret = GridRun("a", 0, tmp_path, ["python", f"+notes={HIDDEN}"])
    assert secret.settings == ["+notes=<removed>"]


def test_redaction_finds_secrets_by_their_spelling():
    content = {
        "url": "https://me:hunter2@host/v1?token=abc&n=1", "header": ["Authorization: Bearer abc123def456"],
        "name": f"run of {SECRET}", "X-Api-Key": "a", "plain": "https://host/v1?n=1",
    }  # fmt: skip
    cleaned = redacted(content)
    assert cleaned == {
        "url": "https://me:<removed>@host/v1?token=<removed>&n=1", "header": ["Authorization: Bearer <removed>"],
        "name": "run of <removed>", "X-Api-Key": "<removed>", "plain": "https://host/v1?n=1",
    }  # fmt: skip
    assert redacted(cleaned) == cleaned


@given(
    st.recursive(
        st.text() | st.none() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_settings_can_be_searched_and_redacted(content):
    settings = {"settings": content}
    list(literal_secrets(settings))
    assert redacted(redacted(settings)) == redacted(settings)


@pytest.mark.parametrize(
    "unit", ["a", "=", "-sk-a", "-eyJa", "://a:", "?key", "Bearer ", "a=", "a: ", "&_", "${"]
)
@pytest.mark.parametrize("length", [20_000, pytest.param(200_000, marks=pytest.mark.runs)])
def test_long_settings_are_searched_in_linear_time(unit, length):
    text = unit * (length // len(unit))
    assert redacted({"a": [text]}) is not None
    list(literal_secrets({"a": [text]}))


@pytest.mark.parametrize("before", ["", "x", "a-b.", "-" * 70, "x" * 5000])
def test_names_of_any_length_are_read_as_a_whole(before):
    assert redacted(f"{before}api_key=abc") == f"{before}api_key=<removed>"
    assert redacted(f"{before}tokenizer=abc") == f"{before}tokenizer=abc"


def test_the_lines_of_a_secret_are_secret(monkeypatch):
    monkeypatch.setenv("MINE_PRIVATE_KEY", "first of two lines\nanother line\nend")
    assert redacted("a first of two lines b\nanother line\nend") == "a <removed> b\n<removed>\nend"


def test_what_counts_as_a_secret():
    content = {
        "api_key": "a", "wandb": {"WANDB_API_KEY": "b", "project": "c"}, "headers": [{"Authorization": "d"}],
        "db": {"password": "e", "user": "f"}, "auth_token": "g",
        # None of these is one.
        "eos_token": "h", "max_new_tokens": 4, "token_budget": 5, "api_key_env": "OPENAI_API_KEY", "tokenizer": "i",
        "secret": None, "keep": "j", "key": "k", "nested": {"api_key": "${oc.env:OPENAI_API_KEY}"},
    }  # fmt: skip
    assert list(literal_secrets(content)) == [
        "api_key", "wandb.WANDB_API_KEY", "headers.0.Authorization", "db.password", "auth_token",
    ]  # fmt: skip
    cleaned = redacted(content)
    assert (cleaned["api_key"], cleaned["db"], cleaned["headers"]) == (
        "<removed>", {"password": "<removed>", "user": "f"}, [{"Authorization": "<removed>"}],
    )  # fmt: skip
    assert {name: cleaned[name] for name in ("eos_token", "max_new_tokens", "api_key_env", "key")} == {
        "eos_token": "h", "max_new_tokens": 4, "api_key_env": "OPENAI_API_KEY", "key": "k",
    }  # fmt: skip


def test_settings_without_secrets_pass(tmp_path):
    refuse_secrets(composed(tmp_path), tmp_path)


def test_no_code_of_others_is_trusted():
    for path in (Path(__file__).parents[2] / "src").rglob("*.py"):
        text = path.read_text().replace(" ", "")
        assert "trust_remote_code=True" not in text, path
        assert "weights_only=False" not in text, path


def test_a_variable_that_ends_in_key_is_secret_if_its_value_looks_like_one(monkeypatch):
    monkeypatch.setenv("MY_KEY", "abc123def456")
    monkeypatch.setenv("SORT_KEY", "reward_mean")
    said = {"notes": "abc123def456", "name": "by reward_mean"}
    assert redacted(said) == {"notes": "<removed>", "name": "by reward_mean"}


def test_numbers_and_secrets_that_begin_alike_are_removed_as_a_whole(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "prefix12")
    monkeypatch.setenv("B_TOKEN", "prefix12-the-rest-of-it")
    assert redacted({"notes": "it is prefix12-the-rest-of-it"}) == {"notes": "it is <removed>"}
    settings = {"logger": {"password": 123456789, "port": 123456789}, "token": 5}
    assert list(literal_secrets(settings)) == ["logger.password"]
    assert redacted(settings) == {"logger": {"password": "<removed>", "port": 123456789}, "token": 5}


A, HEX = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY", "0123456789abcdef"
FORMATS = {
    "OpenAI": f"sk-{A}",
    "OpenAI, of a project": f"sk-proj-{A}_{A}-{A}",
    "OpenAI, without digits": "sk-abcdefghijklmnopqrstuvwxyzabcdefghijkl",
    "Anthropic": f"sk-ant-api03-{A}-{A}AA",
    "OpenRouter": f"sk-or-v1-{HEX * 4}",
    "Stripe": f"sk_live_{A}",
    "Groq": f"gsk_{A}{A}",
    "Cerebras": f"csk-{A}",
    "xAI": f"xai-{A}{A}",
    "Perplexity": f"pplx-{A}{A}",
    "NVIDIA": f"nvapi-{A}_{A}",
    "Replicate": f"r8_{A}",
    "Hugging Face": f"hf_{A}ab",
    "GitHub": f"ghp_{A}abcd",
    "GitHub, of an app": f"ghs_{A}abcd",
    "GitHub, fine-grained": f"github_pat_11ABCDEFG0_{A}{A}",
    "GitLab": f"glpat-{A[:20]}",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "AWS, of a session": "ASIAIOSFODNN7EXAMPLE",
    "Google": f"AIza{A}abc",
    "Google, access": f"ya29.{A}-{A}",
    "Google, client": f"GOCSPX-{A[:28]}",
    "Slack, bot": "xoxb-123456789012-123456789012-abcdefABCDEF",
    "Slack, app": "xapp-1-A0123456789-0123456789012-abcdef",
    "W&B, new": f"wandb_v1_{A}",
    "SendGrid": f"SG.{A[:22]}.{A}abcdefghijk",
    "npm": f"npm_{A}abcd",
    "PyPI": f"pypi-{A}{A}",
    "Telegram": f"123456789:AA{A}x",
    "JSON web token": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{A}",
    "PEM": f"-----BEGIN RSA PRIVATE KEY-----\n{A}\n{A}==\n-----END RSA PRIVATE KEY-----",
    "PEM on one line": rf"-----BEGIN PRIVATE KEY-----\n{A}\n-----END PRIVATE KEY-----",
    "PEM, encrypted": (
        f"-----BEGIN ENCRYPTED PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{A}\n-----END ENCRYPTED PRIVATE KEY-----"
    ),
    "OpenSSH, cut": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{A}",
    "PGP": f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{A}\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
}  # fmt: skip


@pytest.mark.parametrize("key", FORMATS.values(), ids=FORMATS)
def test_a_key_of_a_published_format_is_removed_wherever_it_stands(key):
    for text in (key, f"run of {key}", f"a={key},b=1", f"['{key}']", f"https://host/{key}"):
        assert redacted({"name": [text]})["name"][0].count("<removed>") == 1
        for part in key.split():
            assert len(part) < 16 or part not in without_secrets(text)
        assert list(literal_secrets({"a": {"b": text}})) == ["a.b"]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("https://me:pa$$word@host/v1", "https://me:<removed>@host/v1"),
        ("https://me:p@ss@host/v1", "https://me:<removed>@host/v1"),
        ("redis://:hunter2@host:6379/0", "redis://:<removed>@host:6379/0"),
        (f"https://{HEX}{HEX}@host/v1", "https://<removed>@host/v1"),
        ("https://host/v1?api-key=abc&n=1", "https://host/v1?api-key=<removed>&n=1"),
        ("https://host/v1?n=1&accessToken=abc", "https://host/v1?n=1&accessToken=<removed>"),
        ("https://host/b?sv=1&sig=abc%3D", "https://host/b?sv=1&sig=<removed>"),
        ("Authorization: Bearer abc", "Authorization: Bearer <removed>"),
        ("authorization: token abc", "authorization: token <removed>"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic <removed>"),
        ("Proxy-Authorization: Digest abc", "Proxy-Authorization: Digest <removed>"),
        ("X-Api-Key: abc", "X-Api-Key: <removed>"),
        ("x-goog-api-key:abc", "x-goog-api-key:<removed>"),
        ("Ocp-Apim-Subscription-Key: abc", "Ocp-Apim-Subscription-Key: <removed>"),
        ("Cookie: session=abc; csrf=def", "Cookie: <removed>"),
        ("Accept: */*\r\nX-Api-Key: abc\r\nHost: h", "Accept: */*\r\nX-Api-Key: <removed>\r\nHost: h"),
        ('{"clientSecret": "a b", "n": 1}', '{"clientSecret": "<removed>", "n": 1}'),
        (r"{\"apiKey\": \"abc\", \"n\": 1}", r"{\"apiKey\": \"<removed>\", \"n\": 1}"),
        ("+logger.wandb.api_key=abc", "+logger.wandb.api_key=<removed>"),
        ("{client: {secret: abc, id: 1}}", "{client: {secret: <removed>, id: 1}}"),
        ("--password=abc --n=1", "--password=<removed> --n=1"),
        ("machine api.wandb.ai login user password abc", "machine api.wandb.ai login user password <removed>"),
        ("WANDB_KEY is 0123456789abcdef0123456789abcdef01234567", "WANDB_KEY is <removed>"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = <removed>"),
        ("AccountName=a;AccountKey=abcdefghijklmnopqrstuvwx==", "AccountName=a;AccountKey=<removed>"),
        ("https://hooks.slack.com/services/T0/B0/abcdefghijklmnop", "https://hooks.slack.com/services/<removed>"),
    ],
)  # fmt: skip
def test_a_secret_in_a_text_is_removed_and_nothing_else(text, cleaned):
    assert redacted({"a": [text]}) == {"a": [cleaned]}
    assert redacted(cleaned) == cleaned
    assert is_secret("a", text)


NAMES = [
    "api_key", "apiKey", "api-key", "APIKey", "API_KEY", "apikey", "OPENAI_API_KEY", "openaiApiKey",
    "x-api-key", "api_keys", "clientSecret", "client_secret", "client-secret", "clientsecret",
    "CLIENT_SECRET", "secret", "secrets", "appSecret", "secretAccessKey", "aws_secret_access_key",
    "secret-key", "privateKey", "private_key", "signingKey", "encryption-key", "accessToken", "access-token",
    "refresh_token", "authToken", "bearerToken", "id_token", "sasToken", "sessionToken", "hf_token", "token",
    "Token", "password", "Password", "dbPassword", "db-password", "passwd", "passphrase", "pwd", "smtp_pass",
    "credentials", "awsCredentials", "Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie",
    "connectionString", "basicAuth", "server.api_key", "logger/wandb.apiKey",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_value_of_a_secret_name_is_removed_at_any_depth(name):
    removed = "<removed>"
    for content, cleaned in [
        ({name: "abc"}, {name: removed}),
        ({name: ["abc", "def"]}, {name: [removed, removed]}),
        ({name: {"value": "abc", "other": ["def"]}}, {name: {"value": removed, "other": [removed]}}),
        ([{"name": name, "value": "abc"}], [{"name": name, "value": removed}]),
        ([[name, "abc"]], [[name, removed]]),
        ([(name, "abc")], [[name, removed]]),
        ([f"{name}: abc"], [f"{name}: {removed}"]),
        (f"{name}=abc", f"{name}={removed}"),
        ({name: 123456789}, {name: removed}),
    ]:
        for _ in range(3):
            assert redacted(content) == cleaned
            assert list(literal_secrets({"settings": content}))
            content, cleaned = {"a": [content]}, {"a": [cleaned]}


@pytest.mark.parametrize(
    "content",
    [
        {"eos_token": "</s>"}, {"pad_token": "<|end_of_text_12|>"}, {"max_new_tokens": "4096"}, {"tokens": ["a", "b"]},
        {"tokenizer": "qwen3_1.7b"}, {"token_budget": 123456789}, {"api_key_env": "OPENAI_API_KEY"}, {"monkey": "abc"},
        {"sort_key": "question"}, {"key": "k"}, {"keys": ["id"]}, {"secret": None}, {"password": ""}, {"token": 5},
        {"apiKeyEnv": "MY_KEY"}, {"api_key": "${oc.env:OPENAI_API_KEY}"}, {"columns": ["token", "text"]},
        {"compass": "north"},
        {"bypass": "x"}, {"pass@k": "8"}, {"credits": "gpt"}, {"name": "a", "value": "b"}, {"author": "x"},
        "full_key: callbacks.pass_at_8", "risk-free-rate-2024", "task-1234-5678", "a wandb run of 12 minutes",
        "https://host:8000/v1?n=1", "see https://host/a@b", "s3://bucket/key", "11:30", "1e-6", "2024-01-05 00:00:00",
        "The bearer of bad news", "basic arithmetic", "Tom, login 3 times", "hf_models_qwen3_1b_instruct",
        "${oc.env:HF_TOKEN}", "https://x?key=${oc.env:HF_TOKEN}", "https://me:${oc.env:PASSWORD}@host",
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_secret_stays(content):
    assert redacted(content) == content
    assert list(literal_secrets({"settings": content})) == []


def test_values_of_known_variables_are_removed_in_urls_too(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "a plain/text")
    monkeypatch.setenv("AZURE_OPENAI_KEY", "abc123def456")
    assert redacted({"a": ["it is a plain/text", "http://h/?x=a%20plain%2Ftext", "abc123def456"]}) == {
        "a": ["it is <removed>", "http://h/?x=<removed>", "<removed>"]
    }


def test_the_working_directory_is_no_secret(monkeypatch):
    monkeypatch.setenv("PWD", "/home/me/project")
    assert redacted({"a": "/home/me/project/runs"}) == {"a": "/home/me/project/runs"}
    assert redacted({"pwd": "abc"}) == {"pwd": "<removed>"}
