"""Tables as compressed text inside of an HTML page.

A block is `<script type="application/octet-stream" id=NAME data-columns=[[column, type, bytes], …]>BASE64</script>`.
Decoded and inflated (zlib), it is the columns one after the other. A column of numbers is little-endian and stored by
significance: the first bytes of all values, then the second ones, which compresses better. A column of type `json` is
UTF-8. The browser inflates a block when something of it is shown.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np


def block(name: str, columns: Mapping[str, Any], level: int = 6) -> str:
    """One block as HTML.

    Each of `columns` is a 1-D array, stored as bytes (`u1`, bool), integers (`i4`) or floats (`f4`, `f8`); or anything
    else that JSON can express. Lone surrogates become the escapes of JSON, so that any string survives. `level` is that
    of zlib.
    """
    parts, directory = [], []
    for column, values in columns.items():
        kind, content = _encoded(values)
        parts.append(content)
        directory.append([column, kind, len(content)])
    text = base64.b64encode(zlib.compress(b"".join(parts), level)).decode()
    about = escape(json.dumps(directory, separators=(",", ":")), quote=True)
    return f'<script type="application/octet-stream" id="{escape(name)}" data-columns="{about}">{text}</script>\n'


def _encoded(values: Any) -> tuple[str, bytes]:
    if not isinstance(values, np.ndarray):
        return "json", json.dumps(values, separators=(",", ":")).encode()
    kind = {"b": "u1", "i": "i4", "u": "i4"}.get(values.dtype.kind, values.dtype.str[1:])
    return kind, values.astype(f"<{kind}").view(np.uint8).reshape(len(values), int(kind[1])).T.tobytes()
