"""The report as one offline HTML file: did it help, tables, figures, and every recorded response.

`write.py` puts it together from the data blocks of `blocks.py` and the files in `assets/`.
"""
