"""Programs that use the package; none of them is part of it."""
