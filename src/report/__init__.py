"""Removable: the report on runs as one offline HTML file with verdicts, tables, figures and all responses."""
