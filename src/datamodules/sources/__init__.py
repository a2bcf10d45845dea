"""Sources of questions; each is a `base.Source`."""
