"""What the product must do on each simulated host: one entry for each file in tests/simhost/hosts.

Written down by hand, from what the host file's comment says of the hardware.
"""

from __future__ import annotations

from typing import NamedTuple


class Start(NamedTuple):
    """A start of a domain of its own that asks for one vGPU."""

    profile: str
    vf: str = ""
    """The VF that its hostdev names; "" for a mediated device."""
    says: str = ""
    """What the refusal says; "": it starts."""


class Expected(NamedTuple):
    cards: dict[str, str]
    """The state of each GPU in `vgpu-hook profiles`, before anything is started."""
    starts: tuple[Start, ...]
    """One after the other. All are stopped at the end, and nothing is left."""
    keeps: str = ""
    """What is said of a device that was not released, if it can't be at once."""
    for_good: bool = False
    """It can't be later either."""
    deadline: float = 60
    """Seconds for a hook call."""


NO_OFFER = "this host has no device that offers vGPUs"
NO_VF = "which is no VF that can be a vGPU here"
FULL = "no free instance of profile"
V0, V1, V2 = "0000:41:00.4", "0000:41:00.5", "0000:41:00.6"
A40 = {"0000:41:00.0": "ok"}
L40S = {"0000:41:00.0": "ok"}
T4 = {"0000:3b:00.0": "ok"}
MTTY = {"mtty": "ok"}
Q2 = Start("NVIDIA L40S-2Q", V0)
SERIAL = Start("mtty-1")
GVTG = Start("i915-GVTg_V5_4")


def _off(card: str, state: str) -> Expected:
    """A card without anything to offer."""
    return Expected({card: state}, (Start("NVIDIA L40S-2Q", says=NO_OFFER),))


