"""Print the path of a usable uv, fetching one with pip into ``.uv`` where none is installed."""

import contextlib
import sys

from common import find_uv

if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        path = find_uv()
    print(path)
