"""The fingerprints of the plan."""

from __future__ import annotations

import hashlib
import json

import pytest

from studies.third import freeze

pytestmark = pytest.mark.pages


def test_every_pattern_finds_files_and_the_fingerprint_is_that_of_their_bytes():
    found = freeze.fingerprints()
    for pattern in freeze.FROZEN:
        assert any((freeze.ROOT / name).match(pattern) for name in found), pattern
    text = (freeze.ROOT / "studies" / "third" / "claims.py").read_bytes()
    assert found["studies/third/claims.py"] == hashlib.sha256(text).hexdigest()


def test_what_was_changed_added_or_lost_since_is_named(tmp_path, monkeypatch):
    frozen = freeze.fingerprints()
    frozen["studies/third/claims.py"] = "another"
    frozen["studies/third/gone.py"] = frozen.pop("studies/third/design.py")
    (tmp_path / "plan.json").write_text(json.dumps({"commit": "abc", "files": frozen}))
    monkeypatch.setattr(freeze, "PLAN", tmp_path / "plan.json")
    changed = ["studies/third/claims.py", "studies/third/design.py", "studies/third/gone.py"]
    assert freeze.differing() == changed
