"""The Google Pub/Sub gRPC server: the official clients, on our engine.

``server`` puts the services together and serves them; ``publishing`` and ``subscribing`` answer the methods about topics and
subscriptions; ``resources`` says what of a resource the engine knows and what is kept beside; ``consumers``, ``pulling`` and
``streams`` give messages out.
"""
