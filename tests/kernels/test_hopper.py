"""cuda/hopper.cuh on the emulator: what sm_90a defines gives the defined bits, what it does not is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.emulator import EmulatedDevice, EmulationError
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_emulator import SOURCES
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
SEEDS = pytest.mark.parametrize("seed", [0, 1, 2, 3])
MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # bytes of a row of a swizzle -> its number in a descriptor
SECOND = 65536  # where operand b lies
Bytes = npt.NDArray[np.int8]


def device(seed: int = 0, **options: Any) -> EmulatedDevice:
    return EmulatedDevice(sources=SOURCES, architecture="90a", seed=seed, **options)


def descriptor(address: int, span: int, *, leading: int = 0, stride: int = 0) -> np.uint64:
    """As the PTX ISA has it, "Matrix descriptor format"."""
    bits = (address >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | MODES[span] << 62
    return np.uint64(bits)


def laid_out(rows: Bytes, span: int, at: int = 0) -> Bytes:
    """Rows of 32 bytes as an operand of a swizzle: CUTLASS's Swizzle<B, 4, 3> of the address, eight rows an atom."""
    memory = np.full(SECOND, 99, np.int8)
    for row, values in enumerate(rows):
        for piece in range(2):
            if span == 0:
                address = row // 8 * 256 + piece * 128 + row % 8 * 16
            else:
                address = row // 8 * 8 * span + row % 8 * span + at + piece * 16
                address ^= (address >> 3) & (span - 16)  # bits 4.. from bits 7..
            memory[address : address + 16] = values[piece * 16 : piece * 16 + 16]
    return memory


def product(
    columns: int, span: int, *, fault: int = 0, seed: int = 0, at: int = 0, wrong: int = 0, unsigned: bool = False
) -> None:
    """One product against NumPy's; `at` bytes of K further on in the atoms, `wrong` changes operand b's descriptor.
    unsigned: the bytes of a are.
    """
    rng = np.random.default_rng(columns + span)
    a, b = (rng.integers(-128, 128, (size, 32)).astype(np.int8) for size in (64, columns))
    stride = 8 * span or 256
    operands = [descriptor(place + at, span, leading=128, stride=stride) for place in (0, SECOND)]
    operands[1] = np.uint64(int(operands[1]) ^ wrong)
    emulated = device(seed)
    d = emulated.zeros((64, columns), np.int32)
    places = [emulated.upload(laid_out(rows, span, at)) for rows in (a, b)]
    arguments = [*places, d, *operands, np.int64(SECOND), np.int32(fault)]
    kernel = "product_unsigned" if unsigned else f"product_{columns}"
    emulated.launch("hopper", kernel, 1, 128, arguments, shared=132 * 1024)
    first = a.view(np.uint8) if unsigned else a
    assert_same_bits(emulated.download(d), first.astype(np.int32) @ b.astype(np.int32).T + np.int32(1))


@SEEDS
@pytest.mark.parametrize("columns", [64, 128, 192, 256])
@pytest.mark.parametrize("span", MODES)
def test_a_product_is_numpys(columns: int, span: int, seed: int) -> None:
    product(columns, span, seed=seed)


@SEEDS
def test_a_product_of_unsigned_bytes_is_numpys(seed: int) -> None:
    product(128, 64, seed=seed, unsigned=True)


@pytest.mark.parametrize(("span", "at"), [(64, 32), (128, 32), (128, 64), (128, 96)])
def test_a_product_begins_further_on_in_a_row(span: int, at: int) -> None:
    product(128, span, at=at)


def test_an_ordinary_store_is_read_after_a_fence() -> None:
    product(128, 64, fault=10, seed=2)


@SEEDS
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, "without a product_fence"),
        (3, "touches the sums of a product before it was waited for"),
        (4, "race: a product of .* where a bulk copy is under way|race: asynchronously reads .* wrote"),
        (5, "race: a bulk copy to shared memory at 65536, which a product of warp . still reads"),
        (6, "warps . and . of a warpgroup multiply different operands"),
        (7, "returned with .* a product that was never waited for"),
        (8, "race: a product of shared memory at .*, where a bulk copy is under way"),
        (9, "reads at offset 0 of shared memory what thread 5 stored without a fence_async"),
    ],
)
def test_a_fault_around_a_product_is_found(fault: int, message: str, seed: int) -> None:
    with pytest.raises(EmulationError, match=message):
        product(128, 64, fault=fault, seed=seed)


