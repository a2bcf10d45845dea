"""Makes the policies that runs on the embedded tasks start from: `python -m examples.starters.warmstart --help`."""
