"""The Google Pub/Sub gRPC server, for the official clients.

``server`` puts the services together and serves them; ``publishing`` and ``subscribing`` answer the methods about topics and
subscriptions; ``resources`` says what of a resource the engine knows and what is kept beside; ``consumers``, ``pulling`` and
``streams`` give messages out.
"""
