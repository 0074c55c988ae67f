"""Makes the vectors of the ops: inputs and outputs as words, for anybody who implements SPEC.md.

    python -m tests.vectors.make_ops [FOLDER]

Each file says what its fields are; arrays are written as in tests/vectors/words.py. Inputs come from Philox by
integer operations. tests/vectors/test_make_ops.py makes the files again, compares every byte, and asks the oracle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.vectors.make_elementary import FORMAT, encode
from tests.vectors.no_result_cases import no_result
from tests.vectors.product_cases import attention_cases, exact_dot, f32_dot, weighted_sums
from tests.vectors.row_cases import cross_entropy, embedding, layout, rms_norm, rope, row_sums, swiglu
from tests.vectors.update_cases import adamw, exact_sum, fold, global_norm

Case = dict[str, Any]

ARRAYS = (
    "an array is {shape, f32: words} or {shape, dtype, runs: [[count, word], ..]}, elements in C order; f32 is the "
    "binary32 bit pattern in 8 hexadecimal digits, i64 two's complement in 16, f64 the binary64 bit pattern in 16. "
)


def attention() -> list[Case]:
    """Of the exact products."""
    return [case for bits in (14, 21) for case in attention_cases(bits)]


FILES: dict[str, tuple[str, Callable[[], list[Case]]]] = {
    "exact_dot": ("section 3: product is X . Y^T of the rows rounded to `bits` bits", exact_dot),
    "f32_dot": ("section 16: product is X . Y^T", f32_dot),
    "f32_attention": ("section 16: fields as in attention.json", lambda: attention_cases(24)),
    "exact_sum": (
        "section 4: terms = rint(x * 2^unit), their sum, and the sum rounded back; a case without x has sums alone, "
        "each rounded back for itself",
        exact_sum,
    ),
    "row_sum": ("section 5: the ordered sum of each row of x", row_sums),
    "weighted_sum": ("section 8: weights (M, N), rows (N, D); a bound of null: all products are zero", weighted_sums),
    "rms_norm": ("section 7: x, dy (N, C) with weight (C) and eps; dweight in units 2^-56", rms_norm),
    "rope": ("section 9: cos, sin (T, D/2); x, y, dy, dx (T, D); theta is f64", rope),
    "attention": ("section 8: q, dout (B, H, T, D), k, v (B, G, T, D); window 0 is none", attention),
    "swiglu": ("section 10: gate, up, dy", swiglu),
    "embedding": ("section 11: rows of the table by token; dtable (V, C) in units 2^-56", embedding),
    "cross_entropy": (
        "section 12: total_targets is n; loss_sum is A (units 2^-32, a decimal) of these rows; mean_loss is the loss "
        "recorded if they were all",
        cross_entropy,
    ),
    "global_norm": ("section 13: squares is Q (units 2^-62, a decimal) of this tensor alone", global_norm),
    "adamw": (
        "section 14: update is t; beta1, beta2, weight_decay are f64, all else f32; decayed is false for kind norm",
        adamw,
    ),
    "fold": (
        "section 17: sums (M, n) are A of each micro-batch and element, radices are r_0, r_1, .., terms (M, n) are x, "
        "gradient (n) is g",
        fold,
    ),
    "layout": ("section 15: split makes heads, add is one binary32 addition", layout),
    "no_result": (
        "sections 1, 4 and 13: which inputs have a result (has_result), by op. terms: x of one micro-batch in units "
        "2^-unit (section 4); sum: the terms of one micro-batch; partial sums: sums of micro-batches, added in order; "
        "squares: the gradients of a step (section 13); dot: X . Y^T (section 3; bits 24: section 16); weighted sum: "
        "as in weighted_sum.json; attention: forward and backward without a window, and the results as operands of "
        "the next product; cross-entropy: as in cross_entropy.json; state: a new parameter or moment (section 1)",
        no_result,
    ),
}


def vectors() -> dict[str, dict[str, Any]]:
    """Every file by the name of its op."""
    return {
        op: {"format": FORMAT, "op": op, "about": f"SPEC.md {about}; {ARRAYS.strip()}", "cases": make()}
        for op, (about, make) in FILES.items()
    }


def main(folder: Path) -> None:
    """Write every file into the folder."""
    for op, vector in vectors().items():
        (folder / f"{op}.json").write_bytes(encode(vector))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
