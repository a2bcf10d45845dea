"""The Hydra configuration tree, shipped as package data."""
