"""Captured Sparkplug traffic, put in order like any other frame.

``order_nodes.py``   the options, validated once
``kernel.py``        one micro-batch of one partition, through the core's session machine
``tie_breaking.py``  the order of messages that arrived at the same time
``state.py``         the state of a partition's nodes, and the change that a batch makes to it
"""
