"""From run directories to tables, statistics, plots and reports. Needs neither a GPU nor Lightning."""
