"""The .deb: lintian, and what dpkg does with it on a copy of this machine's file system.

The copy is an overlay in a mount namespace, which ends with it. `systemctl` only notes what it is
asked for there, as if this machine had systemd and a libvirtd that runs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.source import REPOSITORY
from vgpu_hook.installation import MARK, text_of

HOOK = "etc/libvirt/hooks/qemu.d/50-vgpu-hook"
HOOKS = "/etc/libvirt/hooks"
SHIPPED = "usr/share/vgpu-hook"
STATE = "var/lib/vgpu-hook"
OURS = ("vgpu-hookd.service", "vgpu-hookd.socket", "vgpu-hook-boot.service")
DOCS = {"NEWS.md", "README.md", "SECURITY.md", "migrating.md", "packaging.md"}
DOCS |= {"doctor.md", "metrics.md", "record.md", "vgpu-hook.rules.yml", "vgpu-hook.json"}

SYSTEMCTL = """#!/bin/sh
echo "$*" >>/asked
case "$*" in
*is-enabled*) echo enabled ;;
*--root=*) exec systemctl.real "$@" ;;
esac
"""
MOUNT = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/root"
mount -t tmpfs none "$1/root/run"
mount --rbind /dev "$1/root/dev"
mount --rbind /proc "$1/root/proc"
mkdir -p "$1/root/run/systemd/system"
cp "$2" "$1/root/package.deb"
rm -rf "$1/root/usr/sbin/policy-rc.d" "$1/root/var/lib/vgpu-hook" "$1/root/etc/vgpu-hook"
rm -rf "$1/root/etc/libvirt/hooks"
mv "$1/root/usr/bin/systemctl" "$1/root/usr/bin/systemctl.real"
echo ready
exec sleep infinity
"""


class Machine:
    """A copy of this one, in the mount namespace of a process."""

    def __init__(self, folder: Path, deb: Path) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(folder), str(deb)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "ready\n"
        self._root = str(folder / "root")
        self.put("usr/bin/systemctl", SYSTEMCTL, 0o755)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.kill()
        self._keeper.wait()

    def shell(self, script: str, *arguments: str, text: str | None = None) -> str:
        """Run a script in it; return what it prints. It must succeed."""
        status, said = self.tried(script, *arguments, text=text)
        assert status == 0, said
        return said

    def tried(self, script: str, *arguments: str, text: str | None = None) -> tuple[int, str]:
        """Run a script in it; return its exit status, and what it prints."""
        return self._run(
            "chroot", self._root, "/bin/sh", "-ec", script, "sh", *arguments, text=text
        )

    def bring(self, source: Path, target: str) -> None:
        """Copy a folder of this machine into it; what is a link here is none there."""
        status, said = self._run("cp", "-rL", str(source), f"{self._root}/{target}")
        assert status == 0, said

    def _run(self, *program: str, text: str | None = None) -> tuple[int, str]:
        done = subprocess.run(
            ["nsenter", "--mount", "--target", str(self._keeper.pid), *program],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        )
        return done.returncode, done.stdout

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        script = 'mkdir -p "$(dirname "/$1")"; rm -f "/$1"; cat >"/$1"; chmod "$2" "/$1"'
        self.shell(script, path, f"{mode:o}", text=text)

    def dpkg(self, *arguments: str) -> str:
        """Run dpkg; systemctl's list begins anew."""
        self.shell("rm -f /asked")
        return self.shell('dpkg "$@" </dev/null', *arguments)

    def install(self) -> str:
        return self.dpkg("--install", "/package.deb")

    def make_newer(self) -> None:
        """Make /newer.deb, of the next version, with a hook that says so."""
        self.shell(
            "dpkg-deb --raw-extract /package.deb /newer;"
            " sed -i 's/^Version: .*/Version: 99/' /newer/DEBIAN/control;"
            f" echo '# newer' >>/newer/{SHIPPED}/qemu;"
            " dpkg-deb --root-owner-group -Znone --build /newer /newer.deb"
        )

    def run_by_libvirt(self) -> list[str]:
        """The hooks that libvirt would run for each VM."""
        return self.shell(f"find {HOOKS} -type f -perm /111 -printf '%P\\n'").split()

    def asked(self) -> list[str]:
        """What systemctl was asked for, but for whether something is so."""
        lines = self.shell("cat /asked 2>/dev/null || true").splitlines()
        return [line for line in lines if " is-" not in f" {line}"]

    def mode(self, path: str) -> str:
        """The type and mode of a file; empty if there is none."""
        return self.shell('stat -c %A "/$1" 2>/dev/null || true', path).strip()


