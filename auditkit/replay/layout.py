"""Which plan a step is taken under: the one that takes the least time of those that fit memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

from auditkit.errors import Unsupported
from auditkit.formats.recipe import Recipe
from auditkit.model.piece_sums import BLOCK_ELEMENTS
from auditkit.model.plan import Cuts, Place, Plan
from auditkit.replay.memory import Bytes, Sizes, piece_bytes, plain_bytes, sizes_of

GROUPS = (1, 2, 4, 8, 16, 32)
TOKENS = (0, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16)  # of a chunk of logits; 0: all
TABLE_ROWS = (65_536, 32_768, 16_384, 8192, 4096, 2048, 1024, 512)

# Bytes and multiplications a second that decide between plans; `auditkit plan` measures the arithmetic.
DISK_RATE = 0.6e9
HOST_RATE = 20e9  # between main memory and a card, beside the card's work
OVERLAP = 0.8  # of the card's time, in which such bytes can move
RATES = {False: 40e9, True: 100e12}  # of the matrix products: a CPU with its threads, a card
ELEMENT_RATE = {False: 0.5e9, True: 50e9}  # elements rounded to fixed point


@dataclass(frozen=True)
class Limits:
    """Bytes that may be used: of the memory where the ops compute, of main memory besides that, of the disk; None where
    nobody says.
    """

    memory: int | None
    host: int | None
    disk: int | None

    def fit(self, need: Bytes) -> bool:
        """Whether all three suffice."""
        pairs = ((need.memory, self.memory), (need.host, self.host), (need.disk, self.disk))
        return all(limit is None or size <= limit for size, limit in pairs)


@dataclass(frozen=True)
class Layout:
    """A plan, what it needs, and how its time follows from that of the plain way."""

    plan: Plan
    need: Bytes
    factor: float = 1.0  # of the arithmetic
    traffic: float = 0.0  # seconds a micro-batch for bytes from and to host and disk, as far as they do not overlap


def choose_layout(recipes: Sequence[Recipe], limits: Limits, *, cuda: bool, threads: int) -> Layout:
    """The quickest plan that fits for every recipe. A pure function.

    Unsupported: not even the leanest one fits; says what it needs.
    """
    plain = [_worst(recipes, Plan(workers=count), cuda) for count in _workers(threads, cuda)]
    for layout in plain:
        if limits.fit(layout.need):
            return layout
    best: tuple[float, Layout] | None = None
    for plan in _plans(recipes, cuda):
        layout = _worst(recipes, plan, cuda)
        if limits.fit(layout.need):
            seconds = max(_seconds(recipe, layout, cuda) for recipe in recipes)
            if best is None or seconds < best[0]:
                best = seconds, layout
    if best is not None:
        return best[1]
    raise _too_little(leanest(recipes, cuda).need, limits, cuda)


def leanest(recipes: Sequence[Recipe], cuda: bool) -> Layout:
    """The plan that needs the least memory."""
    found = [_worst(recipes, plan, cuda) for plan in (Plan(), *_plans(recipes, cuda))]
    return min(found, key=lambda layout: (layout.need.memory + layout.need.host, layout.need.disk))


def _too_little(need: Bytes, limits: Limits, cuda: bool) -> Unsupported:
    """The error, which says what the leanest plan needs, and what can be done."""
    where = "of the device's memory" if cuda else "of memory"
    wanted = f"{need.memory:,} bytes {where}"
    if cuda:
        wanted += f", {need.host:,} of main memory"
    shown = [f"{limit:,}" if limit is not None else "any" for limit in (limits.memory, limits.host, limits.disk)]
    there = f"{shown[0]} {where}" + (f", {shown[1]} of main memory" if cuda else "") + f" and {shown[2]} of disk"
    return Unsupported(
        f"a replay of this model needs at least {wanted} and {need.disk:,} of disk; it may use {there}",
        hint="--memory raises the limit, --cache-dir names another disk; a larger machine gives the same bits",
    )


def _workers(threads: int, cuda: bool) -> Iterator[int]:
    count = 1 if cuda else threads
    while count > 1:
        yield count
        count //= 2
    yield 1


def _plans(recipes: Sequence[Recipe], cuda: bool) -> Iterator[Plan]:
    """All plans that work in pieces, but for cuts that other plans are better than."""
    places: tuple[Place, ...] = ("memory", "host", "disk") if cuda else ("memory", "disk")
    params: tuple[Place, ...] = ("host", "disk") if cuda else ("memory", "disk")
    batches = max(recipe.batch.micro_batches for recipe in recipes)
    sizes = sizes_of(recipes[0], cuda)
    heads = [0]
    if cuda:
        keys = recipes[0].model.num_kv_heads
        heads = [0, *sorted({max(1, keys // 2), 1} - {keys}, reverse=True)]
    cuts = [
        Cuts(tokens, rows, key_heads)
        for tokens in TOKENS
        for rows in table_rows(sizes)
        for key_heads in heads
        if tokens < sizes.tokens
    ]
    for cut in cuts:
        for param, sums in product(params, places):
            yield Plan(True, cuts=cut, params=param, sums=sums)
            for group, inputs in product(GROUPS, places):
                if group == 1 or group <= batches:
                    yield Plan(True, group=group, recompute=True, cuts=cut, params=param, sums=sums, inputs=inputs)


def table_rows(sizes: Sizes) -> list[int]:
    """Rows of a piece of a vocabulary table: whole blocks of 128 KiB, so that a device can hash them."""
    width, vocab = sizes.recipe.model.hidden_size, sizes.recipe.model.vocab_size
    unit = BLOCK_ELEMENTS // gcd(BLOCK_ELEMENTS, width)
    found = [0]
    for rows in TABLE_ROWS:
        rounded = max(unit, rows // unit * unit)
        if rounded < vocab and rounded not in found:
            found.append(rounded)
    return found


def _worst(recipes: Sequence[Recipe], plan: Plan, cuda: bool) -> Layout:
    """The plan with the largest of its needs under the recipes."""
    needs = [
        piece_bytes(recipe, plan, cuda) if plan.pieces else plain_bytes(recipe, plan.workers, cuda)
        for recipe in recipes
    ]
    largest = max(needs, key=lambda need: need.memory)
    need = replace(largest, host=max(n.host for n in needs), disk=max(n.disk for n in needs))
    if not plan.pieces:
        return Layout(plan, need)
    sizes = max((sizes_of(recipe, cuda) for recipe in recipes), key=lambda found: found.tokens)
    factor = _factor(sizes, plan)
    return Layout(plan, need, factor, _traffic(sizes, plan, _arithmetic(sizes, cuda) * factor))


def products(sizes: Sizes) -> tuple[float, float]:
    """Multiplications of a micro-batch's forward pass: of the layers, of the head."""
    model = sizes.recipe.model
    span = min(model.sliding_window or model.context_length, model.context_length)
    attention = 2.0 * model.num_heads * model.head_dim * span
    return sizes.tokens * model.num_layers * (float(sizes.layer) + attention), float(sizes.tokens) * sizes.table


