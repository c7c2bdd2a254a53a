"""How many vGPUs still fit: the accounting rules of the vendors' drivers. Pure.

One rule covers them all, as four limits of which the tightest counts: a total that every device
takes its cost from (ports of mtty, frame buffer of a GPU, the counter of the mdev core), the most
devices of one type, one type only at a time (NVIDIA without heterogeneous mode), and the most
devices of one parent (one for each VF). A pool may be shared by parents (the VFs of one GPU).
"""

from __future__ import annotations

from collections.abc import Hashable

from .hostfile import CapacityConfig, TypeConfig


class Pool:
    def __init__(self, config: CapacityConfig) -> None:
        self.config = config
        self._taken: dict[Hashable, tuple[str, TypeConfig]] = {}

    def available(self, parent: str, kind: TypeConfig) -> int:
        """What `available_instances` reads: how many more of that type, if only of that type."""
        taken = list(self._taken.values())
        limits = []
        if self.config.total is not None:
            left = self.config.total - sum(other.cost for _, other in taken)
            limits.append(left // kind.cost)
        if kind.max_instances is not None:
            limits.append(kind.max_instances - sum(other.id == kind.id for _, other in taken))
        if self.config.per_parent is not None:
            limits.append(self.config.per_parent - sum(where == parent for where, _ in taken))
        if self.config.one_type and any(other.id != kind.id for _, other in taken):
            limits.append(0)
        return max(0, min(limits, default=0))

    def take(self, key: Hashable, parent: str, kind: TypeConfig) -> None:
        """Raises OSError with the driver's errno when it does not fit."""
        if self.available(parent, kind) < 1:
            raise OSError(self.config.errno, "no capacity")
        self._taken[key] = (parent, kind)

    def give_back(self, key: Hashable) -> None:
        self._taken.pop(key, None)

    def clear(self) -> None:
        self._taken.clear()
