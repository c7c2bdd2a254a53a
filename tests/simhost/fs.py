"""FUSE requests onto the simulated host's tree, with the errnos that sysfs and proc give.

One request at a time and never waiting: what blocks is answered later, from the Completion or when
the fault is healed. Mounting and the loop that reads requests are in serve.py.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from . import control, wire
from .faults import Fault, LoggedWrite
from .host import Host
from .tree import Attr, Completion, Dir, Link, Node, Openable, detach, new_inode

_FAULT_OPS = {
    wire.OPEN: "open",
    wire.OPENDIR: "open",
    wire.READ: "read",
    wire.READDIR: "read",
    wire.READLINK: "readlink",
    wire.WRITE: "write",
}
_COUNTED = {
    wire.OPEN: "open",
    wire.READ: "read",
    wire.READDIR: "readdir",
    wire.READLINK: "readlink",
}
_BY_NAME = frozenset({wire.LOOKUP, wire.GETATTR, wire.OPEN, wire.OPENDIR, wire.READLINK})
_REFUSED = {
    wire.CREATE: errno.EACCES,
    wire.MKNOD: errno.EACCES,
    wire.MKDIR: errno.EPERM,
    wire.SYMLINK: errno.EPERM,
    wire.LINK: errno.EPERM,
    wire.UNLINK: errno.EPERM,
    wire.RMDIR: errno.EPERM,
    wire.RENAME: errno.EPERM,
    wire.RENAME2: errno.EPERM,
    wire.IOCTL: errno.ENOTTY,
}


@dataclass
class Request:
    opcode: int
    unique: int
    nodeid: int
    pid: int
    body: bytes
    passed: bool = False
    """Its fault has been dealt with: do it now."""
    paths: list[str] = field(default_factory=list)
    """Of the file, if it is one whose calls are counted."""
    logged: LoggedWrite | None = None
    instead: bytes | None = None
    """What a fault writes in place of the data."""

    @property
    def data(self) -> bytes:
        """What is written."""
        return self.body[wire.WRITE_IN.size :] if self.opcode == wire.WRITE else b""


@dataclass
class OpenFile:
    node: Node
    content: bytes = b""
    entries: list[tuple[str, Node]] = field(default_factory=list)
    token: int | None = None


class FileSystem:
    """reply(unique, errno, payload) answers a request."""

    def __init__(self, host: Host, reply: Callable[[int, int, bytes], None]) -> None:
        self.host = host
        self._reply = reply
        self._nodes: dict[int, Node] = {wire.ROOT_ID: host.root}
        self._lookups: dict[int, int] = {}
        self._open: dict[int, OpenFile] = {}
        self._next_handle = 1
        self._hanging: list[Request] = []
        self._complaint = ""
        host.root.attr("control", lambda: self._complaint.encode(), self._control)
        host.on_heal = self._resume
        for line in host.config.script.splitlines():
            control.run(host, line)
        self._handlers: dict[int, Callable[[Request], bytes | None]] = {
            wire.INIT: lambda request: wire.init_reply(memoryview(request.body)),
            wire.LOOKUP: self._lookup,
            wire.GETATTR: self._getattr,
            wire.SETATTR: self._getattr,
            wire.READLINK: self._readlink,
            wire.OPEN: self._open_file,
            wire.READ: self._read,
            wire.WRITE: self._write,
            wire.RELEASE: self._release,
            wire.OPENDIR: self._open_dir,
            wire.READDIR: self._readdir,
            wire.RELEASEDIR: self._release,
            wire.STATFS: lambda request: wire.STATFS_OUT.pack(*[0] * 5, 4096, 255, 4096, *[0] * 7),
            wire.DESTROY: lambda request: b"",
        }

    def handle(self, raw: memoryview) -> None:
        """One request as it was read from /dev/fuse."""
        _, opcode, unique, nodeid, _, _, pid, _, _ = wire.IN_HEADER.unpack_from(raw)
        body = bytes(raw[wire.IN_HEADER.size :])
        if opcode in wire.NO_REPLY:
            self._forget(opcode, nodeid, body)
            return
        self._do(Request(opcode, unique, nodeid, pid, body))

    def _do(self, request: Request) -> None:
        try:
            payload = self._dispatch(request)
        except OSError as error:
            self._answer(request, error.errno or errno.EIO)
        except Exception:  # noqa: BLE001  # our bug must fail one call, not hang the mount
            traceback.print_exc(file=sys.stderr)
            self._answer(request, errno.EIO)
        else:
            if payload is not None:
                self._answer(request, 0, payload)

    def _answer(self, request: Request, number: int, payload: bytes = b"") -> None:
        if request.logged is not None:
            request.logged.end(number)
        self._reply(request.unique, number, payload)
        if request.paths and self.host.watches:
            op = _FAULT_OPS[request.opcode]
            control.seen(self.host, op, request.paths, number, request.data)

    def _dispatch(self, request: Request) -> bytes | None:
        handler = self._handlers.get(request.opcode)
        if handler is None:
            raise OSError(_REFUSED.get(request.opcode, errno.ENOSYS), "not done here")
        node = self._nodes.get(request.nodeid)
        if node is None:
            return handler(request)  # INIT
        if not node.alive and request.opcode in _BY_NAME and self._is_stale(node):
            raise OSError(errno.ESTALE, node.name)
        if request.opcode in _FAULT_OPS and not request.passed:
            first = request.opcode not in (wire.READ, wire.READDIR) or not _offset(request)
            if first and node.parent is not self.host.root:
                return self._observed(request, node, handler)
        return handler(request)

    def _is_stale(self, node: Node) -> bool:
        """Whether the kernel may have come to a dead node by a name that it remembered.

        Not if it is open: what has it open may ask for its attributes, as in sysfs.
        """
        return node.remembered and not any(opened.node is node for opened in self._open.values())

    def _observed(
        self, request: Request, node: Node, handler: Callable[[Request], bytes | None]
    ) -> bytes | None:
        """A call that is counted, logged, and may hit a fault."""
        paths = request.paths = node.paths()
        if counted := _COUNTED.get(request.opcode):
            self.host.log.reads[(counted, paths[0])] += 1
        if request.opcode == wire.WRITE and paths[0].startswith("sys/"):
            request.logged = self.host.log.write(_process_of(request.pid), paths, request.data)
        fault = self.host.fault(_FAULT_OPS[request.opcode], paths, request.data)
        return handler(request) if fault is None else self._fail(request, node, fault)

    def _fail(self, request: Request, node: Node, fault: Fault) -> bytes | None:
        request.passed = True
        if fault.action == "hang":
            self._hanging.append(request)
            return None
        if fault.seconds is not None:
            self.host.after(fault.seconds, lambda: self._do(request))
            return None
        if fault.action == "ignore":
            return wire.WRITE_OUT.pack(len(request.data), 0)
        if fault.instead is not None:
            request.instead = fault.instead
            return self._write(request)
        if fault.action != "vanish":
            raise OSError(getattr(errno, fault.action), "fault")
        for step in node.ancestors():
            if isinstance(step, Dir) and step.vanish is not None:
                step.vanish()
                break
        else:
            detach(node)
        by_name = request.opcode in (wire.OPEN, wire.OPENDIR, wire.READLINK)
        raise OSError(errno.ENOENT if by_name else _dead(node), "vanished")

    def _resume(self) -> None:
        hanging, self._hanging = self._hanging, []
        for request in hanging:
            self._do(request)

    # --- names ---

    def _node(self, request: Request) -> Node:
        return self._nodes[request.nodeid]

    def _lookup(self, request: Request) -> bytes:
        here = self._node(request)
        name = os.fsdecode(request.body.rstrip(b"\0"))
        if not isinstance(here, Dir) or not here.alive:
            raise OSError(errno.ENOENT, name)
        if name not in here.children and here.on_look is not None:
            here.on_look(name)
        node = here.children.get(name)
        if node is None:
            raise OSError(errno.ENOENT, name)
        # A writable file gets a new inode each time: see wire.py on the kernel's inode lock.
        fresh = isinstance(node, Attr) and node.store is not None
        nodeid = new_inode() if fresh else node.ino
        self._nodes[nodeid] = node
        self._lookups[nodeid] = self._lookups.get(nodeid, 0) + 1
        attributes = wire.attributes(node.ino, node.mode, node.size())
        seconds = wire.REMEMBERED_SECONDS if node.remembered else 0
        return wire.ENTRY_HEAD.pack(nodeid, 0, seconds, 0, 0, 0) + attributes

    def _forget(self, opcode: int, nodeid: int, body: bytes) -> None:
        if opcode == wire.FORGET:
            self._forget_one(nodeid, wire.FORGET_IN.unpack_from(body)[0])
        elif opcode == wire.BATCH_FORGET:
            count, _ = wire.BATCH_IN.unpack_from(body)
            for number in range(count):
                start = wire.BATCH_IN.size + number * wire.FORGET_ONE.size
                self._forget_one(*wire.FORGET_ONE.unpack_from(body, start))

    def _forget_one(self, nodeid: int, lookups: int) -> None:
        left = self._lookups.get(nodeid, 0) - lookups
        if left > 0:
            self._lookups[nodeid] = left
        elif nodeid != wire.ROOT_ID:
            self._lookups.pop(nodeid, None)
            self._nodes.pop(nodeid, None)

    def _getattr(self, request: Request) -> bytes:
        """SETATTR too: truncating, chmod and touch are accepted and change nothing."""
        node = self._node(request)
        attributes = wire.attributes(node.ino, node.mode, node.size())
        return wire.ATTR_HEAD.pack(0, 0, 0) + attributes

    def _readlink(self, request: Request) -> bytes:
        node = self._node(request)
        if not isinstance(node, Link) or not node.alive:
            raise OSError(errno.ENOENT if not node.alive else errno.EINVAL, node.name)
        return os.fsencode(node.target)

    # --- open files ---

    def _open_file(self, request: Request) -> bytes:
        node = self._node(request)
        flags, _ = wire.OPEN_IN.unpack_from(request.body)
        if not node.alive:
            raise OSError(errno.ENOENT, node.name)
        if not isinstance(node, Attr):
            raise OSError(errno.EACCES, node.name)
        opened = OpenFile(node)
        if isinstance(node, Openable):
            opened.token = node.opened(_process_of(request.pid))
        else:
            mode = flags & os.O_ACCMODE
            # kernfs checks this for root as well (KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK)
            if (mode != os.O_RDONLY and node.store is None) or (
                mode != os.O_WRONLY and node.show is None
            ):
                raise OSError(errno.EACCES, node.name)
        return self._add_open(opened, wire.FOPEN_DIRECT_IO)

    def _open_dir(self, request: Request) -> bytes:
        node = self._node(request)
        if not node.alive:
            raise OSError(errno.ENOENT, node.name)
        return self._add_open(OpenFile(node), 0)

    def _add_open(self, opened: OpenFile, flags: int) -> bytes:
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = opened
        return wire.OPEN_OUT.pack(handle, flags, 0)

    def _read(self, request: Request) -> bytes:
        handle, offset, size, *_ = wire.READ_IN.unpack_from(request.body)
        opened = self._open[handle]
        node = opened.node
        assert isinstance(node, Attr)
        if offset == 0:
            if not node.alive:
                raise OSError(_dead(node), node.name)
            opened.content = node.read()
        return opened.content[offset : offset + size]

    def _write(self, request: Request) -> bytes | None:
        handle, *_ = wire.WRITE_IN.unpack_from(request.body)
        node = self._open[handle].node
        if not node.alive:
            raise OSError(_dead(node), node.name)
        if not isinstance(node, Attr) or node.store is None:
            raise OSError(errno.EIO, node.name)
        done = node.store(request.data if request.instead is None else request.instead)
        payload = wire.WRITE_OUT.pack(len(request.data), 0)
        if done is None:
            return payload
        self._later(request, done, payload)
        return None

    def _later(self, request: Request, done: Completion, payload: bytes) -> None:
        done.then(lambda number: self._answer(request, number, b"" if number else payload))

    def _release(self, request: Request) -> bytes:
        handle, *_ = wire.RELEASE_IN.unpack_from(request.body)
        opened = self._open.pop(handle)
        if isinstance(opened.node, Openable) and opened.token is not None:
            opened.node.closed(opened.token)
        return b""

    def _readdir(self, request: Request) -> bytes:
        handle, offset, size, *_ = wire.READ_IN.unpack_from(request.body)
        opened = self._open[handle]
        here = opened.node
        if not isinstance(here, Dir):
            raise OSError(errno.ENOTDIR, here.name)
        if offset == 0:
            if here.on_look is not None:
                here.on_look(None)
            opened.entries = [(".", here), ("..", here.parent or here), *here.children.items()]
        reply = bytearray()
        for number, (name, node) in enumerate(opened.entries[offset:], offset + 1):
            entry = wire.dirent(node.ino, number, name, node.mode)
            if len(reply) + len(entry) > size:
                break
            reply += entry
        return bytes(reply)

    # --- the control file ---

    def _control(self, data: bytes) -> None:
        self._complaint = ""
        for line in data.decode("utf-8", "surrogateescape").splitlines():
            try:
                control.run(self.host, line)
            except control.BadCommand as error:
                self._complaint = f"{error}\n"
                raise OSError(errno.EINVAL, str(error)) from error


def _offset(request: Request) -> int:
    return int(wire.READ_IN.unpack_from(request.body)[1])


def _dead(node: Node) -> int:
    """What using an open file of something that is gone gives: kernfs ENODEV, proc ESRCH."""
    return errno.ESRCH if node.path.startswith("proc/") else errno.ENODEV


def _process_of(thread: int) -> int:
    """FUSE names the thread that calls; what /proc/<pid> goes by is its process."""
    try:
        with open(f"/proc/{thread}/status", "rb") as status:
            for line in status:
                if line.startswith(b"Tgid:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return thread
