"""What commands share: configuration, the broker, parameters, output, progress, signals and Spark."""
