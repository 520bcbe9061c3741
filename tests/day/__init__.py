"""A day of work in a few minutes: does anything grow that should not, and is every message accounted for?

Each hour publishes the same number of messages. Half of their keys are those of every hour, half are never seen again. Two
subscriptions handle everything, with failures and retries; some messages become dead letters, which are purged.
Topics, subscriptions, snapshots and seeks come and go.

The audit judges what each subscription handled, key by key (``core.traces``): nothing twice, nothing late, nothing lost. After
each hour memory, files and latencies are measured, and the last quarter of the day is held against the second.

``python -m tests.day --record`` draws docs/images/day.svg.
"""
