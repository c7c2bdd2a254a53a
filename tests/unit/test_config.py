"""The configuration file, under whichever pydantic is installed (both are tried by make)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vgpu_hook import config
from vgpu_hook.config import Settings
from vgpu_hook.model import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]


def load(path: Path, text: str | bytes) -> Settings:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return config.load({"VGPU_HOOK_CONFIG": str(path)})


def test_what_is_not_set_is_the_default(tmp_path: Path) -> None:
    assert load(tmp_path / "c", "[policy]\n") == Settings()
    assert load(tmp_path / "c", "# nothing\n") == Settings()


def test_the_shipped_file_says_what_the_defaults_are(tmp_path: Path) -> None:
    shipped = (REPOSITORY / "etc" / "vgpu-hook.toml").read_text()
    assert load(tmp_path / "c", shipped) == Settings()
    lines = [
        line[1:] if line[:1] == "#" and line[1:2] != " " else line for line in shipped.splitlines()
    ]
    uncommented = load(tmp_path / "c", "\n".join(lines))
    assert uncommented == Settings()._replace(unused_gpus=frozenset({"0000:41:00.0"}))


def test_every_setting_is_read(tmp_path: Path) -> None:
    settings = load(
        tmp_path / "c",
        "[paths]\nsysfs='/s'\nproc='/p'\ndev='/d'\njournal='/j'\nstate='/st'\nruntime='/r'\n"
        "hooks='/h'\n"
        "[policy]\nplacement='pack'\n[deadlines]\nhook=5\n[gpu.'0000:AA:00.0']\nuse=false\n"
        "[daemon]\nlibvirt='qemu:///x'\nreconcile=7\n"
        "[boot]\ncommands=[['a', 'b']]\ntimeout=9\n"
        "[metrics]\ntextfile='/m.prom'\nlisten='[::1]:9843'\ninterval=3\n",
    )
    assert settings == Settings(
        roots=settings.roots,
        state="/st",
        runtime="/r",
        placement="pack",
        hook_deadline=5.0,
        unused_gpus=frozenset({"0000:aa:00.0"}),
        uri="qemu:///x",
        reconcile_interval=7.0,
        boot_commands=(("a", "b"),),
        boot_timeout=9.0,
        hooks="/h",
        metrics_textfile="/m.prom",
        metrics_listen=("::1", 9843),
        metrics_interval=3.0,
    )
    assert tuple(settings.roots) == ("/s", "/p", "/d", "/j")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("]]", "line 1"),
        ("[policy]\nplacement='tight'", "policy.placement"),
        ("[deadlines]\nhook=0", "deadlines.hook"),
        ("[deadlines]\nhook=nan", "deadlines.hook"),
        ("[colour]\nred=1", "colour"),
        ("[policy]\nplacment='pack'", "policy.placment"),
        ("[paths]\nstate='relative'", "paths.state"),
        ("[metrics]\ntextfile='relative.prom'", "metrics.textfile"),
        ("[metrics]\ntextfile='/metrics.txt'", "metrics.textfile"),
        ("[metrics]\nlisten='localhost:9843'", "metrics.listen"),
        ("[metrics]\nlisten='127.0.0.1'", "metrics.listen"),
        ("[metrics]\nlisten='127.0.0.1:0'", "metrics.listen"),
        ("[boot]\ncommands=[['true'], []]", "boot.commands"),
        ("[boot]\ncommands=[['']]", "boot.commands"),
        ("'' = 1", "not permitted"),
        ('[paths]\nstate="/a\\u0000b"', "NUL"),
        ('[metrics]\ntextfile="/a\\u0000.prom"', "NUL"),
        ("a = " + "[" * 9999, "nested too deeply"),
        ("gpu = 3", "gpu"),
        (b"\xff", "not UTF-8"),
        (b"#" * (1 << 21), "larger than"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "c", text)
    assert str(tmp_path / "c") in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        config.load({"VGPU_HOOK_CONFIG": str(tmp_path / "none")})


def test_a_file_that_sets_nothing_costs_no_import_of_pydantic(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("# nothing\n")
    script = (
        "import sys; from vgpu_hook import config;"
        f"config.load({{'VGPU_HOOK_CONFIG': {str(path)!r}}});"
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
