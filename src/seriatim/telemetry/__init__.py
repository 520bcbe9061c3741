"""What a program shows of itself: metrics for Prometheus (``prometheus``), traces for OpenTelemetry (``tracing``)."""
