"""Networks over HTTP: an ASGI application that speaks the Open Inference Protocol 2.

It needs the extra `serve`. docs/serving.md says what it answers.
"""

from importlib.util import find_spec

from nnef_jax.errors import UnsupportedError

if _missing := [x for x in ("starlette", "prometheus_client") if not find_spec(x)]:
    raise UnsupportedError(
        f"serving needs {' and '.join(_missing)}", hint='pip install -e ".[serve]" in a checkout'
    )

from nnef_jax.serving.asgi import app
from nnef_jax.serving.service import ServingLimits

__all__ = ["ServingLimits", "app"]