def test_sums_are_not_there_before_the_wait() -> None:
    with pytest.raises(AssertionError, match="differ, .* 7ead7ead"):
        product(128, 64, fault=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (1 << 62, "words differ"),  # the swizzle of 32 bytes
        (3 << 62, "begins at 65536 .* repeats every 1024 bytes"),  # of 128 bytes
        (0x60 << 32, "words differ"),  # another stride
        (4, "begins at 65600 .* repeats every 512 bytes"),
        (0x2000, "beyond shared memory"),
        (1 << 14, "bits of the descriptor .* must be 0"),
        (1 << 50, "bits of the descriptor .* must be 0"),
    ],
)
def test_a_wrong_descriptor_is_found(wrong: int, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        product(128, 64, wrong=wrong)


def ring(fault: int, seed: int) -> None:
    emulated = device(seed)
    x = np.arange(7 * 16, dtype=np.uint32).reshape(7, 16) ** 3
    out = emulated.zeros((16,), np.uint32)
    emulated.launch("hopper", "ring", 1, 64, [emulated.upload(x), out, np.int64(7), np.int32(fault)], shared=1024)
    assert_same_bits(emulated.download(out), np.add.reduce(x, axis=0, dtype=np.uint32))


@SEEDS
def test_a_ring_of_copies_hands_each_on(seed: int) -> None:
    ring(0, seed)


@SEEDS
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, "more arrivals at the mbarrier at 128 than its count of 1"),
        (2, "divergence: .* waits for parity 0 at the mbarrier at 144 "),
        (3, "race"),
        (4, "divergence: .* waits for parity 0 at the mbarrier"),
        (5, "divergence: .* -?16 bytes missing"),
        (6, "initialised without a mbarrier_init_fence"),
    ],
)
def test_a_fault_in_a_ring_is_found(fault: int, message: str, seed: int) -> None:
    with pytest.raises(EmulationError, match=message):
        ring(fault, seed)


def exchange(fault: int, seed: int) -> None:
    emulated = device(seed)
    x = np.arange(4 * 16, dtype=np.uint32).reshape(4, 16) * np.uint32(77)
    out = emulated.zeros((4, 32), np.uint32)
    emulated.launch("hopper", "exchange", 4, 64, [emulated.upload(x), out, np.int32(fault)], shared=1024)
    assert_same_bits(emulated.download(out), np.repeat(x.reshape(2, 32), 2, axis=0))


@SEEDS
def test_blocks_of_a_cluster_copy_to_each_other(seed: int) -> None:
    exchange(0, seed)


@SEEDS
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, "no mbarrier was initialised|race: uses the mbarrier"),
        (2, "block 0 of the cluster (has ended|ends without knowing)|ends while a bulk copy is under way"),
        (3, "race"),
        (4, "more arrivals at the mbarrier at 256 than its count of 3"),
    ],
)
def test_a_fault_in_a_cluster_is_found(fault: int, message: str, seed: int) -> None:
    with pytest.raises(EmulationError, match=message):
        exchange(fault, seed)


def staged(fault: int, seed: int) -> None:
    emulated = device(seed)
    x = np.arange(3 * 16, dtype=np.uint32).reshape(3, 16) * np.uint32(5)
    out = emulated.zeros((3, 16), np.uint32)
    emulated.launch("hopper", "staged", 1, 64, [emulated.upload(x), out, np.int64(3), np.int32(fault)], shared=1024)
    assert_same_bits(emulated.download(out), x + np.uint32(1))


@SEEDS
def test_rows_are_stored_by_the_copy_engine(seed: int) -> None:
    staged(0, seed)


@SEEDS
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, "stored without a fence_async"),
        (2, "race"),
        (3, "returned with a bulk store"),
        (4, "race|without a fence_async"),
    ],
)
def test_a_fault_of_a_staged_store_is_found(fault: int, message: str, seed: int) -> None:
    with pytest.raises(EmulationError, match=message):
        staged(fault, seed)


def halves(fault: int, seed: int) -> None:
    emulated = device(seed)
    out = emulated.zeros((128,), np.uint32)
    emulated.launch("hopper", "halves", 1, 128, [out, np.int32(fault)], shared=1024)
    assert_same_bits(emulated.download(out), (np.arange(128, dtype=np.uint32) ^ np.uint32(1)) * np.uint32(3))


@SEEDS
def test_halves_of_a_block_meet(seed: int) -> None:
    halves(0, seed)


@SEEDS
@pytest.mark.parametrize(("fault", "message"), [(1, "barrier 1 for|divergence: .* waits in block_meet"), (2, "race")])
def test_a_fault_around_a_barrier_of_some_is_found(fault: int, message: str, seed: int) -> None:
    with pytest.raises(EmulationError, match=message):
        halves(fault, seed)


def test_a_grid_is_whole_clusters() -> None:
    with pytest.raises(EmulationError, match="in clusters of 2"):
        emulated = device()
        arguments = [emulated.zeros((4, 16), np.uint32), emulated.zeros((4, 32), np.uint32), np.int32(0)]
        emulated.launch("hopper", "exchange", 3, 64, arguments, shared=1024)


@pytest.mark.parametrize(("threads", "up"), [(256, 0), (384, 0), (512, 1)])
def test_registers_are_given_back_or_asked_for(threads: int, up: int) -> None:
    device().launch("hopper", "registers", 1, threads, [np.int32(up)])


@pytest.mark.parametrize(
    ("threads", "up", "message"), [(512, 0, "registers_down to more"), (384, 1, "registers_up to fewer")]
)
def test_registers_that_change_in_the_wrong_direction(threads: int, up: int, message: str) -> None:
    """An illegal instruction on a card."""
    with pytest.raises(EmulationError, match=message):
        device().launch("hopper", "registers", 1, threads, [np.int32(up)])
