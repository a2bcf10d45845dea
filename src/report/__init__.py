"""The report as one offline HTML file: did it help, tables, figures, and every recorded response.

`write.py` puts it together from the data blocks of `blocks.py` and the files in `assets/`.
"""

from .blocks import read_blocks
from .write import MEGABYTES, write_page

__all__ = ["MEGABYTES", "read_blocks", "write_page"]
