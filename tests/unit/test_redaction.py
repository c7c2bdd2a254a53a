"""`vgpu-hook record`: what is taken out of texts, always and with --redact-names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from vgpu_hook import snapshot
from vgpu_hook.addresses import Hider, plain_uri
from vgpu_hook.bounded import Deadline
from vgpu_hook.model import one_line, shell_word
from vgpu_hook.redaction import Names, named_in
from vgpu_hook.sysfs import Roots
from vgpu_hook.vfio import holders

ODD = (
    "acme",
    "my vm",
    "it's",
    "both ' and \"",
    "back\\slash",
    "bell\x07",
    "two  spaces",
    "ä€",
    "-x",
)
UUID = "6f2c6f0a-5d1f-4b8b-9a52-0c1d4e5f6a7b"


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    "form", [str, repr, shlex.quote, shell_word, one_line, lambda n: one_line(repr(n))]
)
def test_a_name_is_found_in_each_of_its_forms(name: str, form: object) -> None:
    assert callable(form)
    names = Names([(UUID, name)], [])
    text = names.text(
        one_line(f"domain {form(name)}: it is gone; run: vgpu-hook release {form(name)}")
    )
    assert text.replace("-- ", "").replace("'", "").replace('"', "") == (
        "domain domain-1: it is gone; run: vgpu-hook release domain-1"
    )


@pytest.mark.parametrize("name", ODD)
def test_a_message_alone_tells_a_name(name: str) -> None:
    texts = (
        f"domain {name!r}: libvirt: no answer",
        f"released vGPU {UUID} (nvidia-63 on 0000:41:00.0) of {name!r}",
        f"definition of {name!r}: a hostdev was added",
        f"also of {name!r} slot 0 (assigned)",
        f"0000:41:00.4 is in use by domain {name!r}",
    )
    for text in texts:
        assert named_in(text) == {name}, text
    assert named_in("vGPU 'nvidia-63' (slot '0') of no use") == set()
    found = named_in(f"Domain not found: no domain with matching uuid '{UUID}' (acme)")
    assert found == {"acme"}


@pytest.mark.parametrize("name", ["acme", "a-customer-with-a-long-name", "my vm", "ä" * 9])
def test_a_process_named_like_its_domain_is_renamed(name: str) -> None:
    """As the kernel cuts it: TASK_COMM_LEN."""
    command = f"qemu:{name}".encode()[:15].decode("utf-8", "backslashreplace")
    names = Names([(UUID, name)], [])
    assert names.command(command) == "qemu:domain-1"
    text = f"in use by {command} (pid 4711, /dev/vfio/7)"
    assert names.text(text) == "in use by qemu:domain-1 (pid 4711, /dev/vfio/7)"
    assert Names([], []).command(command) == "qemu:domain-unknown"
    assert names.command("qemu-system-x86") == "qemu-system-x86"
    assert names.text("qemu:///system") == "qemu:///system"


def test_two_names_that_a_process_has_in_common_are_told_apart_by_nobody() -> None:
    names = Names([("", "customer-acme"), ("", "customer-ajax")], [])
    assert names.command("qemu:customer-a") == "qemu:domain-unknown"


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("/srv/a.img: No such file", "/path-1: No such file"),
        ("/srv/My Files/a.img: No such file", "/path-1: No such file"),
        ("/srv/My Files/a b: No such file", "/path-1: No such file"),
        ("can't open '/srv/My Files/a, b': no", "can't open '/path-1': no"),
        ("can't open \"/srv/My Files/it's\": no", 'can\'t open "/path-1": no'),
        ("/srv/a /srv/b", "/path-1 /path-2"),
        ("//srv/acme", "/path-1"),
        ("nfs.host:/srv/acme", "nfs.host:/path-1"),
        ("file:///srv/acme", "file:///path-1"),
        ("/dev/vg_acme/disk", "/path-1"),
        ("/dev/mapper/acme: no", "/path-1: no"),
        ("/proc/1/root/home/acme", "/path-1"),
        ("/usr/../home/acme", "/path-1"),
        ("/usr/local/acme", "/path-1"),
        ("/sys/fs/cgroup/machine.slice/machine-acme.scope", "/path-1"),
        ("/sys/devices/virtual/net/tap-acme", "/path-1"),
        *(
            (f"{path} is there", f"{path} is there")
            for path in (
                *("/dev/vfio/7", "/dev/vfio/vfio", "/dev/vfio/devices/vfio0", "/dev/null", "/dev"),
                *("/proc/4711/fd", "/sys/bus/mdev/devices", "/etc/vgpu-hook/vgpu-hook.toml"),
                *("/etc/libvirt/hooks/qemu.d/50-vgpu-hook", "/var/lib/vgpu-hook/store.db"),
                *("nvidia-63/0", "and/or", "qemu:///system", "qemu+ssh:///system"),
            )
        ),
    ],
)
def test_paths_are_renamed_whole_and_those_of_every_host_are_not(text: str, renamed: str) -> None:
    assert Names([], []).text(text) == renamed


# --- always ---


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("qemu:///system", "qemu:///system"),
        (
            "qemu+ssh://root:secret@secret.example.com:22/system?keyfile=/secret",
            "qemu+ssh:///system",
        ),
        ("qemu+ssh://[secret/system", "qemu+ssh:///system"),
        ("secret.example.com/system", "?://?"),
        ("secret:16509/system", "?://?"),
        ("qemu:///secret", "qemu://?"),
        ("test:///default", "test:///default"),
        ("secret://x/system", "?:///system"),
        ("", "?://?"),
    ],
)
def test_of_a_uri_scheme_and_path_alone_are_kept(uri: str, plain: str) -> None:
    found = plain_uri(uri)
    assert "secret" not in found
    assert found == plain
    assert "secret" not in Hider([uri], []).text(f"can't connect to libvirt at {uri}: no")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("can't serve metrics on 192.0.2.7 port 9843", "can't serve metrics on ADDRESS port 9843"),
        ("192.0.2.7:9843 and 2001:db8::1.", "ADDRESS:9843 and ADDRESS."),
        ("[2001:db8::1]:9843", "[ADDRESS]:9843"),
        ("52:54:00:5E:c2:e7", "ADDRESS"),
        ("0000:41:00.4 at 12:30:11, 535.161.07", "0000:41:00.4 at 12:30:11, 535.161.07"),
        ("metrics.listen: 'gpu1:9843' is no IP", "metrics.listen: '?' is no IP"),
        ("gpu7.example.com, gpu7: no answer; gpu77", "HOST, HOST: no answer; gpu77"),
        ("resolving kvm.example.org failed", "resolving HOST failed"),
        ("ssh: bastion said no", "ssh: HOST said no"),
    ],
)
def test_addresses_and_names_of_hosts_are_hidden(text: str, hidden: str) -> None:
    uris = ["qemu+ssh://root@bastion/system", "kvm.example.org/system"]
    assert Hider(uris, ["gpu7.example.com"]).text(text) == hidden


# --- handles ---

GROUP, CHARACTER = "/dev/vfio/7", "/dev/vfio/devices/vfio3"
HANDLES = (
    *(GROUP, CHARACTER, "/vfio/7", "/vfio/devices/vfio3", "/devices/vfio3", "/7", "/vfio3"),
    *("/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/noiommu-1", "anon_inode:[vfio-device]"),
    *("/dev/vfio/7 (deleted)", "/vfio3 (deleted)", "/srv/SECRET/vfio/7"),
)
OTHERS = (
    *("/home/SECRET/vfio-notes.txt", "/home/SECRET-vfio", "/srv/vfio/SECRET", "/srv/SECRET/7"),
    *("/vfio/7/SECRET", "/dev/vfio/7\nSECRET", "/SECRET-7", "anon_inode:[SECRET vfio]"),
    *("socket:[7]", "/dev/null"),
)


@pytest.mark.parametrize("link", [*HANDLES, *OTHERS])
def test_a_handle_is_recorded_and_no_other_file(link: str, tmp_path: Path) -> None:
    """And the guard says the same of what was recorded."""
    for folder, target in (("proc", link), ("again", None)):
        files = tmp_path / folder / "4711" / "fd"
        files.mkdir(parents=True)
        (files.parent / "comm").write_text("qemu-system-x86\n")
        if target is not None:
            (files / "12").symlink_to(target)
    roots = Roots(str(tmp_path / "sys"), str(tmp_path / "proc"), str(tmp_path / "dev"))
    found = snapshot.take(roots, Deadline(60)).entries
    handle = found.get("proc/4711/fd/12")
    assert (handle is not None) == ("proc/4711/comm" in found) == (link in HANDLES)
    assert "SECRET" not in str(found)
    if handle is not None:
        (tmp_path / "again" / "4711" / "fd" / "12").symlink_to(handle.text)
    for device in (GROUP, CHARACTER):
        sides = [holders(str(tmp_path / folder), (device,)) for folder in ("proc", "again")]
        assert len(sides[0]) == len(sides[1]), device


def test_a_host_named_like_a_part_of_a_domain_splits_no_name() -> None:
    hide = Hider([], ["vm"])
    names = Names([("", "acme's vm")], [], hide.text)
    assert (
        names.text("domain \"acme's vm\" on vm: acme's vm") == 'domain "domain-1" on HOST: domain-1'
    )
