"""One copy for all tests of a node that is made again: nobody changes it."""

from __future__ import annotations

import pytest

from tests.member.rejoin.copykit import OfferedCopy, offer_copy


@pytest.fixture(scope="session")
def offer(tmp_path_factory: pytest.TempPathFactory) -> OfferedCopy:
    """Of a node with two partitions."""
    with pytest.MonkeyPatch.context() as patch:
        return offer_copy(tmp_path_factory.mktemp("offer"), patch)
