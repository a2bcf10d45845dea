"""Tables, statistics and plots from run directories. Needs neither a GPU nor Lightning."""
