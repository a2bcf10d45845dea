"""`tagrpo-verify`: one batch through other trainers' code and ours. Only `main` knows Hydra.

tagrpo-verify runs/grpo/seed0 trainers.verl=.trainers/verl/bin/python
"""

import sys
from collections.abc import Sequence

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from ..cli.console import entry_point, explained
from ..settings.checks import check_given
from ..settings.schema import Verify, check_fields


def as_settings(words: Sequence[str]) -> list[str]:
    """Return the command line with a path in place of `batch=` and `--page` in place of `page=` as settings.

    >>> as_settings(["runs/grpo/seed0", "questions=4", "--page"])
    ['batch=runs/grpo/seed0', 'questions=4', 'page=docs/trainers.md']
    """
    settings = []
    for word in words:
        if word == "--page":
            settings.append("page=docs/trainers.md")
        elif not word.startswith("-") and "=" not in word and not settings:
            settings.append(f"batch={word}")
        else:
            settings.append(word)
    return settings


@entry_point("verify")
def _main(cfg: DictConfig) -> None:
    with explained():
        check_fields(cfg, Verify)
        check_given(cfg)
        OmegaConf.resolve(cfg)
        GlobalHydra.instance().clear()  # the settings of each method are composed anew
        from rich.console import Console

        from .session import verify

        found = verify(cfg, Console())
    broken = [each.method for each in found if each.ours]
    if broken:
        sys.exit(f"Ours leaves its formula in {', '.join(dict.fromkeys(broken))}; see above.")


def main() -> None:
    """Run `tagrpo-verify`."""
    sys.argv[1:] = as_settings(sys.argv[1:])
    _main()


if __name__ == "__main__":
    main()
