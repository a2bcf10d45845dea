"""Sources of questions; `base.Source` is what each of them implements."""
