"""What peers' code suggests, and nobody was found to have reported: not cited as reports.

That the hook works after a restart of libvirtd is in tests/libvirt/test_reports.py.
"""

from __future__ import annotations

import pytest

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from tests.product import Product
from tests.reports.calls import DONE, end, refusal
from tests.simulated.arrivals import V4, image, l40s

TYPE = f"*{V4}/nvidia/current_vgpu_type"


@pytest.mark.parametrize("operation", ["prepare", "migrate", "restore", "stopped", "release"])
@pytest.mark.parametrize("xml", [b"", b"\n"], ids=["empty", "blank"])
def test_empty_xml_on_the_hook_s_input(product: Product, operation: str, xml: bytes) -> None:
    assert product.hook("a", operation, xml) == DONE
    assert not product.state.exists()


def test_an_upper_case_uuid_is_the_same_device(product: Product) -> None:
    """The kernel compares them as numbers, and sysfs names them in lower case."""
    device = device_of(uuid_of("a"))
    xml = domain_xml("a", {"0": "mtty-1"}, hostdevs=[hostdev(device.upper())])
    assert product.hook("a", "prepare", xml) == DONE
    assert product.rows("device") == [(device,)]
    assert product.sim.devices() == [device]
    end(product, "a", xml, "shutdown")
    assert product.sim.devices() == []


@l40s
def test_eperm_on_current_vgpu_type_refuses_the_start_and_another_vf_is_named(
    product: Product,
) -> None:
    product.sim.fault("write", TYPE, "EPERM", data="[1-9]*")
    told = refusal(product, "a", image("a", V4))
    assert "Operation not permitted (EPERM)" in told
    assert "another VF is free" in told
    assert product.sim.current_types() == {}
    assert product.rows() == []


@l40s
def test_eperm_on_the_reset_is_no_proof_that_the_vf_is_free(product: Product) -> None:
    assert product.hook("a", "prepare", image("a", V4)) == DONE
    product.configure(deadline=4)
    product.sim.fault("write", TYPE, "EPERM", data="0")
    end(product, "a", image("a", V4), "shutdown")
    assert product.rows("device, state") == [(V4, "retained")]
    assert product.sim.current_types() == {V4: 1148}


@l40s
def test_a_vf_that_was_not_reset_is_not_taken_for_free(product: Product) -> None:
    """The driver has said that it did."""
    assert product.hook("a", "prepare", image("a", V4)) == DONE
    product.configure(deadline=4)
    product.sim.fault("write", TYPE, "ignore", data="0")
    end(product, "a", image("a", V4), "shutdown")
    assert product.rows("device, state") == [(V4, "retained")]
    told = refusal(product, "b", image("b", V4))
    assert f"{V4} could not be released by domain 'a'" in told
    product.sim.heal()
    end(product, "a", image("a", V4), "shutdown")
    assert product.sim.current_types() == {}
    assert product.hook("b", "prepare", image("b", V4)) == DONE


@pytest.mark.parametrize("name", ["a/b", "../../etc/passwd", "/"])
def test_a_slash_in_a_domain_s_name_is_no_path(product: Product, name: str) -> None:
    xml = domain_xml(name, {"0": "mtty-1"})
    before = sorted(path.name for path in product.state.parent.iterdir())
    assert product.hook(name, "prepare", xml) == DONE
    assert product.rows("domain_name") == [(name,)]
    end(product, name, xml, "shutdown")
    assert product.sim.devices() == []
    made = {path.name for path in product.state.parent.iterdir()} - set(before)
    assert made == {"state", "runtime"}
