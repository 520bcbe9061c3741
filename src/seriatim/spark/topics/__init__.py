"""Topics as format("seriatim"): source and sink.

``datasource.py``  describes the format to Spark
``source.py``      reads topics
``sink.py``        writes topics, each batch once
``address.py``     which topic of which store, and how to reach it
``packs.py``       converts packs to Arrow columns, and back
``ranges.py``      how much of a log a batch reads, and how it is divided among tasks
"""
