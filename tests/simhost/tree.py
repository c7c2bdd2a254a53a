"""The directory tree of the simulated host: directories, links and attribute files.

Pure data: it knows nothing of FUSE, of vGPUs or of errors other than "it is not there". Who builds
which files is the business of the kinds of parent (mdev.py), of processes.py and of host.py.
"""

from __future__ import annotations

import itertools
import posixpath
import stat
from collections.abc import Callable, Iterator

_numbers = itertools.count(2)


def new_inode() -> int:
    """A number that no node and no FUSE inode had before; 1 is the root."""
    return next(_numbers)


class Completion:
    """The end of something that takes its time, such as a write of `remove` to a device in use.

    Whoever waits sets `callback`; whoever ends it calls `finish(errno)`, 0 for success.
    """

    def __init__(self) -> None:
        self.callback: Callable[[int], None] | None = None
        self.errno: int | None = None

    def finish(self, errno: int = 0) -> None:
        if self.errno is None:
            self.errno = errno
            if self.callback is not None:
                self.callback(errno)

    def then(self, callback: Callable[[int], None]) -> None:
        self.callback = callback
        if self.errno is not None:
            callback(self.errno)


class Node:
    """One name in the tree. `alive` turns false for good when it is removed."""

    def __init__(self, name: str, mode: int) -> None:
        self.name = name
        self.mode = mode
        self.ino = new_inode()
        self.parent: Dir | None = None
        self.alive = True

    @property
    def path(self) -> str:
        """Relative to the mount point, as the kernel resolves it: no links in it."""
        names = [step.name for step in self.ancestors()]
        return "/".join(reversed(names[:-1]))

    def ancestors(self) -> Iterator[Node]:
        """This node, then its parents, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def paths(self) -> list[str]:
        """Its real path, then the ones through the links of /sys/bus and /sys/class."""
        real = self.path
        found = [real]
        for step in self.ancestors():
            if isinstance(step, Dir) and step.aliases:
                rest = real[len(step.path) :]
                found += [alias + rest for alias in step.aliases]
        return found

    def size(self) -> int:
        return 0

    @property
    def remembered(self) -> bool:
        """Whether the kernel may go on from this name without asking; see wire.py."""
        return self.parent is not None and self.parent.lasting


class Dir(Node):
    """A directory.

    lasting: what is in it comes and goes with hardware and drivers only, so that the kernel may
    remember its names. Made by dir(), a directory is as lasting as the one that it is in.
    on_look(name) is called before it is listed (name None) and when a name in it is not found: late
    devices appear that way. vanish() makes what the directory stands for disappear.
    """

    def __init__(self, name: str, mode: int = 0o755) -> None:
        super().__init__(name, stat.S_IFDIR | mode)
        self.children: dict[str, Node] = {}
        self.aliases: list[str] = []
        self.on_look: Callable[[str | None], None] | None = None
        self.vanish: Callable[[], None] | None = None
        self.lasting = False

    @property
    def remembered(self) -> bool:
        return self.lasting

    def add(self, node: Node) -> None:
        if node.name in self.children:
            raise FileExistsError(f"{self.path}/{node.name} is there already")
        node.parent = self
        self.children[node.name] = node

    def dir(self, path: str) -> Dir:
        """The directory below this one, made with its parents where missing."""
        here = self
        for name in path.split("/"):
            child = here.children.get(name)
            if child is None:
                child = Dir(name)
                child.lasting = here.lasting
                here.add(child)
            if not isinstance(child, Dir):
                raise NotADirectoryError(child.path)
            here = child
        return here

    def attr(self, path: str, show: Show | None, store: Store | None = None) -> Attr:
        """An attribute file with the mode that sysfs gives it."""
        where, _, name = path.rpartition("/")
        node = Attr(name, show, store)
        (self.dir(where) if where else self).add(node)
        return node

    def link(self, path: str, target: Node | str) -> Link:
        """A symbolic link; to a node it is relative, as in sysfs."""
        where, _, name = path.rpartition("/")
        here = self.dir(where) if where else self
        if isinstance(target, Node):
            target = posixpath.relpath(target.path, here.path)
        node = Link(name, target)
        here.add(node)
        return node

    def find(self, path: str) -> Node | None:
        node: Node | None = self
        for name in path.split("/"):
            if not isinstance(node, Dir):
                return None
            node = node.children.get(name)
        return node

    def remove(self, path: str) -> None:
        """Remove what is there, if anything is."""
        node = self.find(path)
        if node is not None:
            detach(node)


class Link(Node):
    def __init__(self, name: str, target: str) -> None:
        super().__init__(name, stat.S_IFLNK | 0o777)
        self.target = target

    def size(self) -> int:
        return len(self.target.encode())


Show = Callable[[], bytes] | bytes
Store = Callable[[bytes], Completion | None]


class Attr(Node):
    """A file with a show and a store, as in sysfs: root-owned, 4096 bytes, never cached.

    A store raises OSError, or returns None when it is done, or a Completion when it blocks.
    """

    def __init__(self, name: str, show: Show | None, store: Store | None, bits: int = 0) -> None:
        if not bits:
            bits = (0o444 if show is not None else 0) | (0o200 if store is not None else 0)
        super().__init__(name, stat.S_IFREG | bits)
        self.show = show
        self.store = store

    def read(self) -> bytes:
        if self.show is None:
            return b""
        return self.show if isinstance(self.show, bytes) else self.show()

    def size(self) -> int:
        return 4096

    @property
    def remembered(self) -> bool:
        return self.store is None and super().remembered


class Openable(Attr):
    """A file whose opening is an event, such as /dev/vfio/7.

    opened(pid) raises OSError or returns a token, which closed(token) gets back.
    """

    def __init__(
        self, name: str, opened: Callable[[int], int], closed: Callable[[int], None]
    ) -> None:
        super().__init__(name, b"", None, 0o600)
        self.opened = opened
        self.closed = closed

    def size(self) -> int:
        return 0


def detach(node: Node) -> None:
    """Take a node out of its directory; it and all below it are dead from now on."""
    if node.parent is not None:
        node.parent.children.pop(node.name, None)
    stack = [node]
    while stack:
        here = stack.pop()
        here.alive = False
        if isinstance(here, Dir):
            stack.extend(here.children.values())
