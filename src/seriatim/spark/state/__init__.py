"""The state of a stream's partitions on disk, one version a batch. It needs no Spark.

``versions.py``  whose state it is, and its versions: read, written, pruned and divided anew
``encoding.py``  one version as bytes
``files.py``     the few file operations that it takes, on local disks and on pyarrow's file systems
"""
