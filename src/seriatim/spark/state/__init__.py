"""The state of a stream's partitions on disk, one version a batch. It needs no Spark.

``binding.py``      whose state it is
``versions.py``     the versions of its partitions: read, written and pruned
``encoding.py``     one version as bytes
``repartition.py``  another partition count
``files.py``        the few file operations that it takes, on local disks and on pyarrow's file systems
"""
