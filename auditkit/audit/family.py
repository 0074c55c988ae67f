"""Hardware families: machines that share an instruction set share its faults, so a policy may ask for several.

`cpu-x86_64`, `cpu-arm64`, `cuda-sm_90`. What an auditor states is not proved; two families are two declarations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from auditkit.errors import Unsupported

# What operating systems call the same processors.
_SAME = {"amd64": "x86_64", "x64": "x86_64", "x86-64": "x86_64", "aarch64": "arm64", "armv8": "arm64"}
_NAME = re.compile(r"[a-z0-9_]{1,32}")


def family(machine: Mapping[str, str]) -> str:
    """The family of the machine of a report (`Report.machine`), by the device that replayed.

    Unsupported: the system does not name its processor, or the report names no device.
    """
    if "architecture" in machine:
        return f"cuda-{_checked(machine['architecture'])}"
    name = machine.get("processor", "").lower()
    return f"cpu-{_checked(_SAME.get(name, name).replace('-', '_'))}"


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise Unsupported(f"this machine has no hardware family: its processor is called {name!r}")
    return name
