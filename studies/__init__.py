"""Studies: plans that were written down before their runs, and what came of them. No part of the package."""
