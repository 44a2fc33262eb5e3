"""What Prometheus reads of an application."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one application, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        name = "nnef_jax_serving_"
        labels = ("model", "code")
        self.requests = Counter(f"{name}requests", "Answered requests", labels, registry=own)
        self.seconds = Histogram(
            f"{name}seconds", "From arrival to answer", ("model",), buckets=_SECONDS, registry=own
        )
        self.items = Histogram(
            f"{name}batch_items", "Computed at once", ("model",), buckets=_ITEMS, registry=own
        )
        self._gauges = {
            what: Gauge(f"{name}{what}", text, ("model",), registry=own)
            for what, text in (("waiting", "Requests that wait"), ("sequences", "Open sequences"))
        }
        self.bytes = Gauge(f"{name}request_bytes", "Bytes of requests in memory", registry=own)

    def watch(self, what: str, model: str, count: Callable[[], int]) -> None:
        """Show a number of a model, "waiting" or "sequences", as it is when it is read."""
        self._gauges[what].labels(model).set_function(count)

    def text(self) -> bytes:
        """Return all of them as Prometheus reads them."""
        return generate_latest(self._registry)
