"""From run directories to tables, statistics and plots. Needs neither a GPU nor Lightning."""
