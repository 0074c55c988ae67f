"""Which plan a step is taken under: the one that takes the least time of those that fit memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

from auditkit.errors import Unsupported
from auditkit.formats.recipe import Recipe
from auditkit.model.kept_results import RESULTS
from auditkit.model.piece_sums import BLOCK_ELEMENTS
from auditkit.model.plan import Cuts, Place, Plan
from auditkit.replay.memory import Bytes, piece_bytes, plain_bytes
from auditkit.replay.predict import Profile, attention_products, predict, profile_of
from auditkit.replay.sizes import Sizes, sizes_of

GROUPS = (1, 2, 3, 4, 6, 8, 16, 32)
TOKENS = (0, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16)  # of a chunk of logits; 0: all
KEEPS = tuple(RESULTS[:count] for count in range(len(RESULTS) + 1))
TABLE_ROWS = (65_536, 32_768, 16_384, 8192, 4096, 2048, 1024, 512)


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


def choose_layout(
    recipes: Sequence[Recipe],
    limits: Limits,
    *,
    cuda: bool,
    threads: int,
    profile: Profile | None = None,
    following: bool = False,
) -> Layout:
    """The quickest plan that fits for every recipe, by a machine's profile or the declared one. A pure function.

    following: whether steps follow each other.

    Unsupported: not even the leanest one fits; says what it needs.
    """
    profile = profile or profile_of(cuda)
    for count in _workers(threads, cuda):
        if limits.fit(_need(recipes, plan := Plan(workers=count), cuda, following)):
            return _layout(recipes, plan, cuda, profile, following)
    cuts = _all_cuts(recipes, cuda)
    quickest = sorted((_seconds(recipes, plan, cuda, profile), number, plan) for number, plan in enumerate(
        replace(plan, cuts=cuts[0]) for plan in _plans(recipes, cuda)))  # fmt: skip
    best: tuple[float, Plan] | None = None
    for least, _, plan in quickest:
        if best is not None and least >= best[0]:
            break  # none of the rest can be quicker, however it is cut
        if not limits.fit(_need(recipes, replace(plan, cuts=cuts[-1]), cuda, following)):
            continue
        for cut in cuts:
            found = replace(plan, cuts=cut)
            seconds = _seconds(recipes, found, cuda, profile)
            if (best is None or seconds < best[0]) and limits.fit(_need(recipes, found, cuda, following)):
                best = seconds, found
    if best is not None:
        return _layout(recipes, best[1], cuda, profile, following)
    raise _too_little(leanest(recipes, cuda, following=following).need, limits, cuda)


def leanest(recipes: Sequence[Recipe], cuda: bool, *, following: bool = False) -> Layout:
    """The plan that needs the least memory; following: as `choose_layout`."""
    last = _all_cuts(recipes, cuda)[-1]
    plans = (Plan(), *(replace(plan, cuts=last) for plan in _plans(recipes, cuda)))

    def size(plan: Plan) -> tuple[int, int]:
        need = _need(recipes, plan, cuda, following)
        return need.memory + need.host, need.disk

    return _layout(recipes, min(plans, key=size), cuda, profile_of(cuda), following)


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
    """All plans that work in pieces, uncut."""
    places: tuple[Place, ...] = ("memory", "host", "disk") if cuda else ("memory", "disk")
    params: tuple[Place, ...] = ("host", "disk") if cuda else ("memory", "disk")
    batches = max(recipe.batch.micro_batches for recipe in recipes)
    layers = max(recipe.model.num_layers for recipe in recipes)
    some = sorted({layers * part // 8 for part in range(8)})  # layers
    groups = [group for group in GROUPS if group == 1 or group <= batches]
    for param, sums, once in product(params, places, (False, True)):
        for tables in dict.fromkeys((sums, "memory")):
            plan = Plan(True, params=param, sums=sums, tables=tables, logits_once=once)
            yield plan
            for group, inputs, keep in product(groups, places, KEEPS):
                again = replace(plan, group=group, recompute=True, inputs=inputs, keep=keep)
                for near in (0,) if inputs == "memory" else some:
                    yield replace(again, near=near)
                if inputs == sums == "host" and 1 < group < batches:
                    yield from _with_more(replace(again, beside=True), some)


def _with_more(plan: Plan, some: Sequence[int]) -> Iterator[Plan]:
    """The plan, and the same with more results kept of some of the layers."""
    yield plan
    at = KEEPS.index(plan.keep)
    if at + 1 < len(KEEPS):
        more = KEEPS[at + 1][len(plan.keep) :]
        yield from (replace(plan, more=more, more_layers=count) for count in some[1:])


def _all_cuts(recipes: Sequence[Recipe], cuda: bool) -> list[Cuts]:
    """From none to the finest: what is cut finer needs less memory and takes no less time."""
    sizes = sizes_of(recipes[0], cuda)
    keys = recipes[0].model.num_kv_heads
    heads = [0, *sorted({max(1, keys // 2), 1} - {keys}, reverse=True)] if cuda else [0]
    tokens = [size for size in TOKENS if size < sizes.tokens]
    return [Cuts(*cut) for cut in product(tokens, table_rows(sizes), heads)]


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


def _need(recipes: Sequence[Recipe], plan: Plan, cuda: bool, following: bool) -> Bytes:
    """The largest of a plan's needs under the recipes."""
    needs = [
        piece_bytes(recipe, plan, cuda, following=following) if plan.pieces else plain_bytes(recipe, plan.workers, cuda)
        for recipe in recipes
    ]
    largest = max(needs, key=lambda need: need.memory)
    if len(needs) == 1:
        return largest
    return replace(largest, host=max(n.host for n in needs), disk=max(n.disk for n in needs))


def _layout(recipes: Sequence[Recipe], plan: Plan, cuda: bool, profile: Profile, following: bool) -> Layout:
    """The plan with what it needs and how long it takes."""
    need = _need(recipes, plan, cuda, following)
    if not plan.pieces:
        return Layout(plan, need)
    sizes = max((sizes_of(recipe, cuda) for recipe in recipes), key=lambda found: found.tokens)
    found, plain = predict(sizes, plan, profile), predict(sizes, Plan(), profile)
    return Layout(plan, need, found.compute / plain.compute, found.seconds - found.compute)


def products(sizes: Sizes) -> tuple[float, float]:
    """Multiplications of a micro-batch's forward pass: of the layers, of the head."""
    layers = sizes.recipe.model.num_layers
    each = sizes.tokens * float(sizes.layer) + attention_products(sizes)
    return layers * each, float(sizes.tokens) * sizes.table


def _seconds(recipes: Sequence[Recipe], plan: Plan, cuda: bool, profile: Profile) -> float:
    """Of a micro-batch of the slowest recipe."""
    return max(predict(sizes_of(recipe, cuda), plan, profile).seconds for recipe in recipes)
