"""The images of the test hosts: one for each suite of Debian, and none in another's way."""

from __future__ import annotations

from pathlib import Path

from tests.testbed import build
from tests.testbed.recipe import BOOKWORM, SUITES, TRIXIE, Image, Suite, image_key


def image(folder: Path, suite: Suite, name: str) -> Image:
    made = Image(folder / f"{suite.name}-{name}", suite)
    made.directory.mkdir()
    return made


def test_each_suite_has_an_image_of_its_own() -> None:
    keys = {name: image_key(suite) for name, suite in SUITES.items()}
    assert len(set(keys.values())) == len(SUITES)
    for name, key in keys.items():
        assert key.startswith(f"{name}-")


def test_a_build_removes_older_images_of_its_own_suite_and_no_others(tmp_path: Path) -> None:
    image(tmp_path, TRIXIE, "older")
    built, other = image(tmp_path, TRIXIE, "now"), image(tmp_path, BOOKWORM, "now")
    build._remove_others(built)
    left = set(tmp_path.iterdir())
    assert left == {built.directory, other.directory}
