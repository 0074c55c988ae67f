"""What every command does first: refuse an option given twice, and a limit under which NumPy cannot be loaded."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperCommand

from auditkit.errors import Unsupported

# Options whose value may be left out: what they mean then. The parser has no such thing.
VALUE_LEFT_OUT = {"--paranoid": "same"}

LEAST_ADDRESS_SPACE = 1 << 30  # bytes; OpenBLAS reserves some hundred MiB, and where it cannot it calls exit(1)


class Command(TyperCommand):
    """A command whose options are given once: of `--step 1 --step 2` the parser would silently take the last.

    Those that are lists (`--key A --key B`) may be repeated.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The parser's own work, after a usage error for a repeated option."""
        args = [f"{arg}={VALUE_LEFT_OUT[arg]}" if arg in VALUE_LEFT_OUT else arg for arg in args]
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        seen = []
        for param in order:
            if param in seen and param.param_type_name == "option" and not param.multiple:
                ctx.fail(f"Option '{param.opts[0]}' is given twice.")
            seen.append(param)
        return super().parse_args(ctx, args)


class ComputingCommand(Command):
    """A command that imports NumPy."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Unsupported: the address space is limited to too little."""
        require_address_space()
        return super().invoke(ctx)


def require_address_space() -> None:
    """Unsupported when the process may use less than LEAST_ADDRESS_SPACE (RLIMIT_AS, `ulimit -v`), where there is one.

    To be called before NumPy is imported: its library of linear algebra ends the process with code 1 when it cannot
    reserve its buffers, and no exception tells.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < LEAST_ADDRESS_SPACE:
        raise Unsupported(
            f"the address space is limited to {soft:,} bytes, at least {LEAST_ADDRESS_SPACE:,} are needed",
            hint="raise the limit: ulimit -v unlimited",
        )
