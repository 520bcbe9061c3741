"""The contract of a store: one suite, run on every store there is.

A test module of a store subclasses ``WholeContract`` and gives it a fixture ``kit``.
"""

from __future__ import annotations

from tests.store.contract.catalog import CatalogContract
from tests.store.contract.cleanup import UpkeepContract
from tests.store.contract.log import LogContract
from tests.store.contract.published_ids import PublishedIdsContract
from tests.store.contract.refusals import RefusalContract
from tests.store.contract.subscriptions import SubscriptionContract
from tests.store.contract.transactions import TransactionContract


class WholeContract(
    CatalogContract,
    LogContract,
    PublishedIdsContract,
    SubscriptionContract,
    TransactionContract,
    RefusalContract,
    UpkeepContract,
):
    """Everything that a store promises."""
