"""Print the path of a usable uv, fetching one with pip into ``.uv`` where none is installed."""

import contextlib
import sys

from common import NoUvError, find_uv

if __name__ == "__main__":
    try:
        with contextlib.redirect_stdout(sys.stderr):
            path = find_uv()
    except NoUvError as error:
        sys.exit(str(error))
    print(path)
