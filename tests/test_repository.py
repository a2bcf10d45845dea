"""What the repository holds, and the files by which others use, report and release it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise, product
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.helpers import forked, in_fork

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import release_notes  # noqa: E402

pytestmark = pytest.mark.pages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
}
FORMS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")
    if path.stem != "config"
}
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"].values()]
NEWS = ROOT / "CHANGELOG.md"
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs the repository"
)
def test_no_log_and_nothing_that_git_ignores_is_in_the_repository():
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []
    assert git("check-ignore", "any.log", "docs/any.log") == ["any.log", "docs/any.log"]


# Tests


def prose(pattern):
    """Return the plain words of a pattern: no part of a name, a path, a setting or a value."""
    pattern = re.sub(r"^[rf]+(?=['\"])|`[^`]*`|\{[^}]*\}", "_", pattern)
    return re.findall(r"(?<![\w.\\=/<'-])[A-Za-z]{2,}(?![\w./=(>'-]|\\.)", pattern)


def test_errors_are_matched_by_names_and_values_and_not_by_prose():
    """A message may be worded anew: match its setting, class or file, and the value that it was given."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.keyword)
                and node.arg == "match"
                and not isinstance(node.value, ast.IfExp)
            ):
                pattern = ast.get_source_segment(text, node.value)
                if len(prose(pattern)) > 3:
                    found.append(f"{path.relative_to(ROOT)}:{node.value.lineno}: {pattern}")
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"loss\.kl_coef to be at least 0", ["to", "be", "at", "least"]),
        ("`size` .*5001", []),
        ("PolicyLoss .*got 'hope'", ["PolicyLoss", "got"]),
        ("{name}.wrong .*data.train=3", []),
    ],
)
def test_plain_words_of_a_pattern_are_told_from_names_and_values(pattern, words):
    assert prose(pattern) == words


# Releases


def test_project_citation_and_changelog_name_the_same_release():
    newest = release_notes.newest_release(ROOT)
    assert newest.version == PROJECT["version"]
    assert newest.notes


def test_releases_are_listed_from_the_newest_to_the_oldest():
    found = release_notes.releases(NEWS.read_text())
    assert len(found) >= 2
    for newer, older in pairwise(found):
        assert Version(newer.version) > Version(older.version)
        assert newer.date >= older.date


@pytest.fixture
def repository(tmp_path):
    """A repository of two releases and an unreleased change."""
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n- Later.\n\n## 2.0.0 – 2030-02-01\n\n### Added\n\n- New.\n\n"
        "## 1.9.0 – 2030-01-01\n\n- Old.\n"
    )
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "2.0.0"\n')
    (tmp_path / "CITATION.cff").write_text(
        "cff-version: 1.2.0\nversion: 2.0.0\ndate-released: '2030-02-01'\n"
    )
    return tmp_path


def test_the_notes_of_a_release_are_its_section(repository):
    release = release_notes.newest_release(repository)
    assert (release.version, release.date) == ("2.0.0", "2030-02-01")
    assert release.notes == "### Added\n\n- New."


@pytest.mark.parametrize(
    ("file", "is_now", "becomes", "named"),
    [
        ("pyproject.toml", "2.0.0", "2.0.1", "version in pyproject.toml"),
        ("CITATION.cff", "\nversion: 2.0.0", "\nversion: 1.9.0", "version in CITATION.cff"),
        ("CITATION.cff", "\nversion: 2.0.0", "", "version in CITATION.cff"),
        ("CITATION.cff", "2030-02-01", "2030-02-02", "date-released"),
        ("CHANGELOG.md", "## Unreleased", "## Soon", "Unreleased"),
        ("CHANGELOG.md", "## 1.9.0 – 2030-01-01", "## 1.9", "CHANGELOG.md"),
        ("CHANGELOG.md", "## 2.0.0 – 2030-02-01", "## 2.0.0 - 2030-02-01", "2.0.0 - 2030-02-01"),
        ("CHANGELOG.md", "## 2.0.0 – 2030-02-01", "## 3.0.0 – 2030-02-01", "version in pyproject.toml"),
    ],
)
def test_files_that_disagree_are_no_release(repository, file, is_now, becomes, named):
    path = repository / file
    text = path.read_text()
    assert is_now in text
    path.write_text(text.replace(is_now, becomes))
    with pytest.raises(ValueError, match=named):
        release_notes.newest_release(repository)


