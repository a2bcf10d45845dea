"""Rephrasings without a model: a rephraser of your own, given to `tagrpo-rephrase` by its name.

    python examples/rule_rephraser input=questions.jsonl output=rephrased.jsonl

Everything else (checks, provenance, the output, an audit afterwards) is that of `tagrpo-rephrase`.
"""

from __future__ import annotations

import sys

from tagrpo.rephrasing.command import main

if __name__ == "__main__":  # the folder of this file is on the path, so that `rules` is found
    sys.argv[1:1] = ["~rephraser", "+rephraser._target_=rules.RuleRephraser"]
    main()