def touched(asked: list[str]) -> set[str]:
    """Units that were started, stopped or otherwise changed; all but those that are reloaded."""
    changing = ("start", "stop", "restart", "try-restart", "kill", "isolate")
    lines = [line.split() for line in asked if set(line.split()) & set(changing)]
    return {word for line in lines for word in line if "." in word}


@pytest.fixture(scope="module")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    build = [str(REPOSITORY / "packaging/deb/build.sh"), str(folder)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture
def machine(deb: Path, tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.fail("the copy of this machine needs root")
    with Machine(tmp_path, deb) as running:
        yield running


def test_lintian_has_nothing_to_say(deb: Path) -> None:
    lintian = ["lintian", "--allow-root", "--pedantic", "-I", str(deb)]
    done = subprocess.run(lintian, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_in_it(deb: Path) -> None:
    done = subprocess.run(["dpkg", "-c", str(deb)], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=5) for line in done.stdout.splitlines()]
    files = {row[5].removeprefix("./"): row[0] for row in rows if not row[5].endswith("/")}
    assert files[f"{SHIPPED}/qemu"] == "-rwxr-xr-x"
    assert files[f"{SHIPPED}/place-hook"] == "-rwxr-xr-x"
    assert f"{SHIPPED}/vgpu-hook.cil" in files
    # There dpkg would have a second one beside it, which libvirt runs too.
    assert not [name for name in files if name.startswith("etc/libvirt/")]
    assert files["etc/vgpu-hook/vgpu-hook.toml"] == "-rw-r--r--"
    assert files["usr/bin/vgpu-hook"] == "-rwxr-xr-x"
    expected = {
        *(f"lib/systemd/system/{unit}" for unit in OURS),
        "usr/lib/tmpfiles.d/vgpu-hook.conf",
        "usr/share/bash-completion/completions/vgpu-hook",
        "usr/share/man/man5/vgpu-hook.toml.5.gz",
        "usr/share/man/man8/vgpu-hook.8.gz",
        "usr/share/man/man8/vgpu-hookd.8.gz",
    }
    assert expected <= {name.removeprefix("usr/lib/systemd") for name in files} | set(files)
    docs = {Path(name).name.removesuffix(".gz") for name in files if "/doc/" in name}
    assert docs >= DOCS
    assert not [name for name in files if "/vgpu_hook/files/" in name or "/tests/" in name]


def test_it_is_installed_and_only_ours_is_started(machine: Machine) -> None:
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    asked = machine.asked()
    assert touched(asked) == {"vgpu-hookd.service", "vgpu-hookd.socket"}
    assert [line for line in asked if "reload " in line and "daemon-reload" not in line] == [
        "reload libvirtd.service",
        "reload virtqemud.service",
    ]
    enabled = "find /etc/systemd/system -name 'vgpu-hook*' -printf '%f\\n'"
    assert set(machine.shell(enabled).split()) == set(OURS)
    assert machine.shell("vgpu-hook --version") == "vgpu-hook 0.1.0\n"
    nothing = "echo '<domain/>' | /etc/libvirt/hooks/qemu.d/50-vgpu-hook a prepare begin -"
    assert machine.shell(nothing) == ""


def test_an_upgrade_keeps_the_hook_the_settings_and_the_store(machine: Machine) -> None:
    machine.install()
    machine.put(f"{STATE}/store.db", "a store")
    machine.put("etc/vgpu-hook/vgpu-hook.toml", "[policy]\nplacement = 'pack'\n")
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    assert machine.shell(f"cat /{STATE}/store.db") == "a store"
    assert "pack" in machine.shell("cat /etc/vgpu-hook/vgpu-hook.toml")
    asked = machine.asked()
    assert touched(asked) == {"vgpu-hookd.service", "vgpu-hookd.socket"}
    assert not [line for line in asked if "libvirtd" in line or "virtqemud" in line]


def test_an_upgrade_has_one_hook_at_each_moment(machine: Machine) -> None:
    """libvirt runs each executable file there. The old hook goes on until the new one is placed."""
    machine.install()
    machine.make_newer()
    seen = (
        f"#!/bin/sh\nfind {HOOKS} -type f -perm /111 -printf '%p\\n' >>/seen\nexec mv.real \"$@\"\n"
    )
    machine.shell("mv /usr/bin/mv /usr/bin/mv.real")
    machine.put("usr/bin/mv", seen, 0o755)
    machine.dpkg("--unpack", "/newer.deb")
    assert machine.run_by_libvirt() == ["qemu.d/50-vgpu-hook"]
    assert "# newer" not in machine.shell(f"cat /{HOOK}")
    machine.shell("rm -f /seen")
    machine.dpkg("--configure", "vgpu-hook")
    made = machine.shell("cat /seen").split()
    assert [path for path in made if "/qemu.d/" in path] == [f"/{HOOK}"]
    assert len(made) == 2, "it is renamed executable, so that libvirt never finds one it can't run"
    assert machine.run_by_libvirt() == ["qemu.d/50-vgpu-hook"]
    assert machine.shell(f"tail -n1 /{HOOK}") == "# newer\n"
    assert not [line for line in machine.asked() if "libvirtd" in line]


@pytest.mark.parametrize("kind", ["another", "link", "by pip"])
def test_a_hook_that_is_not_the_packages_is_left_alone(machine: Machine, kind: str) -> None:
    machine.install()
    text = "#!/bin/sh\nexit 7\n"
    if kind == "by pip":
        text = text_of("qemu", "/opt/x/bin/python3")
    machine.put("root/other", text, 0o755)
    link = "ln -sf /root/other" if kind == "link" else "cp -p --remove-destination /root/other"
    machine.shell(f"{link} /{HOOK}")
    said = machine.shell(f"/{SHIPPED}/place-hook")
    assert f"vgpu-hook: /{HOOK} is not the package's, and is left alone" in said
    assert machine.shell(f"cat /{HOOK}") == text
    if kind != "by pip":
        assert "is left alone" in machine.install()
        machine.dpkg("--purge", "vgpu-hook")
        assert machine.shell(f"cat /{HOOK}") == text
        machine.install()
    # What it says is to be run.
    (advice,) = re.findall(r"to put ours there: (.*)", said)
    machine.shell(advice)
    assert machine.shell(f"cat /{HOOK}") == (REPOSITORY / "hooks/qemu").read_text()
    assert machine.mode(HOOK) == "-rwxr-xr-x"


def test_a_hook_by_pip_survives_a_purge_that_comes_late(machine: Machine) -> None:
    machine.install()
    machine.dpkg("--remove", "vgpu-hook")
    text = text_of("qemu", "/opt/vgpu-hook/bin/python3")
    machine.put(HOOK, text, 0o755)
    machine.dpkg("--purge", "vgpu-hook")
    assert machine.shell(f"cat /{HOOK}") == text


def test_an_installation_by_pip_goes_before_the_package_comes(machine: Machine) -> None:
    """Its units come before the package's, and would start a daemon that may be gone one day."""
    machine.shell("python3 -m venv --without-pip --system-site-packages /opt/vgpu-hook")
    site = machine.shell("echo /opt/vgpu-hook/lib/python3*/site-packages").strip()
    machine.bring(REPOSITORY / "vgpu_hook", f"{site}/vgpu_hook")
    command = '#!/bin/sh\nexec /opt/vgpu-hook/bin/python3 -I -m vgpu_hook "$@"\n'
    machine.put("opt/vgpu-hook/bin/vgpu-hook", command, 0o755)
    machine.shell("/opt/vgpu-hook/bin/vgpu-hook install-hook")
    status, said = machine.tried("dpkg --install /package.deb")
    assert status != 0
    assert machine.mode("usr/bin/vgpu-hook") == ""
    (advice,) = re.findall(r"vgpu-hook: run: (.*), and install the package then", said)
    machine.shell(advice)
    machine.install()
    assert machine.shell("find /etc/systemd/system -name 'vgpu-hook*' -type f") == ""
    assert MARK not in machine.shell(f"cat /{HOOK}")


def test_an_installation_by_pip_whose_python_is_gone_is_told_too(machine: Machine) -> None:
    for source, target in (("vgpu-hookd.service", "etc/systemd/system/vgpu-hookd.service"),
                           ("qemu", HOOK)):  # fmt: skip
        machine.put(target, text_of(source, "/opt/gone/bin/python3"))
    for _ in range(2):
        status, said = machine.tried("dpkg --install /package.deb")
        assert status != 0
        (advice,) = re.findall(r"is gone; run: (.*), and install the package then", said)
        machine.shell(advice)
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"


def test_removal_takes_the_hook_out_and_nothing_of_libvirts_is_touched(machine: Machine) -> None:
    machine.install()
    machine.put(f"{STATE}/store.db", "a store")
    machine.dpkg("--remove", "vgpu-hook")
    assert not machine.mode(HOOK)
    assert touched(machine.asked()) == {"vgpu-hookd.service", "vgpu-hookd.socket"}
    assert not machine.mode("usr/bin/vgpu-hook")
    assert machine.shell(f"cat /{STATE}/store.db") == "a store"


def test_the_hook_is_out_of_use_before_what_it_needs_goes_away(machine: Machine) -> None:
    """dpkg runs the prerm first: what it leaves is seen there, with all files still in place."""
    machine.install()
    seen = "[ -x /etc/libvirt/hooks/qemu.d/50-vgpu-hook ] && echo used >/seen || echo unused >/seen"
    machine.shell(f"echo '{seen}' >>/var/lib/dpkg/info/vgpu-hook.prerm")
    machine.dpkg("--remove", "vgpu-hook")
    assert machine.shell("cat /seen") == "unused\n"


def test_installed_again_after_a_removal_the_hook_is_in_use_again(machine: Machine) -> None:
    machine.install()
    machine.dpkg("--remove", "vgpu-hook")
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    assert "reload libvirtd.service" in machine.asked()


def test_a_removal_that_fails_leaves_the_hook_in_use(machine: Machine) -> None:
    machine.install()
    machine.shell("echo 'exit 1' >>/var/lib/dpkg/info/vgpu-hook.prerm")
    status, _ = machine.tried("dpkg --remove vgpu-hook")
    assert status != 0
    assert machine.mode(HOOK) == "-rwxr-xr-x"


def test_a_hook_that_the_admin_has_put_out_of_use_stays_so(machine: Machine) -> None:
    """Over an upgrade that brings another hook, and a removal; but for a purge."""
    machine.install()
    machine.make_newer()
    machine.shell(f"chmod a-x /{HOOK}")
    machine.dpkg("--install", "/newer.deb")
    assert machine.mode(HOOK) == "-rw-r--r--"
    assert machine.shell(f"tail -n1 /{HOOK}") == "# newer\n"
    machine.dpkg("--remove", "vgpu-hook")
    machine.install()
    assert machine.mode(HOOK) == "-rw-r--r--"
    assert not [line for line in machine.asked() if "libvirtd" in line]
    machine.dpkg("--purge", "vgpu-hook")
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"


def test_a_hook_that_is_lost_comes_back_with_the_package(machine: Machine) -> None:
    machine.install()
    machine.shell(f"rm /{HOOK}")
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    assert "reload libvirtd.service" in machine.asked()


SELINUX = """
mount -t tmpfs none /sys
mkdir -p /sys/fs/selinux
echo 1 >/sys/fs/selinux/enforce
printf '#!/bin/sh\necho system_u:object_r:%s:s0\n' "$1" >/usr/sbin/matchpathcon
chmod +x /usr/sbin/matchpathcon
"""
LABEL = "system_u:object_r:vgpu_hook_exec_t:s0"


def test_where_selinux_is_the_hook_has_its_label_or_is_not_there(machine: Machine) -> None:
    """A hook that libvirt may not run refuses the start of each VM."""
    machine.shell(SELINUX, "virt_hook_t")
    said = machine.install()
    assert not machine.mode(HOOK)
    (advice,) = re.findall(r"load its module, and go on: (.*)", said)
    # There is no SELinux here: that the module can be loaded is not shown.
    load = (
        '#!/bin/sh\n[ -s "$2" ] && sed -i s/virt_hook_t/vgpu_hook_exec_t/ /usr/sbin/matchpathcon\n'
    )
    machine.put("usr/sbin/semodule", load, 0o755)
    machine.shell(advice)
    label = f"import os; print(os.getxattr('/{HOOK}', 'security.selinux').rstrip(b'\\0').decode())"
    assert machine.shell('python3 -c "$1"', label) == f"{LABEL}\n"
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    other = f"import os; os.setxattr('/{HOOK}', 'security.selinux', b'other')"
    machine.shell('python3 -c "$1"', other)
    machine.install()
    assert machine.shell('python3 -c "$1"', label) == f"{LABEL}\n"


@pytest.mark.parametrize("policy", ["", "virt_hook_t"], ids=["none", "ours is not in it"])
def test_where_selinux_forbids_nothing_the_hook_is_in_place(machine: Machine, policy: str) -> None:
    """Debian without AppArmor has SELinux on, and neither a policy nor its tools."""
    machine.shell(SELINUX, policy)
    machine.shell("echo 0 >/sys/fs/selinux/enforce")
    if not policy:
        machine.shell("rm /usr/sbin/matchpathcon")
    said = machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    assert ("before SELinux is enforced: semodule -i " in said) == bool(policy)


def test_purge_says_what_it_leaves(machine: Machine) -> None:
    machine.install()
    machine.put(f"{STATE}/store.db", "a store")
    said = machine.dpkg("--purge", "vgpu-hook")
    assert "vgpu-hook: left in place: /var/lib/vgpu-hook, the record of its vGPUs." in said
    assert "vgpu-hook: when no vGPU is left: rm -r /var/lib/vgpu-hook" in said
    assert machine.shell(f"cat /{STATE}/store.db") == "a store"
    assert not machine.mode(HOOK)
    assert not machine.mode(HOOK.rpartition("/")[0])
    assert not machine.mode("etc/vgpu-hook")
    assert machine.shell("find /etc/systemd/system -name 'vgpu-hook*'") == ""


def test_purge_leaves_nothing_where_nothing_is_on_record(machine: Machine) -> None:
    machine.install()
    said = machine.dpkg("--purge", "vgpu-hook")
    assert "left in place" not in said
    assert not machine.mode(STATE)


def test_what_a_build_lacks_is_named_with_the_command(machine: Machine) -> None:
    machine.bring(REPOSITORY / "packaging", "root/packaging")
    build = "/root/packaging/deb/build.sh /root/out"
    machine.shell("dpkg --force-depends --remove pybuild-plugin-pyproject")
    status, said = machine.tried(build)
    assert status == 1
    assert "Unmet build dependencies: pybuild-plugin-pyproject" in said
    assert said.endswith("run: apt-get build-dep /root/packaging/deb\n")


def test_on_fedora_no_stand_in_is_built(machine: Machine) -> None:
    """It could not be used there: its files are in another Python's folders."""
    machine.bring(REPOSITORY / "packaging", "root/packaging")
    machine.put("etc/fedora-release", "Fedora release 42\n")
    status, said = machine.tried("/root/packaging/rpm/build.sh /root/out")
    assert status == 1
    assert said.endswith("dnf builddep /root/packaging/rpm/vgpu-hook.spec\n")
    assert machine.shell("ls /root/out") == ""
