"""Looks through compiled kernels for arithmetic that the specification does not know: PTX by opcode, SASS by number."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator

FLOATS = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32"})
ROUNDED = frozenset({"add", "sub", "mul", "div", "sqrt", "rcp"})
APPROXIMATE = frozenset({"ex2", "lg2", "sin", "cos", "tanh", "rsqrt"})
ITERATED = frozenset({"div", "sqrt", "rcp"})  # correctly rounded by fused steps of their own in SASS

# The low nine bits of an instruction, the same from Turing to Blackwell; test_sources.py shows that each is found.
FUSED = {0x023: "FFMA", 0x02B: "DFMA"}
LOCAL = {0x183: "LDL", 0x187: "STL"}

_ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)*\.(?:entry|func)\b[^{]*?(\w+)\s*\(", re.MULTILINE)
_OPCODE = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)")


def opcodes(ptx: str) -> dict[str, Counter[str]]:
    """How often each opcode occurs in each kernel or function of a PTX text."""
    starts = [*_ENTRY.finditer(ptx)]
    ends = [match.start() for match in starts[1:]] + [len(ptx)]
    found: dict[str, Counter[str]] = {}
    for match, end in zip(starts, ends, strict=True):
        lines = ptx[match.end() : end].splitlines()
        found[match[1]] = Counter(op[1] for line in lines if line.endswith(";") and (op := _OPCODE.match(line)))
    return found


def complaint(opcode: str) -> str:
    """What is wrong with a PTX opcode; "" for nothing."""
    name, *modifiers = opcode.split(".")
    is_float = not FLOATS.isdisjoint(modifiers)
    problems = {
        "flushes subnormals": "ftz" in modifiers,
        "is an approximation": name in APPROXIMATE or not {"approx", "full"}.isdisjoint(modifiers),
        "is fused": is_float and name in ("fma", "mad"),
        "is a float atomic": is_float and name in ("atom", "red"),
        "may be contracted or is not rounded to nearest": is_float and name in ROUNDED and "rn" not in modifiers,
    }
    return ", ".join(problem for problem, has in problems.items() if has)


def complaints(ptx: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """`kernel: opcode: what is wrong` for all opcodes of a PTX text but the allowed."""
    return [
        f"{kernel}: {opcode} {problem}"
        for kernel, counts in opcodes(ptx).items()
        for opcode in sorted(counts.keys() - allowed)
        if (problem := complaint(opcode))
    ]


def instructions(cubin: bytes) -> dict[str, Counter[int]]:
    """How often each SASS opcode number occurs in each kernel of a cubin."""
    return {
        name: Counter(struct.unpack_from("<H", text, at)[0] & 0x1FF for at in range(0, len(text), 16))
        for name, text in _texts(cubin)
    }


def _texts(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and code of each kernel: the sections .text.* of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    for section in sections:
        begin = sections[names][4] + section[0]
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        if name.startswith(".text."):
            yield name.removeprefix(".text."), cubin[section[4] : section[4] + section[5]]


def fused(cubin: bytes, ptx: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """`kernel: n FFMA` for kernels whose PTX has no division, no root and not as many of the allowed opcodes."""
    in_ptx = opcodes(ptx)
    found = []
    for kernel, counts in instructions(cubin).items():
        iterated = any(op.split(".")[0] in ITERATED and not FLOATS.isdisjoint(op.split(".")) for op in in_ptx[kernel])
        if not iterated:
            asked = {"FFMA": in_ptx[kernel]["fma.rn.f32"] if "fma.rn.f32" in allowed else 0, "DFMA": 0}
            found += [f"{kernel}: {counts[n]} {name}" for n, name in FUSED.items() if counts[n] > asked[name]]
    return found


def local_memory(cubin: bytes) -> list[str]:
    """`kernel: n STL` for kernels that spill registers or keep an array in local memory."""
    return [
        f"{kernel}: {counts[number]} {name}"
        for kernel, counts in instructions(cubin).items()
        for number, name in LOCAL.items()
        if counts[number]
    ]
