"""Sources of questions; each of them is a `base.Source`."""
