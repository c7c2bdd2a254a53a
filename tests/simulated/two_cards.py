"""Two cards that hold two big vGPUs each, on both frameworks: hosts for starts that compete.

The domains of `TwoL40S` name VFs of the cards in turn, so that none is refused for its own card.
"""

from __future__ import annotations

from tests.simhost import SimHost
from tests.simulated.kinds import Kind, MdevKind, VfKind


class TwoT4(MdevKind):
    host = "nvidia-two-t4"
    profile, type_id = "GRID T4-8Q", "nvidia-233"
    room = 4


class TwoL40S(VfKind):
    host = "l40s-two"
    profile, type_id = "NVIDIA L40S-24Q", "nvidia-1155"
    room = 4

    def __init__(self, sim: SimHost) -> None:
        super().__init__(sim)
        self._undealt.sort(key=lambda vf: (vf.split(".")[1], vf), reverse=True)


TWO_CARDS: tuple[type[Kind], ...] = (TwoT4, TwoL40S)
