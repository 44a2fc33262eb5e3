"""Renders chat templates: texts of jinja2 that turn messages into the prompt of a language model.

A template comes with a network, so it may be from a stranger. It is rendered in the sandbox of
jinja2, where it cannot reach Python's objects. The sandbox bounds neither time nor memory.
Therefore a separate process (`template_process`) renders the template. The time, the memory and the
result of this process are limited.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import IO, Any

from nnef_jax.errors import DataError, LimitError, NnefError, extra_missing
from nnef_jax.generation import template_process

MOST_TEMPLATE = 1 << 18  # bytes; templates with the rules of tools have 20 kB
MOST_TEXT = 1 << 22  # bytes of the result, in addition to the bytes of the messages
_MEMORY = 1 << 29  # bytes
_SECONDS = 5  # of processor time
_WAIT = 60  # seconds after which the process is ended, whatever processor time it got
_TOO_LONG = -getattr(signal, "SIGXCPU", signal.SIGTERM)  # the status after too much processor time
_SHOWN = 800  # an error shows this many bytes of the process's message


def rendered(
    template: str, messages: Sequence[Mapping[str, str]], tokens: Mapping[str, str], shown: str
) -> str:
    """Return the prompt that a chat template makes of messages. The model's answer comes next.

    Args:
        template: the template.
        messages: the messages, each with a "role" and "content".
        tokens: special tokens by their names in templates, such as "bos_token".
        shown: the name of the template's file, for errors.

    Raises UnsupportedError if jinja2 is not installed, DataError if the template is faulty or
    refuses the messages, and LimitError if rendering takes too much time or memory.
    """
    if find_spec("jinja2") is None:
        raise extra_missing("chat templates need jinja2", "text")
    size = len(template.encode("utf-8", "replace"))
    if size > MOST_TEMPLATE:
        raise LimitError(f"{shown}: a template of {size} bytes, at most {MOST_TEMPLATE} are read")
    variables = {"messages": messages, "add_generation_prompt": True, **tokens}
    variables |= {"tools": None, "documents": None}  # templates test whether these are None
    request = json.dumps({"template": template, "variables": variables}).encode()
    most = MOST_TEXT + len(request)  # bytes of the prompt, which contains the messages
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as complaint:
        status = _status(request, most, text, complaint)
        if status != 0:
            raise _error(status, _start_of(complaint, _SHOWN).strip(), shown)
        return _start_of(text, most)


def _status(request: bytes, most: int, text: IO[bytes], complaint: IO[bytes]) -> int:
    """Render a template in a process of its own, and return the exit status of the process.

    The process writes at most `most` bytes to the file `text`, and errors to `complaint`. The
    status is `_TOO_LONG` if the process takes too long.
    """
    # With -P the process does not import modules from the folder of its script.
    command = [sys.executable, "-P", template_process.__file__]
    bounds = [str(_SECONDS), str(_MEMORY), str(most)]
    # The process imports jinja2 from the same folders as this process.
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8:replace"}
    options: dict[str, Any] = {"input": request, "stdout": text, "stderr": complaint}
    try:
        done = subprocess.run([*command, *bounds], env=environment, timeout=_WAIT, **options)
    except subprocess.TimeoutExpired:  # `run` has ended the process
        return _TOO_LONG
    return done.returncode


def _error(status: int, reason: str, shown: str) -> NnefError:
    """Return the error for a process that ended with `status`, and wrote `reason`."""
    if status == template_process.FAULTY:
        return DataError(f"{shown}: the chat template fails: {reason}")
    if status == template_process.TOO_BIG:
        return LimitError(f"{shown}: the chat template is refused: {reason}")
    if status == _TOO_LONG:
        return LimitError(f"{shown}: the chat template takes more than {_SECONDS} s")
    # A negative status is the number of the signal that ended the process.
    cause = signal.strsignal(-status) if status < 0 else f"status {status}"
    detail = f": {reason}" if reason else ""
    return LimitError(f"{shown}: the chat template's process was ended by {cause}{detail}")


def _start_of(file: IO[bytes], size: int) -> str:
    """Return the text in the first `size` bytes of a file."""
    file.seek(0)
    return file.read(size).decode("utf-8", "replace")
