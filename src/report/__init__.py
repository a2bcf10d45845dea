"""Removable: the report of runs as one offline HTML file: did training help, tables, figures, every response."""
