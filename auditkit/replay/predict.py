"""How long a micro-batch takes under a plan, by its multiplications, its bytes and the rates of a machine.

A card computes and copies at once, in both directions: each part of a micro-batch takes as long as the longest of the
three. On a processor files come and go before or after the work. docs/performance.md has the terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from auditkit.model.kept_results import ATTENTION, GATE, HEADS, MID, UP
from auditkit.model.plan import Place, Plan
from auditkit.replay.memory import is_once, kept_bytes, on_host
from auditkit.replay.sizes import Sizes


@dataclass(frozen=True)
class Profile:
    """What a machine does in a second; auditkit/measure/machine.py measures it.

    products, head   multiplications of exact products: of the body's bits, of the head's
    attention        multiplications of the scores and the output of a forward pass, counted for all pairs of the span
    backward         times as long as that takes the backward pass of an attention
    elements         elements rounded to fixed point, or read and written by what else is elementwise
    to_host, to_device  bytes between main memory and the card, at the same time; None where the ops compute there
    disk             bytes of files
    lock             bytes of page-locked memory that the system gives
    checksums        bytes of arrays whose checksums are taken, before they leave the card and after they have come back
    group            seconds in which nothing else is under way, between groups of micro-batches
    launch           seconds that the host needs for a launch
    tiles            tiles of a product, 128 by 256 elements, that fill the card; 0 where nothing depends on them
    """

    products: float
    head: float
    attention: float
    backward: float
    elements: float
    to_host: float | None
    to_device: float | None
    disk: float = 0.6e9
    lock: float = 3e9
    checksums: float = 2.8e12
    group: float = 0.0
    launch: float = 0.0
    tiles: int = 0

    @property
    def overlaps(self) -> bool:
        """Whether copies go on beside the work."""
        return self.to_host is not None


# An H200 by docs/benchmarks.md; two processors with their threads, any of them, where only ratios count.
CARD = Profile(210e12, 114e12, 125e12, 3.3, 5e11, 48e9, 48e9, lock=1.2e10, group=0.014, launch=6e-5, tiles=128)
PROCESSOR = Profile(40e9, 40e9, 40e9, 2.5, 0.5e9, None, None)


PART_LAUNCHES = 22  # of a part of an attention, forward and backward and again
STEADY = 0.9  # of its time a direction is busy where work hardly waits for copies (docs/performance.md)


@dataclass(frozen=True)
class Part:
    """Seconds of a part of a micro-batch: computing, and bytes to and from where its arrays lie."""

    name: str
    compute: float
    to_device: float = 0.0
    to_host: float = 0.0
    disk: float = 0.0

    def seconds(self, overlaps: bool) -> float:
        """Until the last is done."""
        if overlaps:
            return self.disk + max(self.compute, self.to_device / STEADY, self.to_host / STEADY)
        return self.disk + self.compute


@dataclass(frozen=True)
class Prediction:
    """The parts of a micro-batch; a group's fixed costs are shared among its micro-batches."""

    parts: tuple[Part, ...]
    overlaps: bool
    once: float = 0.0  # a share of what is done once a process

    @property
    def compute(self) -> float:
        """Seconds of computing alone."""
        return sum(part.compute for part in self.parts)

    @property
    def seconds(self) -> float:
        """Of a micro-batch."""
        return self.once + sum(part.seconds(self.overlaps) for part in self.parts)


def profile_of(cuda: bool) -> Profile:
    """The declared profile of a kind of back end."""
    return CARD if cuda else PROCESSOR


@dataclass(frozen=True)
class _Move:
    """Bytes that come from a place and go there in a part of a micro-batch."""

    place: Place
    come: float
    go: float = 0.0


