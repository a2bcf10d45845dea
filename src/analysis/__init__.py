"""From run directories to tables, statistics, plots and a report. Needs neither a GPU nor lightning."""
