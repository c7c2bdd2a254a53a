"""The hook with anything on stdin: a short, fixed run of what `make fuzz` does for ten minutes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.calls import INSIDE, PROCESS, Call, Fuzzed, calls, reproduction, started
from tests.fuzz.domains import SUBJECTS, Subject

EXAMPLES = {INSIDE: 80, PROCESS: 8}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.host)
def test_whatever_is_on_stdin_the_answer_is_one_that_libvirt_understands(subject: Subject) -> None:
    tried: Counter[str] = Counter()
    with started(subject, tried) as fuzzed:
        try:
            for level in EXAMPLES:
                run(fuzzed, level)
        except Exception as error:  # noqa: BLE001 - told with the call that did it
            pytest.fail(f"{error!r}\n{reproduction(fuzzed)}")
        fuzzed.check_host()
    assert {level: tried[level] for level in EXAMPLES} == EXAMPLES
    assert tried["rewritten"] > 0, "no input has made the hook print XML"
    assert tried["noted"] > 0, "no restore was refused"
    assert 10 < tried["refused"] < 70, "the inputs are all good, or all bad"


def run(fuzzed: Fuzzed, level: str) -> None:
    @settings(
        max_examples=EXAMPLES[level],
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(fuzzed.subject, level))
    def examples(call: Call) -> None:
        fuzzed.check(call)

    examples()
