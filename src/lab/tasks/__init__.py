"""The embedded tasks: sources and verifiers, one file or folder each."""