def _factor(sizes: Sizes, plan: Plan) -> float:
    """The arithmetic of a plan, as a multiple of that of the plain way: what it makes again."""
    layers, head = products(sizes)
    last = sizes.recipe.model.hidden_size * sizes.recipe.model.ffn_size / max(1, sizes.layer)  # is not made again
    again = head + (layers * (1 - last) if plan.recompute else 0.0)
    chunks = -(-sizes.tokens // plan.cuts.tokens) if plan.cuts.tokens else 1
    pieces = -(-sizes.recipe.model.vocab_size // plan.cuts.rows) if plan.cuts.rows else 1
    width = sizes.recipe.model.hidden_size
    rounded = 2.0 * chunks * sizes.table + 2.0 * pieces * sizes.tokens * width + 3.0 * sizes.parameters / plan.group
    rounding = rounded / ELEMENT_RATE[sizes.cuda] * RATES[sizes.cuda]
    return 1 + (again + rounding) / (3 * (layers + head))


def _traffic(sizes: Sizes, plan: Plan, arithmetic: float) -> float:
    """Seconds a micro-batch for bytes that come and go, but for those that a card moves in its arithmetic's time."""
    model = sizes.recipe.model
    params = 4 * (2 * model.num_layers * sizes.layer + 3 * sizes.table) / plan.group
    sums = 2 * sizes.sum_bytes * sizes.parameters / plan.group
    waiting = 2 * 4 * sizes.tokens * model.hidden_size * (2 * model.num_layers + 6) if plan.recompute else 0
    pairs = ((params, plan.params), (sums, plan.sums), (waiting, plan.inputs))
    on_host, on_disk = (sum(size for size, place in pairs if place == where) for where in ("host", "disk"))
    if sizes.cuda:
        on_host += on_disk
    return on_disk / DISK_RATE + max(0.0, on_host / HOST_RATE - OVERLAP * arithmetic)


def _arithmetic(sizes: Sizes, cuda: bool) -> float:
    """Seconds of a micro-batch the plain way, at nominal rates."""
    return 3 * sum(products(sizes)) / RATES[cuda]


def _seconds(recipe: Recipe, layout: Layout, cuda: bool) -> float:
    """Of a micro-batch at nominal rates: what decides between plans."""
    return _arithmetic(sizes_of(recipe, cuda), cuda) * layout.factor + layout.traffic
