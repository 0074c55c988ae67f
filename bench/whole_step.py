"""A step of a large model on a CUDA card: its parts, where their time goes, torch beside it, its bits; or all of it.

    python -m bench.whole_step [--model 1.6b] [--memory 16GiB] [--quick] [PART ...]

Parts: rates, check, parts, profile, torch; by default all of these. With --whole the step is really taken, as a
verification takes it (auditkit.replay.outcome.replay under its memory plan), and its digests are written to a file or
compared with those of an earlier run. Whatever fails is told, and the other parts go on; exit code 1 at the end.

Times are of the device's own events. "computed from" marks what was put together from measured parts.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from auditkit.formats.leaves import micro_root
from auditkit.measure.energy import meter_of
from auditkit.measure.floor import floor_of, work_of
from auditkit.measure.models import MODELS, recipe_of
from auditkit.measure.profile import Line
from auditkit.measure.rates import Rates, measure_rates
from auditkit.measure.subject import Subject, subject_of, tokens_of
from auditkit.measure.times import StepTimes, measure_parts, peak, profile
from auditkit.measure.torch_times import Asked, TorchTimes, measure_any
from auditkit.model.params import parameter_count
from auditkit.model.plan import Plan
from auditkit.model.state import State
from auditkit.replay import arguments
from auditkit.replay.backend import CudaBackend, choose
from auditkit.replay.layout import Layout
from auditkit.replay.memory import plain_bytes
from auditkit.replay.outcome import Computed, replay
from auditkit.store.progress import SystemClock
from bench import plans, step_bits

PARTS = ("rates", "check", "parts", "profile", "torch")
TORCH = {True: ("bfloat16:layer", "float32:layer"), False: ("bfloat16:whole", "autocast:whole", "float32:layer")}
TELL_SECONDS = 15.0


@dataclass
class Bench:
    """What was asked for, and what has been found so far."""

    asked: argparse.Namespace
    subject: Subject
    found: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    state: State | None = None
    rates: Rates | None = None
    times: StepTimes | None = None

    @property
    def micro_batches(self) -> int:
        """Of the whole step."""
        return self.subject.recipe.batch.micro_batches

    def held(self) -> State:
        """The state, made once."""
        if self.state is None:
            began = time.perf_counter()
            self.state = self.subject.state()
            say(f"state made in {time.perf_counter() - began:.1f} s")
        return self.state

    def part(self, name: str, call: Callable[[Bench], None]) -> None:
        """Run a part; a failure is told and the rest goes on."""
        say(f"--- {name}")
        began = time.perf_counter()
        try:
            call(self)
        except Exception:  # noqa: BLE001 - one part must not lose the others
            self.failed.append(name)
            say(f"{name} FAILED:\n{traceback.format_exc()}")
        say(f"    {name} took {time.perf_counter() - began:.1f} s")
        self.found["failed"] = self.failed
        if self.asked.json:  # at once: what comes next may be killed
            self.asked.json.write_text(json.dumps(self.found, indent=1, default=str), encoding="utf-8", newline="\n")


def main(arguments_given: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    asked = _parser().parse_args(arguments_given)
    backend = choose(asked.device, asked.threads)
    recipe = recipe_of(asked.model, asked.micro_batch)
    with tempfile.TemporaryDirectory() as folder:
        memory = arguments.memory(asked.memory)
        profile = plans.profile_here(recipe, backend, say) if memory else None
        subject = subject_of(recipe, backend, memory, Path(folder), profile)
        if asked.plain:
            plain = Layout(Plan(), plain_bytes(recipe, 1, subject.cuda))
            subject = replace(subject, layout=plain)
        bench = Bench(asked, subject)
        introduce(bench)
        if profile is not None:
            bench.found["predicted"] = plans.say_prediction(subject, profile, say)
        if asked.whole:
            bench.part("whole step", whole)
        for name in () if asked.whole and not asked.parts else asked.parts or PARTS:
            bench.part(name, globals()[f"part_{name}"])
        bench.part("summary", summary)
    return 1 if bench.failed else 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m bench.whole_step", description=__doc__, formatter_class=raw)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--model", choices=list(MODELS), default="1.6b")
    parser.add_argument("--micro-batch", type=int, help="sequences; part of the recipe")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--memory", help="e.g. 16GiB: the plan that fits, under a limit of the pool")
    parser.add_argument("--plain", action="store_true", help="all in memory, whatever the planner thinks of it")
    parser.add_argument(
        "--rounds", type=int, help="groups of micro-batches that are timed; default: a few seconds of them"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and kinds: under four minutes on an H200")
    parser.add_argument("--whole", action="store_true", help="take the whole step")
    parser.add_argument("--expect", type=Path, help="digests that an earlier --whole wrote")
    parser.add_argument("--write", type=Path, help="where --whole writes its digests")
    parser.add_argument("--torch", action="append", metavar="KIND:COMPILED", help="e.g. bfloat16:whole; repeatable")
    parser.add_argument("--json", type=Path, help="a file for all that was found")
    return parser


def introduce(bench: Bench) -> None:
    """What is measured."""
    subject, recipe = bench.subject, bench.subject.recipe
    batch, model = recipe.batch, recipe.model
    device = subject.inner.ops.device.describe() if isinstance(subject.inner, CudaBackend) else "cpu"
    say(f"device      {device}")
    say(f"model       {bench.asked.model}: {parameter_count(model):,} parameters, {model.num_layers} layers of"
        f" {model.hidden_size}, vocabulary {model.vocab_size:,}, context {model.context_length}")  # fmt: skip
    say(f"step        {batch.sequences} sequences in {batch.micro_batches} micro-batches of"
        f" {batch.micro_batch_sequences}, {batch.sequences * model.context_length:,} tokens")  # fmt: skip
    say(f"plan        {subject.layout.plan.describe()}")
    say(f"            {subject.layout.plan}")
    need = subject.layout.need
    say(f"            estimated {need.memory / 2**30:.2f} GiB on the device, {need.host / 2**30:.2f} of main memory,"
        f" {need.disk / 2**30:.2f} of disk")  # fmt: skip
    bench.found |= {"device": device, "model": bench.asked.model, "batch": asdict(batch), "plan": str(subject.layout)}


def part_rates(bench: Bench) -> None:
    """What copy, exact dot and digest reach here."""
    bench.rates = rates = measure_rates(bench.subject.inner, bench.subject.cuda)
    say(f"copy        {rates.copy / 1e9:,.0f} GB/s (read and written)")
    say(f"products    {rates.operations / 1e12:,.4g} TOP/s of int8 by fx14 at {rates.product} cubed,"
        f" {rates.operations / 3e12:,.4g} TFLOP/s useful")  # fmt: skip
    say(f"digest      {rates.digest / 1e9:,.0f} GB/s")
    bench.found["rates"] = asdict(rates)


def part_check(bench: Bench) -> None:
    """Bits, against the reference and between kernels."""
    subject = bench.subject
    threads = max(1, min(16, os.cpu_count() or 1))
    compared = [step_bits.against_reference(subject.recipe, subject.inner, threads)]
    if step_bits.on_card(subject.inner) and not subject.layout.plan.pieces:
        compared += step_bits.between_variants(subject, bench.held())
    for one in compared:
        say(f"{'same bits ' if one.same else 'DIFFERENT '}  {one.what}: {one.said}")
    bench.found["check"] = [asdict(one) for one in compared]
    if not all(one.same for one in compared):
        raise AssertionError("bits differ")


def part_parts(bench: Bench) -> None:
    """Times of the parts of a step."""
    bench.times = times = measure_parts(bench.subject, bench.held(), bench.asked.rounds)
    say(f"micro-batch {1e3 * times.micro_batch:,.2f} ms (of {times.counted})")
    plans.say_parts(times, say)
    say(f"prepare     {1e3 * times.prepare:,.2f} ms, weights to fixed point, once a step")
    say(f"update      {1e3 * times.update:,.2f} ms")
    share = times.digest / times.step(bench.micro_batches)
    say(f"digest      {1e3 * times.digest:,.2f} ms of the new state, {share:.3%} of the step")
    whole = times.step(bench.micro_batches)
    say(f"step        {whole:,.2f} s, computed from these: {bench.micro_batches} micro-batches")
    if times.peak_bytes:
        say(f"memory      {times.peak_bytes / 2**30:.2f} GiB held by the pool at most")
    bench.found["times"] = asdict(times) | {"step": times.step(bench.micro_batches), "in_use": in_use(bench)}


def in_use(bench: Bench) -> int | None:
    """Bytes of the card that are in use, the driver's and other programs' included."""
    backend = bench.subject.inner
    if not isinstance(backend, CudaBackend):
        return None
    free, total = backend.ops.device.cupy.cuda.runtime.memGetInfo()
    say(f"            {(total - free) / 2**30:.2f} GiB of the card in use, with context and kernels")
    return int(total - free)


def part_profile(bench: Bench) -> None:
    """Where the time of a micro-batch goes."""
    found = profile(bench.subject, bench.held())
    table(f"ops of {found.together} micro-batch(es)", found.ops, found.wall)
    table("ops after the last micro-batch, digest of the state included", found.after, None)
    bench.found["profile"] = asdict(found)
    if not found.kernels:
        return
    table("kernels of the micro-batch", found.kernels, found.wall)
    table("kernels after it", found.after_kernels, None)
    kernels = sum(line.seconds for line in found.kernels)
    say(f"wall        {1e3 * found.wall:.2f} ms while profiled; kernels {1e3 * kernels:.2f} ms, between them"
        f" {1e3 * (found.wall - kernels):.2f} ms")  # fmt: skip
    if bench.times:
        plain = bench.times.micro_batch * found.together
        say(f"            {1e3 * plain:.2f} ms unprofiled, {1e3 * (plain - kernels):.2f} ms more than the kernels")


def table(title: str, lines: list[Line], whole: float | None) -> None:
    """Lines with their share of a whole, or of their own sum."""
    total = sum(line.seconds for line in lines)
    say(f"{title}: {1e3 * total:.2f} ms in {sum(line.count for line in lines)} calls")
    for line in lines[:45]:
        share = line.seconds / (whole or total or 1.0)
        say(f"  {1e3 * line.seconds:10.3f} ms {share:6.1%} {line.count:5} x {line.name}")
    rest = lines[45:]
    if rest:
        say(f"  {1e3 * sum(line.seconds for line in rest):10.3f} ms, {len(rest)} others")


def part_torch(bench: Bench) -> None:
    """Torch, each kind in a process of its own, with the card given free before."""
    bench.state = None
    gc.collect()
    backend = bench.subject.inner
    if isinstance(backend, CudaBackend):
        backend.ops.device.release()
    batch, device = bench.subject.recipe.batch, "cpu"
    if isinstance(backend, CudaBackend):
        device = f"cuda:{backend.ops.device.index}"
    bench.found["torch"] = []
    for kind in bench.asked.torch or TORCH[bench.asked.quick]:
        name, _, compiled = kind.partition(":")
        asked = Asked(bench.asked.model, batch.micro_batch_sequences, name, compiled or "layer", device,
                      os.cpu_count() or 1, repeats=3 if bench.asked.quick else 5)  # fmt: skip
        try:
            found, why = measure_any(asked, 150.0 if bench.asked.quick else 300.0)
        except Exception as error:  # noqa: BLE001 - one kind must not lose the others
            say(f"torch {kind} FAILED: {error}")
            bench.failed.append(f"torch {kind}")
            continue
        if why:
            say(f"torch {kind} {why}")
        say(f"torch {found.version} {found.said}: micro-batch {1e3 * found.micro_batch:,.2f} ms, update"
            f" {1e3 * found.update:,.2f} ms, warm-up {found.warm_up:.0f} s, peak"
            f" {(found.peak_bytes or 0) / 2**30:.1f} GiB")  # fmt: skip
        bench.found["torch"].append(asdict(found))


def whole(bench: Bench) -> None:
    """The whole step, as a verification takes it; its digests written or compared."""
    subject, recipe, state = bench.subject, bench.subject.recipe, bench.held()
    backend, meter, tokens = subject.planned(clock=SystemClock()), meter_of(subject.inner), tokens_of(recipe)
    warm = subject.part(1)
    subject.planned().step(state, tokens_of(warm), warm)
    began, energy, told = time.perf_counter(), meter(), [time.perf_counter()]

    def tell(done: int) -> None:
        now = time.perf_counter()
        if now - told[0] >= TELL_SECONDS:
            told[0] = now
            say(f"  {done} of {recipe.batch.micro_batches} micro-batches after {now - began:.1f} s")

    outcome = replay(backend, state, tokens, recipe, tell)
    seconds, used = time.perf_counter() - began, meter()
    if not isinstance(outcome, Computed):
        raise AssertionError(f"the step has no result: {outcome}")
    joules = None if used is None or energy is None else used - energy
    obtained = {"state": outcome.root, "gradient": outcome.result.gradient, "micro": micro_root(outcome.result.leaves),
                "loss": float(outcome.result.loss), "norm": float(outcome.result.norm)}  # fmt: skip
    say(f"whole step  {seconds:.2f} s, {recipe.batch.micro_batches} micro-batches, all digests included")
    say(f"            state {outcome.root}, gradient {obtained['gradient']}, loss {obtained['loss']:.6g}")
    if joules is not None:
        say(f"energy      {joules:,.0f} J, {joules / seconds:,.0f} W")
    held = peak(subject.inner)
    if held:
        say(f"memory      {held / 2**30:.2f} GiB held by the pool")
    bench.found["whole"] = {"seconds": seconds, "joules": joules, "obtained": obtained, "peak_bytes": held}
    key = {"model": bench.asked.model, "micro_batch": recipe.batch.micro_batch_sequences, **obtained}
    if bench.asked.write:
        bench.asked.write.write_text(json.dumps(key) + "\n", encoding="utf-8", newline="\n")
    if bench.asked.expect:
        same = json.loads(bench.asked.expect.read_text(encoding="utf-8")) == key
        say(f"compare     {'MATCH' if same else 'MISMATCH'} with {bench.asked.expect}")
        if not same:
            raise AssertionError("other digests than before")


def summary(bench: Bench) -> None:
    """Ratios, last."""
    recipe, times, count = bench.subject.recipe, bench.times, bench.micro_batches
    if bench.rates and times:
        floor, work = floor_of(recipe, bench.subject.cuda, bench.rates), work_of(recipe, bench.subject.cuda)
        say(f"floor       micro-batch {1e3 * floor.micro_batch:.1f} ms")
        say(f"            {work.operations / 1e12:,.0f} Top in {1e3 * floor.arithmetic:.1f} ms")
        say(f"            {work.bytes / 1e9:,.1f} GB in {1e3 * floor.traffic:.1f} ms")
        ratio = times.step(count) / floor.step(count)
        say(f"            step {floor.step(count):.1f} s, computed; ours is {ratio:.2f} times that")
    ours = times.step(count) if times else bench.found.get("whole", {}).get("seconds")
    for found in bench.found.get("torch", []):
        theirs = TorchTimes(version=found["version"], **{k: v for k, v in found.items() if k != "version"}).step(count)
        if ours:
            say(f"ratio       ours {ours:.2f} s, torch {found['said']} {theirs:.2f} s (both computed from parts):"
                f" ours takes {ours / theirs:.3f} of torch's time, torch {theirs / ours:.3f} of ours")  # fmt: skip
    if bench.failed:
        say(f"FAILED      {', '.join(bench.failed)}")


def say(line: str) -> None:
    """A line, at once."""
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