def test_a_changelog_without_a_release_is_refused():
    with pytest.raises(ValueError, match="CHANGELOG.md"):
        release_notes.releases("# Changelog\n\n## Unreleased\n")


def test_only_the_tag_of_the_version_has_notes():
    def notes_of(tag):
        script = [
            sys.executable,
            "-I",
            "-S",
            ROOT / "scripts" / "release_notes.py",
            tag,
        ]  # no package but Python's own
        return subprocess.run(script, capture_output=True, text=True, check=False)

    right = notes_of(f"v{PROJECT['version']}")
    assert right.returncode == 0, right.stderr
    assert right.stdout.strip() == release_notes.newest_release(ROOT).notes
    wrong = notes_of("v0.0.1")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert PROJECT["version"] in wrong.stderr


# Workflows


def commands(job):
    """Return what the steps of a job run, once for each row of its matrix."""
    rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
    texts = [step["run"] for step in job["steps"] if "run" in step]
    return [
        re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match: str(row[match[1]]), text)  # noqa: B023
        for row, text in product(rows, texts)
    ]


def made(target):
    """Return the commands that `make` would run for a target, also where `make` runs the tests."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    command = ["make", "-n", *target.split()]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def targets(name):
    return [text.removeprefix("make ") for job in WORKFLOWS[name]["jobs"].values() for text in commands(job)]


@needs_make
def test_every_target_that_a_workflow_makes_exists():
    runs = [text for _, job in JOBS for text in commands(job) if text.startswith("make ")]
    assert {"make lint", "make docs"} <= set(runs)
    for text in set(runs):
        assert made(text.removeprefix("make "))


@needs_make
def test_each_test_is_run_by_a_target_of_a_workflow():
    """By marks: each test is in one of these targets."""
    marks = {
        "tests": "not slow and not pages and not runs",
        "test-runs": "runs and not slow and not pages",
        "test-pages": "pages and not slow",
        "test-slow": "slow",
    }
    for target, expression in marks.items():
        assert re.search(r'bin/pytest .*-m "?([^"\n]+)', made(target))[1] == expression
    assert marks.keys() <= set(targets("test"))


def test_every_script_that_a_workflow_runs_exists():
    scripts = [
        path
        for _, job in JOBS
        for text in commands(job)
        for path in re.findall(r"python (?!-)(\S+\.py)", text)
    ]
    assert scripts
    assert [path for path in scripts if not (ROOT / path).is_file()] == []


@needs_make
def test_a_push_is_linted_and_typed_once():
    printed = "".join(made(target) for target in targets("test"))
    assert len(re.findall(r"bin/mypy$", printed, re.MULTILINE)) == 1
    assert len(re.findall(r"bin/ruff check", printed)) == 1


@needs_make
def test_coverage_is_that_of_the_tests_and_is_uploaded():
    measured = re.findall(r"bin/pytest (.*) --cov ", made("coverage"))
    assert measured == re.findall(r"bin/pytest (.*)", made("tests"))
    steps = WORKFLOWS["test"]["jobs"]["test"]["steps"]
    uploads = [step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", "")]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
    assert settings["xml"]["output"] in uploads


def test_all_tests_run_on_each_python_that_the_project_names():
    matrix = WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["include"]
    tested = [row["python"] for row in matrix if row["target"] == "tests"]
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert tested == named
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_limits(name):
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "write" if name == "release" else "read"}
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 120
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v1"))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_text_of_a_stranger_enters_a_command(name):
    """Titles and branch names of pull requests would be run by the shell if they stood in `run`."""
    for job in WORKFLOWS[name]["jobs"].values():
        for step in job["steps"]:
            assert "${{" not in re.sub(r"\$\{\{ matrix\.\w+ \}\}", "", step.get("run", ""))
    assert "pull_request_target" not in WORKFLOWS[name][True]  # YAML 1.1 reads `on` as true


def test_dependabot_leaves_the_locked_versions_alone():
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    kinds = {update["package-ecosystem"]: update for update in updates}
    assert sorted(kinds) == ["github-actions", "pip"]
    excluded = {path for pattern in kinds["pip"]["exclude-paths"] for path in ROOT.glob(f"{pattern}/*")}
    assert set((ROOT / "requirements").iterdir()) <= excluded


# Issues and pull requests


@pytest.mark.parametrize("name", ["bug", "method"])
def test_issue_forms_are_complete(name):
    form = FORMS[name]
    assert form["name"]
    assert form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    for part in form["body"]:
        assert part["type"] in {"markdown", "textarea", "input"}
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"]


def field(form, id):
    return next(part["attributes"] for part in FORMS[form]["body"] if part.get("id") == id)


def test_commands_of_the_bug_form_work(tmp_path):
    program = re.search(r'python -c "(.*)"', field("bug", "versions")["description"])[1]
    code, output = in_fork(lambda: exec(program, {}))
    assert code == 0, output
    assert f"'version/torch', '{sys.modules['torch'].__version__}'" in output

    assert "--cfg job" in field("bug", "settings")["description"]
    command, *arguments = field("bug", "command")["placeholder"].split()
    code, output = forked(command.removeprefix("tagrpo-"), *arguments, "--cfg", "job", folder=tmp_path)
    assert code == 0, output
    assert yaml.safe_load(output)["iterations"] == 2


def test_the_pull_request_template_names_commands_that_exist():
    text = (ROOT / ".github/pull_request_template.md").read_text()
    assert "`make test`" in text
    scripts = re.findall(r"python (\S+\.py)", text)
    assert scripts
    assert all((ROOT / path).is_file() for path in scripts)


# Packages


def requirements(*extras):
    texts = list(PROJECT["dependencies"])
    for extra in extras:
        texts += PROJECT["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def locked():
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements/cpu.lock").read_text(), re.MULTILINE)
    return {name: Version(version) for name, version in lines}


def test_each_package_is_required_once():
    names = [requirement.name for requirement in requirements(*PROJECT["optional-dependencies"])]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_locked_versions_are_within_the_bounds():
    versions = locked()
    found = requirements("vllm-cpu", "minilm", "dev", "bench")
    assert len(found) > 25
    for requirement in found:
        if requirement.name != PROJECT["name"]:
            assert versions[requirement.name.lower()] in requirement.specifier, requirement.name


@pytest.mark.parametrize(("package", "works", "breaks"), [("transformers", "5.22.9", "5.23.0")])
def test_a_version_that_is_known_to_break_is_excluded(package, works, breaks):
    specifier = next(each.specifier for each in requirements() if each.name == package)
    assert works in specifier
    assert breaks not in specifier


def test_authors_and_addresses_are_those_of_the_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert [author["name"] for author in PROJECT["authors"]] == [
        author["name"] for author in citation["authors"]
    ]
    assert PROJECT["license"] == citation["license"]
    known = {citation.get("repository-code"), citation.get("url")} - {None}
    assert set(PROJECT.get("urls", {}).values()) <= known


def test_hooks_bring_the_ruff_of_the_lock_file():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert ".venv" not in text
    hooks = [hook for repo in yaml.safe_load(text)["repos"] for hook in repo["hooks"]]
    assert [hook["id"] for hook in hooks] == ["ruff", "ruff-format"]
    for hook in hooks:
        assert hook["language"] == "python"
        assert hook["additional_dependencies"] == [f"ruff=={locked()['ruff']}"]


# Security


def anchors(page):
    """Return the anchors of a page's headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_security_page_links_to_sections_and_names_no_address():
    text = (ROOT / "SECURITY.md").read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", text)
    assert len(links) >= 4
    for path, anchor in links:
        assert (ROOT / path).is_file()
        assert not anchor or anchor in anchors(ROOT / path), anchor
    assert "http" not in text
    assert "@" not in text
