"""`tagrpo.packing` as a library: its example runs, and it needs torch and transformers alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from transformers import AutoModelForCausalLM

from tagrpo import packing

PROGRAM = """
import sys
import pytest
import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_triton_available


class Blocked:
    names = {"lightning", "pytorch_lightning", "hydra", "omegaconf", "datasets", "vllm", "peft", "trl"}

    def find_spec(self, name, *_):
        if name.split(".")[0] in self.names or name.startswith("tagrpo.") and not name.startswith("tagrpo.packing"):
            raise ImportError(name)


sys.meta_path.insert(0, Blocked())
before = set(sys.modules)
import tagrpo.packing.trl
print(*sorted(set(sys.modules) - before))
"""
FOLDER = Path(packing.__file__).parent


@pytest.mark.distributed
def test_it_imports_nothing_but_torch_and_transformers_and_needs_nothing_else():
    """Nothing of either beside what `PreTrainedModel` brings, so that the import takes no time of its own."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    own = {f"tagrpo.packing.{path.stem}" for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert set(found.split()) == {"tagrpo", "tagrpo.packing", *own}


def test_the_example_of_the_docstring_gives_the_log_probs_of_every_response(tiny_policy):
    block, code = re.search(r"::\n\n(.*?)\n\n.*?`(dict\(.*?\))` has", packing.__doc__, re.DOTALL).groups()
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    prompts = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])]
    prompt, responses = torch.tensor([1, 0, 1]), [torch.tensor(ids) for ids in ([10, 11], [12], [13, 14, 15])]
    plain = []
    for p, response in zip(prompt, responses, strict=True):
        logits = model(torch.cat([prompts[p], response])[None]).logits[0, len(prompts[p]) - 1 : -1]
        plain.append(logits.log_softmax(-1).gather(1, response[:, None])[:, 0])
    names = {**vars(packing), "model": model, "device": "cpu"}
    names |= {"prompts": prompts, "prompt": prompt, "responses": responses}
    exec(dedent(block), names)
    found = eval(code, names)
    for row, expected in enumerate(plain):
        torch.testing.assert_close(found[row], expected)
