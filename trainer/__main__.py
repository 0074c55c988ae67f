"""`python -m trainer`."""

import sys

from auditkit.cli.interrupt import load_quietly

if __name__ == "__main__":
    load_quietly()
    from trainer.cli import main

    sys.exit(main())
