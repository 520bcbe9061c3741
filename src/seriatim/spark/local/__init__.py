"""A local Spark session for our commands and tests, its Java, and its shutdown.

``session.py``   starts it
``java.py``      finds the Java that runs it
``shutdown.py``  ends it, with everything that it started
"""
