"""`python -m auditkit`: the same as the `auditkit` command."""

from auditkit.cli.start import main

if __name__ == "__main__":
    main()
