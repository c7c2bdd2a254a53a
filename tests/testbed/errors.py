"""The one error of the test host. Not an error of vgpu-hook: a test never expects this one."""


class TestbedError(Exception):
    """The test host could not be built, started or spoken to; the message says what and why."""

    # Keeps pytest from collecting the class where a test module imports it.
    __test__ = False


def tail(text: str, lines: int = 40) -> str:
    """Return the last lines of a log, for the end of an error message."""
    return "\n".join(text.replace("\r", "").splitlines()[-lines:])
