"""The state of a stream's partitions on disk, one version per batch; needs no Spark.

``binding.py``         which query owns the state
``batch_versions.py``  the versions of its partitions: read, written and pruned
``encoding.py``        one version as bytes
``repartition.py``     rewrites it for another partition count
``files.py``           the file operations that it needs, on local disks and on pyarrow's file systems
"""
