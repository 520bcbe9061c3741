"""Topics as ``format("seriatim")``.

``datasource.py``  what Spark asks first
``source.py``      reads topics
``sink.py``        writes topics, each batch once
``address.py``     which topic of which store, and the ways to it
``packs.py``       columns of packs, and packs of columns
``ranges.py``      how much of a log a batch takes, and how it is divided among tasks
"""
