"""Process of an adapter: `PYTHON src/verify/trainers NAME IN OUT`.

The folder is loaded as a package of another name and taken off the path, since its files have the names of
the trainers that they import.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "trainer_adapters"
"""Name of this folder's package in the process."""


def main() -> None:
    """Run the adapter and the folders that the command line names."""
    folder = Path(__file__).resolve().parent
    sys.path = [entry for entry in sys.path if Path(entry).resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"Expected a Python package in {folder}, but found none.")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    name, source, target = sys.argv[1:]
    protocol = importlib.import_module(f"{PACKAGE}.protocol")
    adapter = importlib.import_module(f"{PACKAGE}.{name}")
    adapter.run(protocol.Exchange.read(Path(source), Path(target)))


if __name__ == "__main__":
    main()
