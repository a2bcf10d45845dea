"""The page of licences lists every dependency whose licence is not permissive."""

from __future__ import annotations

import sys
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import licences  # noqa: E402

pytestmark = pytest.mark.pages

LOCK = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()


def package(*fields):
    metadata = Message()
    for name, value in fields:
        metadata[name] = value
    return SimpleNamespace(metadata=metadata, files=[], requires=[])


@pytest.mark.parametrize(
    ("fields", "restricted"),
    [
        ([("License-Expression", "MIT")], ""),
        ([("License-Expression", "Apache-2.0 AND (MIT OR 0BSD) AND LGPL-2.1-only")], "LGPL-2.1-only"),
        ([("License", "MPL-2.0 AND MIT")], "MPL-2.0"),
        ([("License", "Intel End User License\nwith more lines")], "Intel End User License"),
        ([("Classifier", "License :: OSI Approved :: BSD License"), ("License", "see the file")], ""),
        ([("Classifier", "License :: Other/Proprietary License")], "Other/Proprietary License"),
        ([("Classifier", "Programming Language :: Python")], "not stated"),
    ],
)
def test_what_is_not_permissive_is_listed(fields, restricted):
    rows = licences.rows({"some-package": package(*fields)})
    assert [text for _, text, _ in rows] == ([restricted] if restricted else [])


def test_the_page_has_the_packages_of_this_environment():
    page = licences.PAGE.read_text()
    packages = licences.installed()
    found = licences.rows(packages)
    expected = {"pycountry", "yattag", "intel-openmp", "intel-cmplr-lib-ur", "certifi"}
    assert expected & {*packages} <= {name for name, _, _ in found}
    for name, text, _ in found:
        assert f"| {name} | {text} |" in page


def test_every_package_of_the_lock_file_but_torch_has_hashes():
    names = [line.split("==")[0] for line in LOCK if "==" in line and not line.startswith(" ")]
    unhashed = [
        line.split("==")[0]
        for line, below in zip(LOCK, [*LOCK[1:], ""], strict=True)
        if "==" in line and not below.startswith("    --hash=sha256:")
    ]
    assert len(names) > 200
    assert unhashed == ["torch"]
