"""Several GPUs with NCCL against one: the same bits, whatever NCCL does; and what it costs. On a machine with two GPUs:

    python -m tests.trainer.parallel.nccl_matrix OUT                                     all, the results at the end
    python -m tests.trainer.parallel.nccl_matrix OUT --parts equal,killed,network        some of it
    python -m tests.trainer.parallel.nccl_matrix OUT --device cpu --backend gloo --size bundled     over Gloo

equal    100 steps of a tiny model, exact and folded, are those of one GPU; all are verified on a CPU
killed   a rank is killed in the midst of a published run, and one GPU goes on with it: the undisturbed run
network  algorithms, protocols, channels, transports and buckets: integers and records as a CPU has them
large    100 steps of a large model, exact and folded, are those of one GPU; a random step of each is verified on a CPU
cost     scaling, overlap, exact sums beside float32's, publication; as ratios

OUT/results.txt repeats what stdout ends with. Exit code 1 if anything differed or failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import auditkit
from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.verdict import Verdict
from bench import publishing, ranks
from tests.trainer import tiny
from tests.trainer.live import grown
from tests.trainer.parallel import soak
from tests.trainer.parallel.conftest import Started, Zygote
from tests.trainer.parallel.gloo_ranks import texts
from tests.trainer.parallel.states import CUT, on_one_device, with_batch
from trainer import cli, recipe_toml

STEPS = 100
FOLDS: tuple[tuple[int, ...], ...] = ((), (2,))
SECONDS = 240.0  # after which ranks that have not ended fail their part
TRY = 60.0  # the same for a setting of the network
SILENCE = 8.0  # after which a killed rank is missed
ROUNDS = 3  # runs that lose a rank
AT_ONCE = 2  # settings of the network that are tried side by side
TOKENS = 64  # of a sequence of the large model: few, so that steps are quick

# Settings of NCCL, and whether NCCL may refuse them: not every algorithm has every collective, on every machine.
NETWORKS: list[tuple[dict[str, str], bool]] = [
    ({}, False),
    *(({"NCCL_ALGO": "Ring", "NCCL_PROTO": protocol}, False) for protocol in ("LL", "LL128", "Simple")),
    *(({"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": protocol}, False) for protocol in ("LL", "LL128", "Simple")),
    *(({"NCCL_MIN_NCHANNELS": count, "NCCL_MAX_NCHANNELS": count}, False) for count in ("1", "2", "16")),
    ({"NCCL_P2P_DISABLE": "1"}, True),
    *(({"NCCL_ALGO": name}, True) for name in ("Tree", "CollnetDirect", "PAT")),
]
JOBS = [(CUT, 20, bucket) for bucket in (1, 40_000, 1 << 22)] + [(with_batch(CUT, 4, 1, (2,)), 20, 1)]


@dataclass(frozen=True)
class Asked:
    """What to compute on and with, and what is large."""

    device: str
    backend: str
    ranks: int
    size: str
    sequences: int
    elements: tuple[int, ...]
    seed: int

    @property
    def together(self) -> tuple[str, ...]:
        """Options of a trainer that is several ranks."""
        return ("--device", self.device, "--backend", self.backend, "--threads", "1")

    def alone(self, number: int = 0) -> tuple[str, ...]:
        """Options of a trainer that is one process, on one of the devices."""
        name = f"cuda:{number % self.ranks}" if self.device == "cuda" else self.device
        return ("--device", name, "--threads", "1")


def equal(bench: soak.Bench, asked: Asked) -> Iterator[str]:
    """Part `equal`."""
    chance = random.Random(asked.seed)
    for fold in FOLDS:
        name = f"equal-{len(fold)}"
        truth = soak.undisturbed(bench, name, soak.recipe(4, fold), STEPS)
        soak.case(bench, truth, asked.ranks, f"{name}-ranks", chance)
        run, cache = str(truth.parent / "reference"), bench.folder / f"{name}-cache"
        report = auditkit.verify(run, steps=f"0:{STEPS}", device="cpu", threads=2, offline=True, cache_dir=cache)
        assert report.verdict is Verdict.MATCH and len(report.steps) == STEPS, report.to_json()
        yield f"tiny model, fold {list(fold)}: {asked.ranks} ranks as one process, {STEPS} steps verified on the CPU"


def killed(bench: soak.Bench, asked: Asked) -> Iterator[str]:
    """Part `killed`."""
    truth = soak.undisturbed(bench, "killed-truth", soak.recipe(7), STEPS)
    for number in range(ROUNDS):
        chance = random.Random(f"{asked.seed} {number}")
        work, beside = soak.prepared(bench, f"killed-{number}", soak.recipe(7)), bench.folder / f"beside-{number}"
        beside.mkdir()
        words = soak.begin(work, STEPS, *grown.options(beside))
        started, lost = bench.ranks(asked.ranks, words), chance.randrange(asked.ranks)
        moment = soak.moment_of_a_step(started, work, chance, STEPS * 3 // 4)
        assert set(started.codes()) == {None}, said(started)
        started.signal(lost, signal.SIGKILL)
        assert set(started.wait(but=lost)) == {Verdict.UNAVAILABLE.code}, said(started)
        started.wait()
        soak.assert_part_of(work, truth)
        assert bench.one(soak.begin(work, STEPS, *grown.options(beside))) == 0
        tiny.assert_same_run(work, truth)
        grown.assert_same(beside / "out", truth.parent / "reference")
        grown.assert_verifies(beside / "out", beside, seed=number)
        yield f"rank {lost} of {asked.ranks} killed at {moment}, to its end in one process: the undisturbed run"


def network(bench: soak.Bench, asked: Asked) -> Iterator[str]:
    """Part `network`."""
    longest = {recipe: steps for recipe, steps, _ in JOBS}
    truths = {recipe: texts(on_one_device(recipe, steps)) for recipe, steps in longest.items()}
    wanted = [truths[recipe] for recipe, _, _ in JOBS]
    networks, failed = NETWORKS if asked.backend == "nccl" else NETWORKS[:1], []
    for first in range(0, len(networks), AT_ONCE):
        chosen = list(enumerate(networks))[first : first + AT_ONCE]
        begun = [(bench.folder / f"network-{number}", setting, may) for number, (setting, may) in chosen]
        started = [on_network(bench, asked, folder, setting) for folder, setting, _ in begun]
        for ranks_, (folder, setting, may_refuse) in zip(started, begun, strict=True):
            name = " ".join(f"{key}={value}" for key, value in setting.items()) or f"as {asked.backend} chooses"
            try:
                yield f"{name}: {outcome(ranks_, folder, wanted, may_refuse)}"
            except AssertionError as error:  # the others have more to say
                failed.append(f"{name}: {error}")
    assert not failed, "\n".join(failed)


def on_network(bench: soak.Bench, asked: Asked, folder: Path, setting: dict[str, str]) -> Started:
    """Ranks that add and train under a setting."""
    folder.mkdir()
    jobs = [{"recipe": recipe.encode().decode("ascii"), "steps": steps, "bucket": size} for recipe, steps, size in JOBS]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="ascii")
    before = f"import os; os.environ.update({setting!r})"
    call = "tests.trainer.parallel.gloo_ranks:add_and_train"
    words = str(folder), asked.device, asked.backend
    return bench.zygote.start(asked.ranks, *words, call=call, before=dict.fromkeys(range(asked.ranks), before))


def outcome(started: Started, folder: Path, wanted: list[Any], may_refuse: bool) -> str:
    """What became of such ranks; AssertionError where anything differs."""
    codes, size = started.wait(TRY), len(started.processes)
    told = [line for text in said(started) for line in text.splitlines() if "NCCL cannot be used" in line]
    if may_refuse and told and set(codes) == {Verdict.UNSUPPORTED.code}:
        return f"refused by NCCL ({told[0][:160]})"
    assert codes == [0] * size, (codes, said(started))
    for number, want in enumerate(wanted):
        for rank in range(size):
            found = json.loads((folder / f"job-{number}-rank-{rank}.json").read_text(encoding="ascii"))
            assert found == want, f"rank {rank} has other records in training {number}"
    return f"sums as NumPy's, {len(wanted)} trainings as on a CPU"


def large(bench: soak.Bench, asked: Asked) -> Iterator[str]:
    """Part `large`: all trainings side by side, for most of the time of each goes by on processors."""
    step = random.Random(asked.seed).randrange(1, STEPS)
    options = ["--steps", str(STEPS), "--state-every", str(STEPS), "--keep-states", str(step)]
    works = {
        (fold, count): _large_work(bench, asked, f"large-{len(fold)}-{count}", BatchConfig(4, 1), fold)
        for fold in FOLDS
        for count in (1, asked.ranks)
    }
    begun: dict[Any, Started | subprocess.Popen[str]] = {}
    for number, ((fold, count), work) in enumerate(works.items()):
        words = ["run", str(work / "recipe.toml"), str(work), *options]
        if count > 1:
            begun[fold, count] = bench.zygote.start(count, *words, *asked.together)
        else:
            begun[fold, count] = tiny.start_child([*words, *asked.alone(number // 2)])
    for one in begun.values():
        _end(one)
    for fold in FOLDS:
        tiny.assert_same_run(works[fold, asked.ranks], works[fold, 1])
        seconds = _verified(bench, works[fold, asked.ranks], step)
        about = f"{asked.ranks} ranks as one process, step {step} verified on the CPU ({seconds:.0f} s)"
        yield f"{asked.size} model, fold {list(fold)}, {STEPS} steps: {about}"
    for work in works.values():
        shutil.rmtree(work)


def _large_work(bench: soak.Bench, asked: Asked, name: str, batch: BatchConfig, fold: tuple[int, ...] = ()) -> Path:
    """A work folder of random ids for the large model, with its recipe."""
    model = ranks.SIZES[asked.size]().model
    sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size")
    values = {key: str(getattr(model, key)) for key in sizes}
    values["context_length"] = str(TOKENS if batch.sequences == 4 else model.context_length)
    values |= {"sequences": str(batch.sequences), "micro_batch_sequences": str(batch.micro_batch_sequences)}
    values |= {"peak_lr": "3e-4", "min_lr": "3e-5"}
    text = soak.recipe(4, fold)
    for key, value in values.items():
        text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
    beside = bench.folder / f"{name}.toml"
    beside.write_text(text, encoding="utf-8", newline="\n")
    recipe: Recipe = recipe_toml.load(beside)
    publishing.prepared(bench.folder / name, recipe)
    return Path(shutil.move(beside, bench.folder / name / "recipe.toml")).parent


def _verified(bench: soak.Bench, work: Path, step: int) -> float:
    """Publish a run and verify one step of it on the CPU; seconds of the latter."""
    out, cache = bench.folder / f"{work.name}-out", bench.folder / f"{work.name}-cache"
    assert cli.main(["publish", str(work), str(out), "--name", work.name]) == 0
    began = time.monotonic()
    report = auditkit.verify(str(out), step=step, device="cpu", offline=True, cache_dir=cache)
    assert report.verdict is Verdict.MATCH and len(report.steps) == 1, report.to_json()
    shutil.rmtree(out)
    return time.monotonic() - began


def cost(bench: soak.Bench, asked: Asked) -> Iterator[str]:
    """Part `cost`."""
    shape = {"size": asked.size, "sequences": asked.sequences, "elements": asked.elements}
    machine = {"device": asked.device, "backend": asked.backend}
    for row in ranks.measure(ranks.Asked(most=asked.ranks, turns=1, steps=8, **shape, **machine)):  # type: ignore[arg-type]
        yield f"{row.name}: {row.value:.4g} {row.unit} ({row.note})"
    yield from _publication(bench, asked)


def _publication(bench: soak.Bench, asked: Asked) -> Iterator[str]:
    """The same steps, a state every fifth, with and without a signed publication of all."""
    batch = BatchConfig(asked.sequences, max(1, asked.sequences // ranks.MICRO_BATCHES))
    took: dict[str, tuple[float, float]] = {}
    for name in ("kept for oneself", "published"):
        work = _large_work(bench, asked, f"cost-{name.split()[0]}", batch)
        words = ["run", str(work / "recipe.toml"), str(work), "--steps", "20", "--state-every", "5"]
        beside = bench.folder / f"beside-{work.name}"
        beside.mkdir()
        words += grown.options(beside) if name == "published" else []
        began = time.monotonic()
        _end(bench.zygote.start(asked.ranks, *words, *asked.together))
        rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        took[name] = time.monotonic() - began, statistics.median(row["seconds"] for row in rows[2:])
        shutil.rmtree(work)
        shutil.rmtree(beside)
    (all_alone, step_alone), (all_published, step_published) = took.values()
    yield (
        f"publication on {asked.ranks} ranks, a state every 5 steps: a step {step_published:.4g} s,"
        f" {step_published / step_alone:.3f} of one that is not published; 20 steps with begin and end"
        f" {all_published:.3g} s, {all_published / all_alone:.3f} of the same"
    )


def _end(one: Started | subprocess.Popen[str]) -> None:
    """Wait for a training that must succeed."""
    if isinstance(one, Started):
        codes = one.wait(SECONDS)
        assert not any(codes), (codes, said(one))
        return
    _, told = one.communicate(timeout=SECONDS)
    assert one.returncode == 0, told


def said(started: Started) -> list[str]:
    """What every rank has told."""
    return [started.said(rank) for rank in range(len(started.processes))]


PARTS: dict[str, Callable[[soak.Bench, Asked], Iterator[str]]] = {
    "equal": equal,
    "killed": killed,
    "network": network,
    "large": large,
    "cost": cost,
}


def run(names: list[str], asked: Asked, tell: Callable[[str], None]) -> list[str]:
    """The lines of all parts; one that fails does not end the others."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, zygote(Path(folder)) as made:
        bench = soak.Bench(made, Path(folder), tell, asked.alone(), asked.together, SILENCE)
        for name in names:
            began = time.monotonic()
            try:
                for line in PARTS[name](bench, asked):
                    lines.append(f"ok      {name}: {line}")
                    tell(lines[-1])
            except Exception as error:  # noqa: BLE001 - whatever it is, the other parts have more to say
                traceback.print_exc()
                lines.append(f"FAILED  {name}: {type(error).__name__}: {str(error)[:2000]}")
                tell(lines[-1])
            lines.append(f"        {name}: {time.monotonic() - began:.0f} s")
    return lines


@contextlib.contextmanager
def zygote(folder: Path) -> Iterator[Zygote]:
    """What forks ranks; it ends them, too."""
    (folder / "ranks").mkdir()
    made = Zygote(folder / "ranks")
    try:
        yield made
    finally:
        made.close()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.parallel.nccl_matrix", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ",".join(PARTS))
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--size", choices=ranks.SIZES, default="large", help="of the large model")
    parser.add_argument("--sequences", type=int, default=64, help="a step of part `cost`, of the model's own length")
    parser.add_argument("--elements", default="1000000,16000000,98000000", help="of gradients that are added alone")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of what is drawn")
    chosen = vars(parser.parse_args())
    out, names = chosen.pop("out"), chosen.pop("parts").split(",")
    elements = tuple(int(part) for part in chosen.pop("elements").split(","))
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # never: multicast may disturb others who share the machine's cards

    def tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    tell(f"seed {chosen['seed']}")
    lines = run(names, Asked(elements=elements, **chosen), tell)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tell("\nresults\n" + "\n".join(lines))
    return 1 if any(line.startswith("FAILED") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
