"""Spark on this machine, for our commands and tests.

``session.py``   starts it
``java.py``      finds the Java that runs it
``shutdown.py``  ends it, with everything that it started
"""
