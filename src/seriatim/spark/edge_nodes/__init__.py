"""Captured or bridged traffic of Sparkplug's edge nodes, put in order like any other frame.

``order_nodes.py``   the options, checked once
``kernel.py``        one micro-batch of one partition, through the core's session machine
``tie_breaking.py``  the order of messages that arrived at the same time
``state.py``         what a partition knows of its nodes, and the change that a batch makes to it
"""
