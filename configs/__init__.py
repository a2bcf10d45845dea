"""The Hydra configuration tree, as package data. Importing it adds the folders of methods to Hydra's search path."""

import tagrpo.settings.methods  # noqa: F401
