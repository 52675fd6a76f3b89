"""Each kind of harm is done to a running gateway, and a request of another tenant answered meanwhile."""

from pathlib import Path

import pytest

from benchmarks import tenants

pytest.importorskip("xllamacpp")


def test_each_kind_is_measured(test_model: Path, tmp_path: Path) -> None:
    with tenants.started(tmp_path, test_model) as place:
        found = tenants.measure(place, 1, 1)
    print(f"\n{tenants.table(found)}")
    assert found.keys() == tenants.KINDS.keys()
    assert all(alone > 0 and beside > 0 for alone, beside in found.values())
