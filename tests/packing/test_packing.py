"""What `tagrpo.packing` says of itself: its example runs, and it needs torch and transformers alone."""

from __future__ import annotations

import re
import subprocess
import sys
from textwrap import dedent

import torch
from transformers import AutoModelForCausalLM

from tagrpo import packing

PROGRAM = """
import sys
import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_triton_available
before = set(sys.modules)
import tagrpo.packing
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
print(*sorted(name for name in sys.modules if name.startswith("tagrpo.") and not name.startswith("tagrpo.packing")))
print(*sorted({"lightning", "pytorch_lightning", "hydra", "omegaconf", "pandas", "trl"} & set(sys.modules)))
"""


def test_nothing_but_torch_and_transformers_is_imported():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    added, ours, unwanted = found.split("\n")[:3]
    assert set(added.split()) - set(sys.stdlib_module_names) <= {"tagrpo", "torch"}
    assert (ours, unwanted) == ("", "")


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
