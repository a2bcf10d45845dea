"""Removable: tables, statistics and plots of run directories. Needs neither a GPU nor Lightning."""
