"""Where the `auditkit` command begins: Ctrl-C is seen to before anything else is loaded, which takes a while."""

from __future__ import annotations

from typing import NoReturn

from auditkit.cli.interrupt import load_quietly


def main() -> NoReturn:
    """Load the command line and run it."""
    load_quietly()
    from auditkit.cli.main import main as run

    run()
