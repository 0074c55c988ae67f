"""A shelf of device arrays in page-locked main memory: they go and come while the device works."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from auditkit.kernels.checksum import checksums
from auditkit.kernels.device import Array, Device

Host = npt.NDArray[Any]


class HostShelf:
    """Lists of device arrays by key; as auditkit.model.shelf.Shelf.

    What comes back with other bits is a MachineFault when the next result is read from the device (Device.download).
    """

    def __init__(self, device: Device, most: int) -> None:
        """most: bytes of device memory that arrays on their way to main memory may hold."""
        self._device, self._most = device, most
        self._held: dict[str, list[Host]] = {}
        self._sums: dict[str, Array] = {}  # checksums of the arrays before they left, (n, 8) uint32 on the device
        self._coming: dict[str, Callable[[], list[Array]]] = {}
        self._spare: dict[tuple[tuple[int, ...], str], list[Host]] = {}

    def put(self, key: str, arrays: Sequence[Array]) -> None:
        """Keep arrays, which must not change any more, in place of those that the key had."""
        self.put_all({key: arrays})

    def put_all(self, lists: Mapping[str, Sequence[Array]]) -> None:
        """`put` of each key; one launch takes the checksums of all."""
        for key in lists:
            self.drop(key)
        rooms = {key: [self._room_for(array) for array in arrays] for key, arrays in lists.items()}
        self._sums.update(self._sums_of(lists))
        pairs = [pair for key, arrays in lists.items() for pair in zip(arrays, rooms[key], strict=True)]
        self._device.transfers.send_all(pairs, self._most, id(self))
        self._held.update(rooms)

    def get(self, key: str) -> list[Array] | None:
        """Copies of the arrays of a key; None if there are none."""
        return self.get_all([key])[0]

    def get_all(self, keys: Sequence[str]) -> list[list[Array] | None]:
        """`get` of each key; one launch takes the checksums of all."""
        there = [key for key in keys if key in self._held]
        for key in there:
            self.expect(key)
        found = {key: self._coming.pop(key)() for key in there}
        for key, sums in self._sums_of(found).items():
            self._device.returned.add(key, self._sums[key], sums)
        return [found.get(key) for key in keys]

    def _sums_of(self, lists: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
        """The checksums of the arrays of each key, (n, 8) uint32; nothing for a key without any."""
        arrays = [array for each in lists.values() for array in each]
        if not arrays:
            return {}
        sums, at, found = checksums(self._device, arrays), 0, {}
        for key, each in lists.items():
            if each:
                found[key] = sums[at : at + len(each)]
            at += len(each)
        return found

    def expect(self, key: str) -> None:
        """Begin to bring the arrays of a key, if it is there."""
        if key in self._held and key not in self._coming:
            self._coming[key] = self._device.transfers.bring_all(self._held[key])

    def drop(self, key: str) -> None:
        """Forget a key, if it is there."""
        if key in self._coming:
            self._coming.pop(key)()  # or its memory would be used again before the copy has written it
        self._sums.pop(key, None)
        for values in self._held.pop(key, []):
            self._spare.setdefault((values.shape, values.dtype.str), []).append(values)

    def _room_for(self, array: Array) -> Host:
        spare = self._spare.get((array.shape, array.dtype.str))
        return spare.pop() if spare else self._device.transfers.host_array(array.shape, array.dtype)
