"""The Hydra configuration tree, as package data. Importing it adds the folders of methods to Hydra's search path."""

from tagrpo.settings import methods

methods.register()
