"""Writes the report as one offline HTML file: did training help, tables, figures, every recorded response.

`write.py` puts it together from the data blocks of `blocks.py` and the files in `assets/`.
"""
