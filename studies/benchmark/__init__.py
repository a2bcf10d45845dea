"""Every method of the README beside every other, and beside not training; one command adds a method of yours."""
