"""Telemetry: metrics for Prometheus (``prometheus``), traces for OpenTelemetry (``tracing``)."""
