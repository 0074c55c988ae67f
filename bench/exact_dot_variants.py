"""Variants of cuda/exact_dot_sm90.cu on a card: the same bits from each, and useful TFLOP/s.

    python -m bench.exact_dot_variants compile FOLDER      needs CuPy and NVRTC, no card; a minute for each variant
    python -m bench.exact_dot_variants measure FOLDER [--sustained]

Each variant is the source with other values of the choices at its head, which change no bit.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.kernels import exact_dot, exact_dot_sm90
from auditkit.kernels.compile import OPTIONS, Nvrtc
from auditkit.kernels.device import Device
from auditkit.kernels.source import source
from bench.exact_dot import SHAPES, fastest, same_bits, sustained

OP = "exact_dot_sm90"


@dataclass(frozen=True)
class Variant:
    """Values of the choices at the head of the source."""

    columns: int = 256
    stages: int = 4
    cluster: int = 2
    group: int = 16
    staged: bool = False

    @property
    def text(self) -> bytes:
        """The source."""
        choices = {"COLUMNS": self.columns, "STAGES": self.stages, "CLUSTER": self.cluster, "GROUP": self.group}
        lines = [f"#define DOT_{name} {value}\n" for name, value in (choices | {"STAGED": int(self.staged)}).items()]
        return "".join(lines).encode() + source(OP)

    def kernels(self) -> dict[str, exact_dot_sm90.Kernel]:
        """The launcher's table for it."""
        found = {}
        for name, kernel in exact_dot_sm90.KERNELS.items():
            narrow = name == "wgmma_wide"
            stages = self.stages * 3 // 2 if narrow and self.columns == 256 else self.stages
            columns = 128 if narrow else self.columns
            found[name] = replace(kernel, columns=columns, stages=stages, cluster=self.cluster, staged=self.staged)
        return found


VARIANTS = {
    "shipped": Variant(),
    "staged": Variant(stages=3, staged=True),
    "three-stages": Variant(stages=3),
    "no-cluster": Variant(cluster=1),
    "columns-192": Variant(columns=192, stages=5),
    "group-8": Variant(group=8),
    "group-32": Variant(group=32),
}


def compile_all(folder: Path) -> None:
    """A cubin of each variant."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler, options = Nvrtc.load(), ("--gpu-architecture=sm_90a", *OPTIONS)

    def make(name: str) -> None:
        (folder / f"{name}.cubin").write_bytes(compiler(VARIANTS[name].text, f"{OP}.cu", options))

    with ThreadPoolExecutor() as pool:
        list(pool.map(make, VARIANTS))


def use(device: Device, folder: Path, name: str) -> None:
    """Let launches of exact_dot_sm90 be those of a variant."""
    from cupy.cuda.function import Module

    module = Module()
    module.load((folder / f"{name}.cubin").read_bytes())
    device._modules[OP] = module
    for key in [key for key in device._functions if key[0] == OP]:
        del device._functions[key]
    exact_dot_sm90.KERNELS.update(VARIANTS[name].kernels())


def measure(folder: Path, clock: Any) -> None:
    """Print the rate of each variant at each shape, after its bits were compared with exact_dot.cu's."""
    device = Device()
    with device.use():
        status, rng = device.zeros((1,), np.uint32), device.cupy.random.default_rng(1)
        for m, n, k in SHAPES:
            for bits in (14, 21) if k == 2048 else (14,):
                a, b = (
                    exact_dot.quantise(device, status, rng.standard_normal((rows, k), dtype=np.float32), bits)
                    for rows in (m, n)
                )
                want = exact_dot.dot(device, a, b, kernel="large128")
                for name in VARIANTS:
                    use(device, folder, name)
                    call = partial(exact_dot.dot, device, a, b, kernel="wgmma")
                    same = same_bits(device, call(), want)
                    rate = 2 * m * n * k / clock(device, call) / 1e9
                    print(
                        f"fx{bits} {m},{n},{k} {name:14} {rate:7.1f} TFLOP/s{'' if same else '  WRONG BITS'}",
                        flush=True,
                    )
                del a, b, want
                device.pool.free_all_blocks()


def main() -> None:
    """Compile or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compile", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sustained", action="store_true", help="without rests: at the card's power limit")
    asked = parser.parse_args()
    if asked.what == "compile":
        compile_all(asked.folder)
    else:
        measure(asked.folder, sustained if asked.sustained else fastest)


if __name__ == "__main__":
    main()
