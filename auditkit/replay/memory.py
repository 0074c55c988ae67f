"""How many bytes a step needs under a plan, by the sizes of its arrays (sizes.py), checked against measurements."""

from __future__ import annotations

from dataclasses import dataclass

from auditkit.formats.recipe import Recipe
from auditkit.model.params import parameter_count
from auditkit.model.plan import Place, Plan
from auditkit.replay.sizes import Sizes, sizes_of

HOST_BASE = 80 * 10**6  # bytes of interpreter, NumPy and the BLAS's buffers: measured 60, more with many threads
DEVICE_BASE = 80 << 20  # tables, tokens, what products park (256 KiB a multiprocessor), sums of ranges of K (32 MiB)
SPLIT = 10  # a part in so many of a device's memory is lost between blocks of other sizes
READ_AGAIN, GRADIENTS = "start state, read again before a mismatch", "gradients"


@dataclass(frozen=True)
class Bytes:
    """What a plan needs: of the memory where the ops compute, of main memory besides that, and of the disk.

    `parts` says how the first two come about, in words.
    """

    memory: int
    host: int
    disk: int
    parts: tuple[tuple[str, int], ...] = ()


def plain_bytes(recipe: Recipe, workers: int, cuda: bool) -> Bytes:
    """The plain way: all in memory, `workers` micro-batches side by side.

    It is enough for every verdict: the replay before a mismatch has its own copy of the start state, in main memory
    beside the first, on a card in its place. What the micro-batches need is free again when the update makes the new
    state: the larger of both counts.
    """
    sizes = sizes_of(recipe, cuda)
    state, sums = 12 * sizes.parameters, plain_sums(recipe)
    always = (("start state", state), (READ_AGAIN, 0 if cuda else state), _weights(sizes))
    computing = ((GRADIENTS, sums + _gradients(sizes, workers)), ("micro-batches", _batches(sizes, workers)))
    updating = (("sums and gradient", sums + 4 * sizes.parameters), ("state after", state))
    parts = (*always, *max(computing, updating, key=_total))
    return _of_parts(parts, cuda, state)


def part_bytes(recipe: Recipe, threads: int, count: int, cuda: bool) -> Bytes:
    """An audit of `count` micro-batches alone: of the states the parameters, and of all of them together their sum."""
    workers, sizes = max(1, min(threads, count)) if not cuda else 1, sizes_of(recipe, cuda)
    whole, params = count == recipe.batch.micro_batches, 4 * sizes.parameters
    parts = (
        ("parameters", params),
        ("parameters, read again before a mismatch", params),
        _weights(sizes),
        (GRADIENTS, 8 * sizes.parameters * (1 + workers) + (plain_sums(recipe) if whole else 0)),
        ("micro-batches", _batches(sizes, workers)),
    )
    return _of_parts(parts, cuda, params)


def _of_parts(parts: tuple[tuple[str, int], ...], cuda: bool, read: int) -> Bytes:
    """All in memory; read: bytes that pass through main memory on their way to a card."""
    total = _total(parts)
    total += total // SPLIT + DEVICE_BASE if cuda else HOST_BASE
    return Bytes(total, HOST_BASE + read if cuda else 0, 0, parts)


def _total(parts: tuple[tuple[str, int], ...]) -> int:
    return sum(size for _, size in parts)


def _weights(sizes: Sizes) -> tuple[str, int]:
    return "fixed-point weights", 2 * sizes.body * sizes.parameters


def _gradients(sizes: Sizes, workers: int) -> int:
    """Bytes of products and of the embedding's sums, of micro-batches at work or waiting; and of a fold's terms."""
    making = 0 if sizes.cuda else 16 * workers * max(sizes.table, sizes.matrix)  # a tensor's at a time, in binary64
    making += 8 * sizes.parameters if sizes.recipe.numerics.fold else 0
    return 4 * (sizes.parameters + sizes.table) * (workers + (workers > 1)) + making


def _batches(sizes: Sizes, workers: int) -> int:
    """Bytes of what the micro-batches keep, and of the widest work of each."""
    model = sizes.recipe.model
    head = sizes.tokens * model.vocab_size * (4 + (4 if sizes.cuda else 0) + 2 * sizes.head)
    return workers * (model.num_layers * sizes.cache + max(head, sizes.work(0)))


