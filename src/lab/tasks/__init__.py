"""The embedded tasks: sources, verifiers and starter policies, one file or folder each."""
