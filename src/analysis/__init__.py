"""Turns run directories into tables, statistics and plots. Needs neither a GPU nor Lightning."""