def plain_sums(recipe: Recipe) -> int:
    """Bytes of the sum of the gradients of all micro-batches, and of its rounding."""
    return (4 * (len(recipe.numerics.fold) + 2) if recipe.numerics.fold else 8) * parameter_count(recipe.model)


def piece_bytes(recipe: Recipe, plan: Plan, cuda: bool, *, following: bool = False) -> Bytes:
    """One layer at a time; following: steps follow each other, so that states are made of those before them."""
    sizes, rows = sizes_of(recipe, cuda), _rows(recipe, plan)
    held, stages = _held(sizes, plan, following), _stages(sizes, plan, rows)
    caches = 0 if plan.recompute else plan.group * recipe.model.num_layers * sizes.cache
    largest = max(stages, key=lambda name: stages[name])
    ahead = _ahead(sizes, plan) if plan.params == "disk" else 0
    host = on_host(sizes, plan, following) + ahead + _spilling(sizes, plan, rows)
    in_memory = {what: size for (what, place), size in held.items() if place == "memory"}
    leaving = waiting_sums(recipe) if "host" in (plan.sums, plan.table_sums) else 0
    parts = (
        (f"{largest} at a time", stages[largest]),
        ("caches of all layers", caches),
        ("waiting micro-batches", sum(in_memory.get(what, 0) for what in ("passing", "waiting", "near"))),
        ("gradient sums", in_memory.get("sums", 0) + in_memory.get("tables", 0) + leaving),
        ("digests of gradients", plan.group * sizes.parameters // 512 if cuda else 0),  # 32 bytes for 128 KiB of int64
        ("parameters", 0 if cuda else in_memory.get("parameters", 0)),
        ("files", 0 if cuda else host + sizes.reading),
    )
    total, disk = _total(parts), sum(size for (_, place), size in held.items() if place == "disk")
    disk += sum(held.get((what, "disk"), 0) for what in ("sums", "tables"))  # written anew before the old one goes
    disk += 2 * held["tables", plan.table_sums] if plan.sums == "disk" != plan.table_sums else 0  # kept with the others
    if cuda:
        whole = total + max(total // SPLIT + sizes.chunk(plan) // 2, sizes.chunk(plan)) + DEVICE_BASE
        return Bytes(whole, HOST_BASE + sizes.reading + host, disk, parts)
    return Bytes(total + HOST_BASE, 0, disk, parts)


def on_host(sizes: Sizes, plan: Plan, following: bool = False) -> int:
    """Bytes of main memory that a group of micro-batches holds beside a card."""
    return sum(size for (_, place), size in _held(sizes, plan, following).items() if place == "host")


def _rows(recipe: Recipe, plan: Plan) -> int:
    """Rows of a piece of a vocabulary table."""
    return min(plan.cuts.rows or recipe.model.vocab_size, recipe.model.vocab_size)


def is_once(recipe: Recipe, plan: Plan) -> bool:
    """Whether the gradient of the logits is made once."""
    return plan.logits_once and not recipe.model.tied_head


def _held(sizes: Sizes, plan: Plan, following: bool) -> dict[tuple[str, Place], int]:
    """Bytes of what lies somewhere through a group of micro-batches, by what it is and where it lies."""
    params = 4 * sizes.parameters  # twice while they are made of those before; in files also when they are read again
    near, far = kept_bytes(sizes, plan)
    of_head = 0 if is_once(sizes.recipe, plan) else sizes.stream + 8 * sizes.tokens
    tables = sizes.sum_bytes * sizes.tables * sizes.table
    # Of two layers the next group keeps something before this group lets go of as much.
    beside = waiting_inputs(sizes.recipe, plan) if plan.beside and plan.recompute else 0
    return {
        ("near", "memory"): plan.group * near,
        ("waiting", plan.inputs): plan.group * (far + of_head) + beside,
        ("passing", "memory"): (2 if plan.beside else 1) * plan.group * sizes.stream,
        ("sums", plan.sums): sizes.sum_bytes * sizes.parameters - tables,
        ("tables", plan.table_sums): tables,
        ("parameters", plan.params): params * (2 if following or plan.params == "disk" else 1),
        ("moments", "disk"): 2 * 2 * params if following else 0,
    }


def kept_bytes(sizes: Sizes, plan: Plan) -> tuple[int, int]:
    """Bytes that the layers keep of a micro-batch: the last ones, which are near, and all others."""
    if not plan.recompute:
        return 0, 0
    layers = sizes.recipe.model.num_layers
    far, each, more = max(0, layers - plan.near), sizes.stream + sizes.results(plan.keep), sizes.results(plan.more)
    of_far = plan.with_more(far, layers)
    return (layers - far) * each + (plan.with_more(layers, layers) - of_far) * more, far * each + of_far * more


def _ahead(sizes: Sizes, plan: Plan) -> int:
    """Bytes of parameters that are read ahead: those of this stage that were not asked for yet, and of the next one."""
    if plan.beside:
        return 4 * (4 * sizes.layer + sizes.table)
    return 4 * (sizes.layer + max(sizes.layer, sizes.table))


def _stages(sizes: Sizes, plan: Plan, rows: int) -> dict[str, int]:
    """Bytes that the parts of a micro-batch need at a time, besides what is held."""
    recipe, cuda, cuts, x = sizes.recipe, sizes.cuda, plan.cuts, sizes.stream
    tokens, once = cuts.tokens or sizes.tokens, is_once(recipe, plan)
    bring = 4 if cuda or plan.params == "disk" else 0  # a copy of the parameters of a stage
    soon = bring if plan.params == "host" else 0  # and of those of the next layer; of a table as well, if `once`
    copies: dict[Place, int] = {"memory": 0, "host": 2, "disk": 1}  # here, and on their way here
    settled = copies[plan.sums] * sizes.sum_bytes * sizes.layer
    piece = sizes.sum_bytes * rows * recipe.model.hidden_size
    of_tables = (1 if plan.table_sums == "host" else 0) * piece * (1 if once else sizes.tables)
    gradient = 4 * sizes.waiting + (sizes.terms + (0 if cuda else 8)) * sizes.matrix
    both = 2 if plan.beside else 1  # layers whose weights are there
    layer = both * ((bring + soon) * sizes.layer + sizes.rows_of_layer)
    layer += settled + gradient + sizes.work(cuts.key_heads)
    layer += (sizes.cache if plan.recompute else 0) + 3 * x
    entering = plan.group * x if plan.beside else 0  # the group after, which enters the first layer
    layer += entering + (bring * sizes.table if plan.beside else 0)
    kept = waiting_inputs(recipe, plan) // 2 if plan.inputs == "host" else 0  # of a layer, of one micro-batch
    layer += 4 * kept  # two on their way there, two back
    layers = recipe.model.num_layers
    last = min(kept, x + sizes.results(plan.keep_of(layers - 1, layers)))  # of the last one, back beside the head
    if once:
        here = sizes.sum_bytes * sizes.table if plan.table_sums != "memory" else 0
        logits = sizes.logits_once(tokens, rows) + here
        tables = piece + 8 * rows * recipe.model.hidden_size + sizes.pieces_waiting + soon * sizes.table
    else:
        logits = bring * sizes.table + sizes.logits(tokens)
        tables = bring * sizes.table + sizes.columns(rows)
    return {
        "a layer": layer + (soon * sizes.table if once and not plan.beside else 0),
        "the logits": both * soon * sizes.layer + logits + 5 * x + 2 * kept + last,
        "the tables": tables + of_tables + entering + 3 * x + 3 * kept,
        "the update": (0 if cuda else bring) * sizes.table + _update(sizes, rows),
    }


def waiting_sums(recipe: Recipe) -> int:
    """Bytes of a layer's sums, which are on their way to main memory while the next layer is under way."""
    sizes = sizes_of(recipe, cuda=True)
    return sizes.sum_bytes * sizes.layer


def waiting_inputs(recipe: Recipe, plan: Plan) -> int:
    """Bytes of what is kept of a layer, of two micro-batches."""
    sizes = sizes_of(recipe, cuda=True)
    return 2 * (sizes.stream + sizes.results(plan.most_kept))


def _update(sizes: Sizes, rows: int) -> int:
    """Bytes of the update of a piece: sums, gradient, parameter and moments before and after, and temporaries."""
    piece = max(sizes.matrix, rows * sizes.recipe.model.hidden_size)
    return piece * (sizes.sum_bytes + 4 + 12 + 12 + 4)


def _spilling(sizes: Sizes, plan: Plan, rows: int) -> int:
    """Bytes of arrays on their way to or from host and disk, where a card's sums are kept now and then in any case."""
    moves = sizes.cuda or not plan.sums == "memory" == plan.table_sums
    return sizes.sum_bytes * max(sizes.matrix, rows * sizes.recipe.model.hidden_size) if moves else 0
