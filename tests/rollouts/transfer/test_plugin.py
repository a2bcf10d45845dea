"""The plugin that every process of a vLLM server loads."""

from __future__ import annotations

import multiprocessing
import signal
from importlib.metadata import entry_points

import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.runs


def test_the_plugin_is_installed_and_registers_the_backend_once():
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    (plugin,) = entry_points(group="vllm.general_plugins", name="tagrpo")
    register = plugin.load()
    register()
    register()
    with pytest.raises(ValueError, match="tcp"):
        WeightTransferEngineFactory.register_engine("tcp", object)


@pytest.mark.parametrize(
    ("mode", "parent", "ends"), [("1", True, True), ("0", True, False), ("1", False, False)]
)
def test_only_what_a_server_has_started_ends_with_it(mode, parent, ends, monkeypatch):
    from tagrpo.rollouts.transfer import plugin

    calls = []
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", mode)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if parent else None)
    monkeypatch.setattr(
        plugin.ctypes, "CDLL", lambda _: type("C", (), {"prctl": lambda _, *a: calls.append(a)})()
    )
    plugin.register()
    assert calls == ([(1, signal.SIGKILL)] if ends else [])