def predict(sizes: Sizes, plan: Plan, profile: Profile) -> Prediction:
    """A micro-batch under a plan; the plain way if it does not work in pieces."""
    costs, layers, group = _Costs(sizes, profile), sizes.recipe.model.num_layers, plan.group
    forward, backward, head = layers * costs.forward, layers * costs.backward, costs.head
    if not plan.pieces:
        return Prediction((Part("all", forward + backward + head + costs.sums),), profile.overlaps)
    once, table = is_once(sizes.recipe, plan), float(sizes.table)
    body, of_table = _Move(plan.params, 4.0 * layers * sizes.layer / group), _Move(plan.params, 4.0 * table / group)
    sums = sizes.sum_bytes * float(layers * sizes.layer) / group
    table_sums = sizes.sum_bytes * table / group
    of_tables = _Move(plan.table_sums, table_sums, table_sums)
    kept = _inputs(sizes, plan)
    summing = kept[1].come / profile.checksums if plan.inputs == "host" and profile.overlaps else 0.0
    rounding = layers * sizes.layer / profile.elements / group
    chunks, pieces = _cuts(sizes, plan)
    late = [of_tables] * sizes.tables if not once else [of_tables]
    late.append(_Move(plan.inputs, 0.0 if once else float(sizes.stream * (1 if plan.tables_by_batch else pieces))))
    head += costs.few_tiles(plan) + (costs.logits / 16 if once else costs.logits_again(chunks))
    of_parts = layers * costs.attention_parts(plan)
    parts = (
        _part("forward", forward + of_parts / 3 + rounding + summing, profile, [body, of_table, kept[0]]),
        _part("head", head, profile, [of_table, *([of_tables] if once else [])]),
        _part("forward again", costs.all_again(plan) + summing, profile, []),
        _part("backward", backward + of_parts * 2 / 3 + 2 * rounding + costs.sums, profile,
              [body, _Move(plan.sums, sums, sums), kept[1]]),
        _part("tables", costs.tables(1 if once else pieces), profile, [*late, *([] if once else [of_table])]),
        Part("between groups", profile.group / group),
    )  # fmt: skip
    return Prediction(_joined(parts, plan), profile.overlaps, _locked(sizes, plan, profile))


def _inputs(sizes: Sizes, plan: Plan) -> tuple[_Move, _Move]:
    """What the layers keep, in the forward and in the backward pass of a micro-batch."""
    kept = float(kept_bytes(sizes, plan)[1])
    return _Move(plan.inputs, 0.0, kept), _Move(plan.inputs, kept)


