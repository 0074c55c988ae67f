"""Takes a card's memory until a line comes, or the end of stdin; says how much it holds.

python -m tests.kernels.fill_card LEFT      LEFT: bytes to leave free
"""

from __future__ import annotations

import sys

PIECES = (1 << 33, 1 << 30, 1 << 26, 1 << 21)


def main() -> None:
    """Take it in ever smaller pieces."""
    from cupy.cuda import runtime

    left, held = int(sys.argv[1]), 0
    for piece in PIECES:
        while runtime.memGetInfo()[0] >= left + piece:
            try:
                runtime.malloc(piece)  # the process's end frees it
            except runtime.CUDARuntimeError:
                break
            held += piece
    print(held, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
