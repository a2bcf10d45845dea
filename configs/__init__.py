"""The Hydra configuration tree, shipped as package data. Importing it makes the options of methods known to Hydra."""

from tagrpo.settings import absent, methods

methods.register()
absent.register()
