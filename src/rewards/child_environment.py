"""Environment of child processes that run third-party code. An allow-list keeps keys from being passed on."""

import os
from collections.abc import Sequence

ALLOWED = frozenset(
    {
        "PATH", "HOME", "TMPDIR", "TZ", "LANG", "LANGUAGE",
        "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME",  # without which an interpreter may not start
        "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "TOKENIZERS_PARALLELISM",
    }
)  # fmt: skip
"""Variables that every child gets, in addition to variables whose names begin with `LC_`."""


def child_environment(names: Sequence[str] = (), setting: str = "data.variables") -> dict[str, str]:
    """Return the variables of this process that third-party code may see, with a fixed hash seed.

    Args:
        names: Names of further variables to pass on, such as `HF_HOME`.
        setting: Setting that has these names, for errors.

    Raises:
        ValueError: if a variable of `names` is not set.
    """
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ValueError(
            f"Expected the environment variables that {setting} names to be set, but {', '.join(missing)} "
            f"are not. Set them, or take them out of {setting}."
        )
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in ALLOWED or name in names or name.startswith("LC_")
    }
    return {**passed, "PYTHONHASHSEED": "0"}
