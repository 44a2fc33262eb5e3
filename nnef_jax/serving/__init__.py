"""Serves networks over HTTP by an ASGI application for the Open Inference Protocol 2.

This package needs the extra `serve`. docs/serving.md describes the routes of the application.

Where are waiting requests joined to a batch? `service`
Where are tensors decoded and encoded? `protocol`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nnef_jax.calls.batcher import require_sizes
from nnef_jax.errors import InputError, extra_missing
from nnef_jax.formats.base import Progress
from nnef_jax.model import Model
from nnef_jax.options import names_of, require
from nnef_jax.serving.bounds import ServingLimits
from nnef_jax.serving.servables import Servable

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["Servable", "ServingLimits", "app"]


def require_packages(*names: str) -> None:
    """Raise UnsupportedError if a package is missing. The error names the extra to install."""
    missing = [name for name in names if not find_spec(name)]
    if missing:
        raise extra_missing(f"serving needs {' and '.join(missing)}", "serve")


def app(
    models: Mapping[str, Model | Servable],
    *,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    limits: ServingLimits | None = None,
    progress: Progress | None = None,
) -> Starlette:
    """Return an ASGI application that serves models by name.

    Requests are computed in batches of the sizes `sizes`, as by `Model.batcher`. If the items of a
    batch depend on one another in a model, the requests for this model are computed one at a time.
    A model with a state computes one cycle for each request, for the sequence that the request
    names. All models are compiled when the application starts. The application is ready after that.

    Args:
        models: maps names to models. A `Batcher`, or any `Servable`, may take the place of a model.
        sizes: batch sizes.
        limits: bounds on the requests of clients.
        progress: a function of two numbers: how many models are ready, and how many models there
            are.

    Raises InputError for a name that cannot be a part of a URL. Raises UnsupportedError for a dtype
    that has no name in the protocol, and if the extra `serve` is missing.

    >>> application = nnef_jax.serving.app({"digits": nnef_jax.load("examples/digits/model")})
    """
    require("models", models, Mapping, "a dict of models by name")
    require_sizes(sizes)
    if not models:
        raise InputError("there is no model to serve")
    for name in names_of("models", [*models], "names"):
        if not name or "/" in name or not name.isprintable():
            raise InputError(f"{name!r:.60} cannot name a model: it is a part of a URL")
    require_packages("starlette", "prometheus_client")
    from nnef_jax.serving.asgi import Application

    return Application(models, sizes, limits or ServingLimits(), progress).starlette
