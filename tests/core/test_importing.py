"""Importing without a search for garbage."""

import gc

import pytest

from perinvfl.core.importing import importing


def test_the_collector_rests_while_modules_are_imported_and_never_looks_at_them_again() -> None:
    frozen = gc.get_freeze_count()
    try:
        with importing():
            assert not gc.isenabled()
            module = {"itself": [object()]}
        assert gc.isenabled() and gc.get_freeze_count() > frozen
        assert not any(found is module for found in gc.get_objects())
    finally:
        gc.unfreeze()


def test_a_failed_import_leaves_the_collector_at_work() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled() and gc.get_freeze_count() == frozen
