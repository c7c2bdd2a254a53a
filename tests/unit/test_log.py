"""What reaches the journal's socket, with structlog and without."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_hook import log


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "journal"))
        receiver.settimeout(60)
        yield receiver


def logs(path: str) -> list[log.Log]:
    structured = log.for_command(path, "test")
    assert isinstance(structured, log.StructuredLog)
    return [log.JournalLog(path, "test"), structured]


def test_fields_and_message_ids(journal: socket.socket, tmp_path: Path) -> None:
    for events in logs(str(tmp_path / "journal")):
        events.event("released", "gone", level="warning", domain_name="Übung", device="d")
        lines = journal.recv(1 << 16).decode().splitlines()
        fields = dict(line.split("=", 1) for line in lines)
        assert fields["MESSAGE"] == "gone"
        assert fields["PRIORITY"] == "4"
        assert fields["SYSLOG_IDENTIFIER"] == "vgpu-hook"
        assert fields["VGPU_DOMAIN_NAME"] == "Übung"
        assert fields["VGPU_DEVICE"] == "d"
        assert fields["VGPU_OPERATION"] == "test"
        assert len(fields["MESSAGE_ID"]) == 32
        events.event("retained", "kept")
        assert fields["MESSAGE_ID"] not in journal.recv(1 << 16).decode()


def test_a_value_with_a_newline_is_no_second_field(journal: socket.socket, tmp_path: Path) -> None:
    for events in logs(str(tmp_path / "journal")):
        events.event("released", "gone", domain_name="a\nPRIORITY=0")
        data = journal.recv(1 << 16)
        value = b"a\nPRIORITY=0"
        framed = b"VGPU_DOMAIN_NAME\n" + len(value).to_bytes(8, "little") + value + b"\n"
        assert framed in data


def test_no_journal_changes_nothing(tmp_path: Path) -> None:
    for events in logs(str(tmp_path / "none")):
        events.event("released", "gone")


def test_verbose_shows_events_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.for_command(str(tmp_path / "none"), "test", verbose=True).event("released", "it is gone")
    assert "it is gone" in capsys.readouterr().err
