"""Defines the metrics of an application for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one application, in a separate registry."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        prefix = "nnef_jax_serving_"
        self.requests: Counter = Counter(
            f"{prefix}requests", "Answered requests", ("model", "code"), registry=registry
        )
        labels = ("model",)
        self.seconds: Histogram = Histogram(
            f"{prefix}seconds", "From arrival to answer", labels, buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.items: Histogram = Histogram(
            f"{prefix}batch_items", "Computed at once", labels, buckets=_ITEMS, registry=registry
        )
        waiting = Gauge(f"{prefix}waiting", "Waiting requests", labels, registry=registry)
        sequences = Gauge(f"{prefix}sequences", "Open sequences", labels, registry=registry)
        self._gauges = {"waiting": waiting, "sequences": sequences}
        self.bytes: Gauge = Gauge(
            f"{prefix}request_bytes", "Bytes of requests in memory", registry=registry
        )

    def watch(self, quantity: str, model: str, count: Callable[[], int]) -> None:
        """Set the function that returns a model's metric whenever Prometheus reads the metric.

        Args:
            quantity: the metric: "waiting" for waiting requests, or "sequences" for open sequences.
            model: the name of the model.
            count: the function that returns the current number.
        """
        self._gauges[quantity].labels(model).set_function(count)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