def _cuts(sizes: Sizes, plan: Plan) -> tuple[int, int]:
    """Chunks of logits, and pieces of a vocabulary table."""
    chunks = -(-sizes.tokens // plan.cuts.tokens) if plan.cuts.tokens else 1
    return chunks, -(-sizes.recipe.model.vocab_size // plan.cuts.rows) if plan.cuts.rows else 1


def _part(name: str, compute: float, profile: Profile, moves: Sequence[_Move]) -> Part:
    come, go = (sum(getattr(move, way) for move in moves if move.place != "memory") for way in ("come", "go"))
    files = sum(move.come + move.go for move in moves if move.place == "disk")
    to_device = come / profile.to_device if profile.to_device else 0.0
    return Part(name, compute, to_device, go / profile.to_host if profile.to_host else 0.0, files / profile.disk)


def _joined(parts: Sequence[Part], plan: Plan) -> tuple[Part, ...]:
    """Layers are run again beside the copies of the backward pass: the two are one part where they overlap; so is the
    forward pass of the next group, if the plan takes it there.
    """
    forward, head, again, backward, *rest = parts
    if plan.beside:
        return head, _together("forward, backward, and what runs again", (forward, again, backward)), *rest
    return forward, head, _together("backward, and what runs again", (again, backward)), *rest


def _together(name: str, parts: Sequence[Part]) -> Part:
    """One part of several whose copies and work overlap."""
    sums = [sum(getattr(part, what) for part in parts) for what in ("compute", "to_device", "to_host", "disk")]
    return Part(name, *sums)


def _locked(sizes: Sizes, plan: Plan, profile: Profile) -> float:
    """A micro-batch's share of the seconds in which page-locked memory is made."""
    if not profile.overlaps:
        return 0.0
    return on_host(sizes, plan) / profile.lock / sizes.recipe.batch.micro_batches


@dataclass(frozen=True)
class _Costs:
    """Seconds of computing."""

    sizes: Sizes
    profile: Profile

    @cached_property
    def products(self) -> float:
        """Of a layer's products forward."""
        return self.sizes.tokens * float(self.sizes.layer) / self.profile.products

    @cached_property
    def attention(self) -> float:
        """Of a layer's attention forward."""
        return attention_products(self.sizes) / self.profile.attention

    @cached_property
    def elementwise(self) -> float:
        """Of what is elementwise in a layer's forward pass."""
        model = self.sizes.recipe.model
        width = 8 * model.hidden_size + 4 * model.ffn_size
        return self.sizes.tokens * float(width) / self.profile.elements

    @cached_property
    def forward(self) -> float:
        """Of a layer."""
        return self.products + self.attention + self.elementwise

    @cached_property
    def backward(self) -> float:
        """Of a layer."""
        return 2 * self.products + self.profile.backward * self.attention + 2 * self.elementwise

    def all_again(self, plan: Plan) -> float:
        """Of the layers that run again."""
        layers = self.sizes.recipe.model.num_layers if plan.recompute else 0
        more = plan.with_more(layers, layers) if layers else 0
        return (layers - more) * self.again(plan.keep) + more * self.again(plan.most_kept)

    def again(self, keep: Sequence[str]) -> float:
        """Of a layer that runs again, but for what is kept of it, its last product, and the rows that enter that."""
        model = self.sizes.recipe.model
        width, queries = model.hidden_size, model.num_heads * model.head_dim
        keys = model.num_kv_heads * model.head_dim
        products = {
            MID: queries * width, UP: width * model.ffn_size, GATE: width * model.ffn_size,
            HEADS: width * (keys if model.qk_norm else queries + 2 * keys),  # norms of heads need their products
        }  # fmt: skip
        made = float(sum(size for name, size in products.items() if name not in keep))
        made += width * (queries + keys) if model.qk_norm else 0
        scores = 0.0 if ATTENTION in keep else self.attention
        spared = model.ffn_size + (2.5 * (queries + 2 * keys) if HEADS in keep else 0.0)
        elementwise = self.elementwise - self.sizes.tokens * spared / self.profile.elements
        return self.sizes.tokens * made / self.profile.products + scores + elementwise

    @cached_property
    def logits(self) -> float:
        """Of what is elementwise in all logits and their gradient."""
        return 5.3 * self.sizes.tokens * self.sizes.recipe.model.vocab_size / self.profile.elements

    @cached_property
    def head_product(self) -> float:
        """Of one of the head's three products."""
        return self.sizes.tokens * float(self.sizes.table) / self.profile.head

    @cached_property
    def head(self) -> float:
        """Of the head, forward and backward."""
        return 3 * self.head_product + self.logits

    def logits_again(self, chunks: int) -> float:
        """Of columns of the logits that are made again, and of weights that are rounded for each chunk of rows."""
        return self.head_product + self.logits / 3 + 2.0 * chunks * self.sizes.table / self.profile.elements

    def few_tiles(self, plan: Plan) -> float:
        """Of the head's products that fill a part of the card: those of a piece of the table's rows, and those that sum
        over the vocabulary, whose ranges cost little.
        """
        width = self.sizes.recipe.model.hidden_size
        counts = [-(-rows // 128) * -(-width // 256) if rows else 0 for rows in (plan.cuts.rows, plan.cuts.tokens)]
        idle = [max(0.0, self.profile.tiles / count - 1) if count else 0.0 for count in counts]
        return self.head_product * (0.4 * idle[0] + 0.02 * idle[1])

    def attention_parts(self, plan: Plan) -> float:
        """Of a layer's attention in parts, which the host launches one by one: PART_LAUNCHES each."""
        model, heads = self.sizes.recipe.model, plan.cuts.key_heads
        parts = self.sizes.recipe.batch.micro_batch_sequences * -(-model.num_kv_heads // heads) if heads else 1
        return (parts - 1) * PART_LAUNCHES * self.profile.launch

    @cached_property
    def sums(self) -> float:
        """Of gradients that are hashed and added up."""
        return 4.0 * self.sizes.parameters / self.profile.elements

    def tables(self, pieces: int) -> float:
        """Of the inputs of the head that are rounded for each piece, and of the gradient of the embedding."""
        width = self.sizes.recipe.model.hidden_size
        return 2.0 * pieces * self.sizes.tokens * width / self.profile.elements


def attention_products(sizes: Sizes) -> float:
    """Multiplications of a layer's scores and output, of all pairs of the span."""
    model = sizes.recipe.model
    span = min(model.sliding_window or model.context_length, model.context_length)
    return 2.0 * sizes.tokens * model.num_heads * model.head_dim * span
