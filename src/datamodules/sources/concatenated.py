"""Several sources as one."""

from collections import defaultdict
from collections.abc import Mapping

from ...types import QuestionGroup, require
from .base import Source, SourceReport


class ConcatenatedSource(Source):
    """Concatenation of several sources, with their reports joined.

    Args:
        sources: Name → source; the name appears in messages.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        if not sources:
            raise ValueError("Expected at least one source in `sources`, but got none.")
        for name, source in sources.items():
            require(source, Source, f"sources.{name}")
        self.sources = dict(sources)
        self._setting = "source"

    @property
    def setting(self) -> str:
        """Name of the settings in messages; assigning it sets the parts' names to `<name>.sources.<part>`."""
        return self._setting

    @setting.setter
    def setting(self, name: str) -> None:
        self._setting = name
        for part, source in self.sources.items():
            if hasattr(source, "setting"):
                source.setting = f"{name}.sources.{part}"

    def load(self) -> list[QuestionGroup]:
        """Load all sources.

        Raises:
            ValueError: if two questions have the same id.
        """
        groups: dict[str, QuestionGroup] = {}
        reports = []
        notes = []
        warnings: list[str] = []
        places: dict[str, str] = {}
        excluded: dict[str, list[str]] = defaultdict(list)
        for name, source in self.sources.items():
            loaded = source.load()
            for group in loaded:
                if group.id in groups:
                    raise ValueError(
                        f"Expected different ids in `{name}`, but an earlier source has {group.id!r} too."
                    )
                groups[group.id] = group
            report = source.report or SourceReport(origin=name, read=len(loaded))
            reports.append(report)
            warnings += report.warnings
            places |= report.places
            for reason, ids in report.excluded.items():
                excluded[reason] += ids
            notes += [f"{name}: {note}" for note in (*report.notes, f"gives {len(loaded)} questions")]
        self.report = SourceReport(
            origin=" + ".join(report.origin for report in reports),
            read=sum(report.read for report in reports),
            excluded=dict(excluded),
            notes=notes,
            warnings=warnings,
            places=places,
        )
        return list(groups.values())
