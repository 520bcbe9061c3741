"""The engine: joins the pure core and a store.

::

    broker.py           the seam: what programs can ask         connect.py           how they get a broker
    message_ids.py      message ids and offsets                 engine.py            one store: what can be asked of it
    registry.py         topics and subscriptions by name        operator_actions.py  what operators do to a subscription
    seeking.py          seeks and snapshots                     readers.py           who reads logs by ranges
    commit.py           what rides in one commit                committer.py         group commit
    store_failure.py    what happens when the store fails       store_reopening.py   how it is opened again
    upkeep.py           what nobody needs leaves the store      metrics.py           what is counted
    options.py          options of topics and subscriptions     topic.py             a log, and what of it is in memory
    subscription.py     lanes, and the owners around them       subscription_states.py  when its messages may flow
    deliveries.py       consumers, a timer, whose turn it is    outcomes.py          what becomes of messages, and is durable
    subscription_position.py  where it stands in its log        lane_loading.py      what a store holds, as lanes
    dead_letters.py     what left its lane undelivered          subscription_filter.py  what a filter rejects
    outbox.py           what waits in users' own transactions   name_index.py        names in order, page by page
    consumer.py         who takes messages, and how many        link/                the same, called from another process
"""
