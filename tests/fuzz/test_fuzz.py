"""A few hundred cases of the attack; `make fuzz` runs twenty thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.attack import Attack
from fuzz.corpus import TARGETS
from fuzz.kills import kill_study

CASES = 12  # for each function


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Attack:
    return Attack(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("number", range(len(TARGETS)), ids=[target.name for target in TARGETS])
def test_changed_files_are_refused_or_read(attack: Attack, number: int) -> None:
    cases = [attack.run(number + len(TARGETS) * k) for k in range(CASES)]
    assert not [case for case in cases if case.finding]
    assert {case.outcome for case in cases} != {"read"}, "changes that nobody notices test nothing"


def test_a_study_that_is_killed(tmp_path: Path) -> None:
    found = kill_study(tmp_path / "study", 5)
    assert not found.findings


def test_a_changed_number_is_another_result(attack: Attack, tmp_path: Path) -> None:
    """So the test above can fail: without the digest, the same file gives another result."""
    from fuzz.mutations import split

    target = next(t for t in TARGETS if t.name == "load_into state.safetensors")
    path = attack.work / target.file
    valid = path.read_bytes()
    numbers = split(valid)[1]
    try:
        path.write_bytes(valid[: -len(numbers)] + bytes(len(numbers)))
        assert target.read(attack.work) != attack.expected[target.name]
    finally:
        path.write_bytes(valid)
