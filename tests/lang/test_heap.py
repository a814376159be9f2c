"""Objects are set aside while there is much to do, and given back."""

from __future__ import annotations

import gc

import pytest
from radicel import heap


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_times", heap._Times())
    monkeypatch.delenv("RADICEL_FREEZE", raising=False)
    assert not gc.get_freeze_count()


def test_what_was_there_is_set_aside_until_the_last_one_is_done() -> None:
    engine = heap.Busy()
    with heap.undisturbed():
        assert gc.get_freeze_count()
        engine.set(True)
        engine.set(True)
    assert gc.get_freeze_count()
    engine.set(False)
    engine.set(False)
    assert not gc.get_freeze_count()


def test_an_error_gives_back_what_was_set_aside() -> None:
    with pytest.raises(ValueError, match="here"), heap.undisturbed():
        raise ValueError("here")
    assert not gc.get_freeze_count()


def test_who_has_set_objects_aside_finds_them_so() -> None:
    gc.freeze()
    try:
        with heap.undisturbed():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_the_switch_leaves_the_collector_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADICEL_FREEZE", "0")
    with heap.undisturbed():
        assert not gc.get_freeze_count()
