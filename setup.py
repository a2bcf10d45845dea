"""Packages of the distribution, found rather than listed: `src` installs as `tagrpo`. All else is in pyproject.toml."""

from setuptools import find_packages, setup

CONFIGS = ["tagrpo.configs", "tagrpo.configs.comparisons"]

setup(packages=["tagrpo", *(f"tagrpo.{name}" for name in find_packages("src")), *CONFIGS])
