"""The filter language of subscriptions: test a filter, and what it selects, without a subscription."""

from seriatim.core.filters import compile_filter

__all__ = ["compile_filter"]
