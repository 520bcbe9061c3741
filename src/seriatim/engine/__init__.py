"""The engine: joins the pure core and a store.

::

    broker.py           the interface for programs              connect.py           opening a broker
    message_ids.py      message ids and offsets                 engine.py            the engine of one store
    registry.py         topics and subscriptions by name        operator_actions.py  operators' actions on a subscription
    seeking.py          seeks and snapshots                     readers.py           registered readers of logs
    commit.py           the entries of one commit               committer.py         group commit
    store_failure.py    handling failures of the store          store_reopening.py   reopening the store
    upkeep.py           clean-up of the store                   metrics.py           counters and gauges
    options.py          options of topics and subscriptions     topic.py             a log, and its cache in memory
    subscription.py     a subscription and its parts            subscription_states.py  when it may deliver
    deliveries.py       consumers, timer, turns                 outcomes.py          acks, nacks, and their durability
    subscription_moves.py  seeks, reloads and filters     lane_loading.py      loading lanes from the store
    access_tokens.py    who may do what                     reported_status.py   what pipelines, audits and hosts report
    dead_letters.py     dead letters and redrives               subscription_filter.py  messages that a filter rejects
    outbox.py           outboxes in users' transactions         name_index.py        sorted names, page by page
    consumer.py         a consumer and its limits               link/                the same interface from other processes
"""
