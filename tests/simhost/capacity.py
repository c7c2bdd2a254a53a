"""How many vGPUs still fit: the accounting rules of the vendors' drivers. Pure.

One rule covers them all, as limits of which the tightest counts: a total that every device takes
its cost from (ports of mtty, frame buffer of a GPU, the counter of the mdev core), the most devices
of one type, one type or one size only at a time (NVIDIA without heterogeneous mode), the most
devices of one parent (one for each VF), and the GPU instances that offer the type (NVIDIA with
MIG). A pool may be shared by parents (the VFs of one GPU).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from .hostmodel import CapacityConfig, InstanceConfig, TypeConfig


class Taken(NamedTuple):
    parent: str
    kind: TypeConfig
    instance: int | None
    """The GPU instance (MIG)."""
    place: int
    """The lowest number that no other device of the pool had."""


class Pool:
    def __init__(self, config: CapacityConfig) -> None:
        self.config = config
        self._taken: dict[Hashable, Taken] = {}

    @property
    def busy(self) -> bool:
        return bool(self._taken)

    def has_instance(self, number: int) -> bool:
        """Whether that GPU instance carries a device."""
        return any(taken.instance == number for taken in self._taken.values())

    def available(self, parent: str, kind: TypeConfig, taking: bool = False) -> int:
        """What `available_instances` reads: how many more of that type, if only of that type.

        taking: what there really is.
        """
        taken = list(self._taken.values())
        limits = []
        if self.config.total is not None and not (self.config.overstated and not taking):
            left = self.config.total - sum(other.kind.cost for other in taken)
            limits.append(left // kind.cost)
        if kind.max_instances is not None:
            limits.append(kind.max_instances - sum(other.kind.id == kind.id for other in taken))
        if self.config.per_parent is not None:
            limits.append(self.config.per_parent - sum(other.parent == parent for other in taken))
        if self.config.one_type and any(other.kind.id != kind.id for other in taken):
            limits.append(0)
        if self.config.one_size and any(other.kind.cost != kind.cost for other in taken):
            limits.append(0)
        if self.config.instances is not None:
            limits.append(len(self._instances(kind)))
        return max(0, min(limits, default=0))

    def _instances(self, kind: TypeConfig) -> list[InstanceConfig]:
        """Free GPU instances of that type."""
        busy = {other.instance for other in self._taken.values()}
        offered = self.config.instances or ()
        return [one for one in offered if kind.id in one.types and one.id not in busy]

    def take(self, key: Hashable, parent: str, kind: TypeConfig) -> Taken:
        """Raises OSError with the driver's errno when it does not fit."""
        if self.available(parent, kind, taking=True) < 1:
            raise OSError(self.config.errno, "no capacity")
        instances = self._instances(kind)
        places = {other.place for other in self._taken.values()}
        place = next(n for n in range(len(places) + 1) if n not in places)
        taken = Taken(parent, kind, instances[0].id if instances else None, place)
        self._taken[key] = taken
        return taken

    def give_back(self, key: Hashable) -> None:
        self._taken.pop(key, None)

    def clear(self) -> None:
        self._taken.clear()