EXPECTED: dict[str, Expected] = {
    # --- mediated devices: sample drivers ---
    "mtty": Expected(MTTY, (SERIAL, Start("Dual port serial"), Start("mtty-3", says="mtty-3"))),
    "mtty-cdev": Expected(MTTY, (SERIAL,)),
    "many": Expected(MTTY, (SERIAL,)),
    "mdpy": Expected({"mdpy": "ok"}, (Start("mdpy-hd"),)),
    "mbochs": Expected({"mbochs": "ok"}, (Start("mbochs-large"), Start("mbochs-small"))),
    "two-mtty-like": Expected({"mtty": "ok", "mtty2": "ok"}, (SERIAL, SERIAL)),
    "old-kernel": Expected(MTTY, (SERIAL,)),
    # Without a group nobody can tell whether it is in use: it is kept (R6).
    "no-vfio-mdev": Expected(MTTY, (SERIAL,), keeps="it has no IOMMU group", for_good=True),
    # --- mediated devices: what drivers do in their own time ---
    "slow": Expected(MTTY, (SERIAL,)),
    "create-fails-late": Expected(MTTY, (Start("mtty-1", says="ENOMEM"),)),
    "leaves-later": Expected(MTTY, (SERIAL,), keeps="is still there after `remove`"),
    "asks-for-it-back": Expected(MTTY, (SERIAL,)),
    "driver-goes": Expected({"mtty": "ok", "mtty2": "ok"}, (SERIAL, SERIAL)),
    # --- mediated devices: NVIDIA, Intel, s390 ---
    "nvidia-t4": Expected(T4, (Start("GRID T4-2Q"), Start("GRID T4-1Q", says="another type"))),
    "t4-type-in-use": Expected(T4, (Start("nvidia-233"), Start("231", says="another type"))),
    "nvidia-two-t4": Expected(
        {"0000:3b:00.0": "ok", "0000:af:00.0": "ok"}, (Start("231"), Start("230"))
    ),
    "domain-0001": Expected({"0001:3b:00.0": "ok"}, (Start("GRID T4-2Q"),)),
    "late-parent": Expected(
        {"0000:3b:00.0": "driver-missing"}, (Start("231", says=NO_OFFER), Start("231"))
    ),
    "late-vfs": Expected(
        {"0000:41:00.0": "unsupported"}, (Start("558", says=NO_OFFER), Start("558"))
    ),
    "cleans-up-itself": Expected(T4, (Start("GRID T4-2Q"),)),
    "nvidia-ampere-vf": Expected(A40, (Start("558"), Start("558"), Start("557", says=FULL))),
    "nvidia-ampere-mixed": Expected(A40, (Start("558"), Start("557"))),
    "ampere-overstated": Expected(A40, (Start("565"), Start("565"), Start("565", says="ENOSPC"))),
    "gvtg": Expected({"0000:00:02.0": "ok"}, (GVTG, GVTG)),
    "no-name": Expected({"0000:00:02.0": "ok"}, (GVTG,)),
    "i915-no-gvt": Expected({}, (Start("i915-GVTg_V5_4", says=NO_OFFER),)),
    "vfio-ap": Expected({"matrix": "ok"}, (Start("vfio_ap-passthrough"),)),
    "vfio-ap-full": Expected(
        {"matrix": "ok"},
        (Start("vfio_ap-passthrough"), Start("vfio_ap-passthrough", says=FULL)),
    ),
    "mixed-mdev-vendors": Expected(
        {"0000:3b:00.0": "ok", **A40, "0000:00:02.0": "ok", "mdpy": "ok", "mtty": "ok"},
        (
            Start("GRID T4-2Q"),
            Start("NVIDIA A40-2Q"),
            GVTG,
            SERIAL,
            Start("mdpy-hd"),
            Start("mdpy-hd", says=FULL),
        ),
    ),
    # --- vendor-specific VFIO ---
    "l40s": Expected(L40S, (Q2, Start("1145", V1))),
    "l40s-cdev": Expected(L40S, (Q2,)),
    "l40s-two": Expected({**L40S, "0000:c1:00.0": "ok"}, (Q2, Start("1148", "0000:c1:00.4"))),
    "l40s-same-type": Expected(L40S, (Q2, Start("1158", V1, FULL), Start("1148", V1))),
    "l40s-equal-size": Expected(L40S, (Q2, Start("1158", V1), Start("1145", V2, FULL))),
    "l40s-full": Expected(
        {"0000:41:00.0": "full"},
        (Start("1148", V0, "carries nvidia-1155, which is not on record"),),
    ),
    "l40s-late": Expected(
        {"0000:41:00.0": "vfs-off"}, (Start("1148", V0, FULL), Start("1148", V1))
    ),
    "mig-h200": Expected({"0000:41:00.0": "mig"}, (Start("1414", V0),)),
    "mig-no-instances": Expected(
        {"0000:41:00.0": "no-instances"}, (Start("1414", V0, "is not offered by any GPU"),)
    ),
    "no-header": Expected(L40S, (Q2,)),
    "pf-with-nvidia": Expected(L40S, (Q2, Start("1148", "0000:41:00.0", NO_VF))),
    "vf-domain-0001": Expected({"0001:41:00.0": "ok"}, (Start("1148", "0001:41:00.4"),)),
    "nvidia-525-answers": Expected(L40S, (Q2,)),
    "vf-permissive": Expected(L40S, (Q2, Start("1145", V0, "is in use by domain 'vm0'"))),
    "vf-unreadable": Expected(L40S, (Q2, Start("1148", V2, "EIO"))),
    "vf-wedged": Expected(L40S, (Start("1148", V0, "EIO"), Start("1148", V1))),
    "vf-once-per-boot": Expected(L40S, (Q2,)),
    "two-cards-same-ids": Expected(
        {**L40S, "0000:c1:00.0": "ok"},
        (
            Start("NVIDIA L40S-2Q", "0000:c1:00.4", "0000:41:00.0 has"),
            Start("NVIDIA L4-2Q", "0000:c1:00.4"),
            Q2,
        ),
    ),
    "card-hangs": Expected(
        {V0: "unreadable", V1: "unreadable", "0000:c1:00.0": "ok"},
        (Start("1148", V0, "has not returned within"), Start("1148", "0000:c1:00.4")),
        deadline=10,
    ),
    "vfs-vanish": Expected(L40S, (Start("1148", V0, NO_VF), Start("1148", V1, NO_VF))),
    "mixed-mdev-vfio": Expected({"mtty": "ok", **L40S}, (SERIAL, Q2)),
    "mixed-vendors": Expected(
        {
            **L40S,
            **MTTY,
            "0000:00:02.0": "ok",
            "0000:03:00.0": "unsupported",
            "0000:85:00.0": "unsupported",
        },
        (Q2, GVTG, SERIAL, Start("1148", "0000:85:02.0", NO_VF)),
    ),
    "not-for-vgpus": Expected(
        {**L40S, "0000:61:00.0": "driver-missing", "0000:81:00.0": "passthrough"},
        (Q2, Start("1148", "0000:81:00.0", NO_VF)),
    ),
    # --- nothing to be had ---
    "no-gpu": Expected({}, (Start("nvidia-63", says=NO_OFFER),)),
    "vfs-off": _off("0000:41:00.0", "vfs-off"),
    "vfs-off-busy": _off("0000:41:00.0", "vfs-off"),
    "nvidia-driver-missing": _off("0000:41:00.0", "driver-missing"),
    "passthrough": _off("0000:81:00.0", "passthrough"),
    "t4-unsupported": _off("0000:3b:00.0", "unsupported"),
    "xe": _off("0000:03:00.0", "unsupported"),
    "xe-sriov-admin": _off("0000:03:00.0", "unsupported"),
    "gim": Expected(
        {"0000:05:00.0": "unsupported", "0000:85:00.0": "unsupported"},
        (Start("1148", "0000:05:02.0", NO_VF),),
    ),
}
